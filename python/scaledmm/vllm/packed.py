"""Packed weights of a vLLM layer, and the call."""

from __future__ import annotations

from typing import Any

import torch

import scaledmm
import scaledmm.torch
from scaledmm import _core

# Attributes of a layer. The handle is a buffer: graphs take it as an input, so none keeps a number of another process,
# and vLLM's weight reload, which copies new tensors into the old ones, hands over the number of the new layer.
_LINEAR = "scaledmm_linear"
_HANDLE = "scaledmm_handle"
_OUTPUT = "scaledmm_output"  # (N, input dtype, output dtype), plain values for the tracer

_TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def pack_layer(
    layer: torch.nn.Module,
    config: Any,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    weight_name: str,
    input_scale: torch.Tensor | None = None,
    input_zero_point: torch.Tensor | None = None,
    input_scale_ub: float | None = None,
) -> None:
    """Packs a layer's weights [N, K] and frees the ones that it was loaded with.

    Errors: ValueError with both shapes, before anything is changed.
    """
    widths = [width for width in getattr(layer, "logical_widths", []) if width > 0]
    linear = scaledmm.Linear(
        config,
        weight.detach().contiguous(),
        weight_scale.detach(),
        input_scale=None if input_scale is None else input_scale.detach(),
        input_zero_point=None if input_zero_point is None else input_zero_point.detach(),
        input_scale_ub=input_scale_ub,
        logical_widths=widths if len(widths) > 1 else [],
    )
    setattr(layer, _LINEAR, linear)
    setattr(layer, _OUTPUT, (linear.n, _TORCH_DTYPES[linear.input_dtype], _TORCH_DTYPES[linear.out_dtype]))
    layer.register_buffer(_HANDLE, scaledmm.torch.handle(linear), persistent=False)
    # MLA reads the weight of such a layer after loading, in the layout that it has now.
    if not getattr(layer, "_cpu_skip_gemm_dispatch", False):
        empty = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)
        layer.register_parameter(weight_name, empty)


def apply_packed(layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """y = x W^T (+ bias), x [..., K]. Traceable: one operator call."""
    n, input_dtype, out_dtype = getattr(layer, _OUTPUT)
    x, handle = x.to(input_dtype), getattr(layer, _HANDLE)
    if torch.compiler.is_compiling():
        return torch.ops.scaledmm.linear(x, handle, n, out_dtype, bias)
    return _core.apply_handle(handle, x, n, bias)  # the same without the dispatcher, which costs several times the call
