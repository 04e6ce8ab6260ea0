"""The models of build/models in transformers: weights dequantized, activations of INT8 layers rounded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM


def _dequantize(weight: torch.Tensor, scale: torch.Tensor, block: Sequence[int] | None) -> torch.Tensor:
    if block is not None:
        rows, columns = weight.shape
        scale = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:rows, :columns]
    return weight.float() * scale.float()


def _round_tokens(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """As docs/quantization.md 2 has it: dynamic, per token, symmetric."""
    x = inputs[0].float()
    largest = x.abs().amax(dim=-1, keepdim=True)
    codes = (x * torch.full_like(largest, 127.0).div(largest)).round()
    return ((codes * (largest / 127.0)).to(inputs[0].dtype),)


def _round_asymmetric_tokens(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The same with zero points."""
    x = inputs[0].float()
    low = x.amin(dim=-1, keepdim=True).clamp(max=0)
    scale = (x.amax(dim=-1, keepdim=True).clamp(min=0) - low) / 255.0
    zero_point = (-128.0 - low / scale).round()
    codes = ((x * scale.reciprocal()).round() + zero_point).clamp(-128, 127)
    return (((codes - zero_point) * scale).to(inputs[0].dtype),)


def _activations_of(quantization: dict[str, Any]) -> dict[str, Any]:
    """How compressed-tensors says that the only group of layers quantizes its inputs."""
    groups = quantization.get("config_groups", {}).values()
    return next((group["input_activations"] or {} for group in groups), {})


def dequantized_model(folder: Path, dtype: torch.dtype) -> LlamaForCausalLM:
    """The model whose weights are what the checkpoint's codes and scales stand for."""
    config = json.loads((folder / "config.json").read_text())
    quantization = config.pop("quantization_config", {})
    stored = load_file(folder / "model.safetensors")
    scales = {name: stored.pop(name) for name in list(stored) if "_scale" in name.rsplit(".", 1)[1]}
    quantized = set()
    for name, scale in scales.items():
        weight = name.rsplit(".", 1)[0] + ".weight"
        stored[weight] = _dequantize(stored[weight], scale, quantization.get("weight_block_size"))
        quantized.add(weight.removesuffix(".weight"))
    model = LlamaForCausalLM(LlamaConfig(**config))
    missing, unexpected = model.load_state_dict({name: tensor.float() for name, tensor in stored.items()}, strict=False)
    if unexpected or [name for name in missing if name != "lm_head.weight"]:
        raise ValueError(f"{folder}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    activations = _activations_of(quantization)
    if activations.get("type") == "int":
        hook = _round_tokens if activations["symmetric"] else _round_asymmetric_tokens
        for name, module in model.named_modules():
            if name in quantized:
                module.register_forward_pre_hook(hook)
    return model.to(dtype).eval()


def logits_of(model: LlamaForCausalLM, tokens: Sequence[int]) -> numpy.ndarray:
    """float32 [tokens, vocabulary]."""
    with torch.no_grad():
        logits = model(torch.tensor([list(tokens)])).logits[0]
    result: numpy.ndarray = logits.float().numpy()
    return result
