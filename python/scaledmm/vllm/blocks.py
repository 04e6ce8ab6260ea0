"""Block scales of fused layers whose parts are not whole blocks.

A part (q, k, v; gate, up) has blocks of its own, counted from its first row. vLLM's loader gives the fused layer
ceil(N / block) rows of scales and puts those of a part at row ceil(first row of the part / block): the scales of a part
that ends inside a block are overwritten by those of the next one. Here such a layer gets scales for lower blocks, whose
height divides every part, and each part's scales are repeated into the rows that they cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scaledmm.vllm.wrapping import wrap_once

_SCALES = ("weight_scale_inv", "weight_scale")
_HEIGHT = "scaledmm_block_height"  # attribute of a layer whose scales were made anew


def block_height(layer: torch.nn.Module, block_n: int) -> int:
    """Rows of the weight that a row of the layer's scales covers.

    Errors: ValueError for a layer that was loaded without `keep_block_scales` and has lost scales.
    """
    height: int | None = getattr(layer, _HEIGHT, None)
    if height is not None:
        return height
    widths = list(getattr(layer, "logical_widths", []))
    if any(width % block_n for width in widths[:-1]):
        raise ValueError(
            f"vLLM has loaded block scales of one part over those of another: the parts {widths} "
            f"do not fill blocks of {block_n} rows"
        )
    return block_n


def keep_block_scales(method: type, kernel_class: type) -> bool:
    """Wraps method.create_weights for layers on `kernel_class`. False: it was wrapped before."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def create_weights(self: Any, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            original(self, layer, *args, **kwargs)
            kernel = getattr(self, "fp8_linear", None)
            widths = list(getattr(layer, "logical_widths", []))
            if not isinstance(kernel, kernel_class) or len(widths) < 2:
                return
            block_n = kernel.config.weight_quant_key.scale.group_shape[0]  # type: ignore[attr-defined]
            if any(width % block_n for width in widths):
                _lower_blocks(layer, widths, block_n)

        return create_weights

    return wrap_once(method, "create_weights", wrapper)


def _lower_blocks(layer: torch.nn.Module, widths: Sequence[int], block_n: int) -> None:
    """Puts scales for lower blocks, whose height divides every part, in the place of the layer's, and their loader."""
    name = next(name for name in _SCALES if getattr(layer, name, None) is not None)
    old: Any = getattr(layer, name)
    height = math.gcd(block_n, *widths)
    data = old.data.new_empty((sum(widths) // height, *old.shape[1:]))
    new = type(old)(data=data, input_dim=1, output_dim=0, weight_loader=_loader(layer, widths, block_n, height))
    if hasattr(old, "scale_type"):
        new.scale_type = old.scale_type
    setattr(layer, _HEIGHT, height)
    layer.register_parameter(name, new)


def _loader(layer: torch.nn.Module, widths: Sequence[int], block_n: int, height: int) -> Callable[..., None]:
    """What vLLM calls with the scales of a part as the checkpoint has them, or of the whole layer (no part named)."""
    parts = {"q": 0, "k": 1, "v": 2}

    def load(param: torch.nn.Parameter, loaded: torch.Tensor, part: str | int | None = None) -> None:
        # Of this process's share under tensor parallelism: `loaded` is always the scales of all processes.
        if part is None:
            _load_fused(layer, param, loaded, widths, block_n, height)
            return
        index = parts[part] if isinstance(part, str) else part
        first = _rank(layer, index) * widths[index]
        begin = sum(widths[:index]) // height
        rows = range(first, first + widths[index], height)
        param.data[begin : begin + len(rows)].copy_(loaded[[row // block_n for row in rows]])

    return load


def _load_fused(
    layer: torch.nn.Module,
    param: torch.nn.Parameter,
    loaded: torch.Tensor,
    widths: Sequence[int],
    block_n: int,
    height: int,
) -> None:
    """Scales of a layer that is fused on disk: its blocks are counted from the first row of the whole."""
    to = before = 0
    for index, width in enumerate(widths):
        first = before + _rank(layer, index) * width
        rows = range(first, first + width, height)
        param.data[to : to + len(rows)].copy_(loaded[[row // block_n for row in rows]])
        to += len(rows)
        before += width * (int(getattr(layer, "tp_size", 1)) // _replicas(layer, index))


def _replicas(layer: torch.nn.Module, index: int) -> int:
    """How many processes hold the same k and v heads."""
    return 1 if index == 0 else int(getattr(layer, "num_kv_head_replicas", 1))


def _rank(layer: torch.nn.Module, index: int) -> int:
    """Which share of a part this process holds."""
    return int(getattr(layer, "tp_rank", 0)) // _replicas(layer, index)
