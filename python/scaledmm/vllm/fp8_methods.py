"""Keeps the scales of fused parts where a checkpoint has one for each.

vLLM's FP8 methods quantize the parts of a fused layer (q, k and v) a second time, to the largest of their scales,
because its kernels take one scale. Ours take them all: weights stay as the checkpoint has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scaledmm.vllm.wrapping import wrap_once


def _loaded_scales(scale: torch.Tensor) -> torch.Tensor:
    """Scales of the parts. Parts that were fused on disk load one; the rest keep the mark of what was never set."""
    unset = torch.finfo(torch.float32).min
    if bool((scale == unset).any()):
        return scale.max()
    return scale


def keep_part_scales(method: type, kernel_class: type, is_per_tensor: Callable[[Any], bool]) -> bool:
    """Wraps method.process_weights_after_loading for layers on `kernel_class`. False: it was wrapped before."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def process_weights_after_loading(self: Any, layer: Any) -> None:
            kernel = getattr(self, "fp8_linear", None)
            if not isinstance(kernel, kernel_class) or not is_per_tensor(self):
                original(self, layer)
                return
            scale = torch.nn.Parameter(_loaded_scales(layer.weight_scale.data), requires_grad=False)
            layer.register_parameter("weight_scale", scale)
            if not hasattr(layer, "input_scale"):
                layer.input_scale = None
            kernel.pack_stored(layer, layer.weight)  # type: ignore[attr-defined]

        return process_weights_after_loading

    return wrap_once(method, "process_weights_after_loading", wrapper)


def skip_dequantizing(method: type, kernel_class: type) -> bool:
    """Wraps method.apply, which under VLLM_BATCH_INVARIANT reads the plain weight: our kernels are batch invariant."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            kernel: Any = self.fp8_linear
            if isinstance(kernel, kernel_class):
                return kernel.apply_weights(layer, x, bias)  # type: ignore[attr-defined]
            return original(self, layer, x, bias)

        return apply

    return wrap_once(method, "apply", wrapper)
