"""Custom operators: torch.ops.scaledmm.linear and the quantizers, with fake kernels for torch.compile.

A graph refers to a layer by its handle: a small tensor that is an input of the graph, so that no address and no number
of this process is compiled into it.
"""

from collections.abc import Callable
from typing import Any

import torch

from scaledmm import _core
from scaledmm._core import GroupShape, Linear

_library = torch.library.Library("scaledmm", "FRAGMENT")
_library.define("linear(Tensor x, Tensor handle, int n, ScalarType out_dtype, Tensor? bias=None) -> Tensor")
_library.define(
    "linear_quantized(Tensor q, Tensor scale, Tensor? zero_point, Tensor handle, int n, ScalarType out_dtype) -> Tensor"
)
_library.define("scaled_int8_quant(Tensor x) -> (Tensor, Tensor)")
_library.define("scaled_int8_azp_quant(Tensor x) -> (Tensor, Tensor, Tensor)")
_library.define("scaled_fp8_quant(Tensor x, int group_row=1, int group_col=-1) -> (Tensor, Tensor)")


def handle(layer: Linear) -> torch.Tensor:
    """What names a layer in a graph: uint8 [8]. Keep the layer alive as long as the tensor is used.

    Of this process only: make it anew after loading a compiled graph in another one.
    """
    return torch.frombuffer(bytearray(layer.handle.to_bytes(8, "little")), dtype=torch.uint8)


def linear(x: torch.Tensor, layer: Linear) -> torch.Tensor:
    """y = x W^T (+ bias) as an operator. Shapes, dtypes and errors are those of Linear.__call__."""
    return torch.ops.scaledmm.linear(x, handle(layer), layer.n, torch_dtype(layer.out_dtype))


def torch_dtype(name: str) -> torch.dtype:
    """torch.bfloat16 for "bf16"."""
    return _TORCH_DTYPES[name]


_TORCH_DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "int8": torch.int8,
    "e4m3fn": torch.float8_e4m3fn,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2": torch.float8_e5m2,
}


def _checked(y: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    if y.dtype is not out_dtype:
        raise ValueError(f"the layer gives {y.dtype}, the call says {out_dtype}")
    return y


def _plain(x: torch.Tensor) -> torch.Tensor:
    """x without its wish for a gradient, which is no concern of inference."""
    return x.detach() if x.requires_grad else x


def _linear(
    x: torch.Tensor, handle: torch.Tensor, n: int, out_dtype: torch.dtype, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if x.requires_grad and torch.is_grad_enabled():
        return _NoGradient.apply(x, _linear, handle, n, out_dtype, bias)  # type: ignore[no-untyped-call]
    return _checked(_core.apply_handle(handle, _plain(x), n, None if bias is None else _plain(bias)), out_dtype)


def _linear_quantized(
    q: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    handle: torch.Tensor,
    n: int,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    return _checked(_core.apply_handle_quantized(handle, q, _plain(scale), zero_point, n), out_dtype)


_NO_GRADIENT = "scaledmm layers are for inference: they have no gradient; run the model under torch.no_grad()"


class _NoGradient(torch.autograd.Function):
    """A call whose backward pass is an error. Only calls that want a gradient take this way: it costs several calls."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, function: Callable[..., torch.Tensor], *rest: Any) -> torch.Tensor:
        return function(x, *rest)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        raise RuntimeError(_NO_GRADIENT)


def _scaled_int8_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q, scale, _ = _core.scaled_int8_quant(x)
    return q, scale


def _scaled_int8_azp_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _core.scaled_int8_quant(x, symmetric=False)


def _scaled_fp8_quant(x: torch.Tensor, group_row: int = 1, group_col: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
    return _core.scaled_fp8_quant(x, group=GroupShape(group_row, group_col))


_KERNELS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "linear_quantized": _linear_quantized,
    "scaled_int8_quant": _scaled_int8_quant,
    "scaled_int8_azp_quant": _scaled_int8_azp_quant,
    "scaled_fp8_quant": _scaled_fp8_quant,
}
for _name, _kernel in _KERNELS.items():
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _kernel, _key)
        # Straight through: a Python kernel for gradients costs more than a small layer.
        _library.impl(_name, torch.library.fallthrough_kernel, f"Autograd{_key}")


@torch.library.register_fake("scaledmm::linear", lib=_library)
def _(
    x: torch.Tensor, handle: torch.Tensor, n: int, out_dtype: torch.dtype, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(_NO_GRADIENT)
    return x.new_empty((*x.shape[:-1], n), dtype=out_dtype)


@torch.library.register_fake("scaledmm::linear_quantized", lib=_library)
def _(
    q: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    handle: torch.Tensor,
    n: int,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    return q.new_empty((*q.shape[:-1], n), dtype=out_dtype)


@torch.library.register_fake("scaledmm::scaled_int8_quant", lib=_library)
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


@torch.library.register_fake("scaledmm::scaled_int8_azp_quant", lib=_library)
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = (*x.shape[:-1], 1)
    return (
        x.new_empty(x.shape, dtype=torch.int8),
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty(rows, dtype=torch.int32),
    )


@torch.library.register_fake("scaledmm::scaled_fp8_quant", lib=_library)
def _(x: torch.Tensor, group_row: int = 1, group_col: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
    scales: tuple[int, ...] = (1,)
    if group_row == 1:
        scales = (*x.shape[:-1], 1 if group_col < 0 else -(-x.shape[-1] // group_col))
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn), x.new_empty(scales, dtype=torch.float32)
