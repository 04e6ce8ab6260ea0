"""Layers that a checkpoint leaves dense in bf16, on CPUs without bf16 instructions.

There torch multiplies bf16 by bf16 at a few GFLOP/s once there are several rows, and reads weights for one row at half of
what memory gives. scaledmm.DenseLinear does both at the machine's limit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

import scaledmm
from scaledmm.vllm.wrapping import wrap_once

# By the address of the tensor that vLLM passes as the weight: a graph takes that tensor as an input, so none keeps a
# number of another process.
_packed: dict[int, scaledmm.DenseLinear] = {}

_FORGET = "scaledmm_forget_dense"  # an attribute of a layer

_library = torch.library.Library("scaledmm", "FRAGMENT")
_library.define("dense_linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor")


def lacks_bf16() -> bool:
    """Whether this CPU has no instruction that multiplies bf16."""
    return not torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported()


def dense_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """y = x W^T (+ bias), x [..., K] and y [..., N] bf16; weight is what pack_dense left in the layer.

    Errors: KeyError for a weight that was not packed.
    """
    result: torch.Tensor = _packed[weight.data_ptr()](x.contiguous(), bias)
    return result


def _fake_dense_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_library.impl("dense_linear", dense_linear, "CPU")
torch.library.register_fake("scaledmm::dense_linear", _fake_dense_linear, lib=_library)


def pack_dense(layer: torch.nn.Module, keep_weight: bool) -> None:
    """Packs layer.weight [N, K] bf16. Without keep_weight one element stands for it, of the same shape."""
    weight = layer.weight
    dense = scaledmm.DenseLinear(weight.detach())
    if not keep_weight:
        stand_in = weight.new_zeros(1).expand(weight.shape)
        weight = layer.weight = torch.nn.Parameter(stand_in, requires_grad=False)
    if (forget := getattr(layer, _FORGET, None)) is not None:
        forget()
    _packed[weight.data_ptr()] = dense
    setattr(layer, _FORGET, weakref.finalize(layer, _packed.pop, weight.data_ptr(), None))


def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """dense_linear, traceable: one operator call."""
    if torch.compiler.is_compiling():
        result: torch.Tensor = torch.ops.scaledmm.dense_linear(x, weight, bias)
        return result
    return dense_linear(x, weight, bias)


def pack_dense_layers(utils: Any) -> bool:
    """Wraps vLLM's choice of a dense CPU GEMM. Where it is torch's linear on bf16, it becomes ours.

    False: that was done before.
    """
    return wrap_once(utils, "dispatch_cpu_unquantized_gemm", _wrapper)


def _wrapper(dispatch: Callable[..., None]) -> Callable[..., None]:
    def dispatch_with_packing(layer: torch.nn.Module, remove_weight: bool) -> None:
        dispatch(layer, remove_weight)
        weight = layer.weight
        # Where vLLM has packed the weight for a GEMM of its own, none is left.
        if weight.dtype is torch.bfloat16 and weight.ndim == 2 and weight.numel() > 0 and not weight.is_meta:
            pack_dense(layer, keep_weight=not remove_weight)
            layer.cpu_linear = call

    return dispatch_with_packing
