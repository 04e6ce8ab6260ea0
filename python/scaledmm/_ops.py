"""A product of quantized matrices in one call."""

import math
from typing import Any

from scaledmm import _core
from scaledmm._configs import layer_config
from scaledmm._core import Linear
from scaledmm._types import ArrayLike, DTypeLike, LayerConfig


def scaled_mm(
    x: ArrayLike,
    w: ArrayLike,
    x_scale: ArrayLike,
    w_scale: ArrayLike,
    *,
    out_dtype: DTypeLike = "f32",
    bias: ArrayLike | None = None,
    x_zero_point: ArrayLike | None = None,
    block: tuple[int, int] | None = None,
    kernel: str | None = None,
) -> Any:
    """y = (x_scale * (x - x_zero_point)) (w_scale * w)^T (+ bias), both operands quantized.

    It packs w for one call: make a Linear of weights that are used again.

    Shapes: x [..., K] and w [N, K] int8, or both of one FP8 dtype; w_scale with 1 element, N, or with `block` [ceil(N
    / block[0]), ceil(K / block[1])]; x_scale with 1 element or one for each row, with FP8 blocks one for each row and
    block[1] of K; x_zero_point int32 likewise (int8); bias [N] f32, bf16 or f16; y [..., N].
    Errors: ValueError with both shapes; UnsupportedError when no kernel takes quantized activations of this kind.
    """
    weight, codes = _core.array(w), _core.array(x)
    if codes.dtype != weight.dtype:
        raise ValueError(f"x is {codes.dtype} and w is {weight.dtype}: they must be of one dtype")
    if weight.ndim != 2:
        raise ValueError(f"w has shape {weight.shape}, must be [N, K]")
    integer = weight.dtype == "int8"
    scheme = ("int8" if integer else "fp8_w8a8") + ("_block" if block else "")
    n, k = weight.shape
    static = block is None and _elements(x_scale) == 1
    config = layer_config(
        scheme,  # type: ignore[arg-type]
        n,
        k,
        weight_dtype="e4m3fn" if integer else weight.dtype,
        weight_scales="tensor" if n != 1 and _elements(w_scale) == 1 else "channel",
        block=block or (128, 128),
        activations="static" if static else "token",
        symmetric=x_zero_point is None,
        out_dtype=out_dtype,
    )
    linear = Linear(
        config,
        w,
        w_scale,
        bias=bias,
        input_scale=x_scale if static else None,
        input_zero_point=x_zero_point if static else None,
        kernel=kernel or _kernel_for_codes(config),
    )
    return linear.apply_quantized(x, x_scale, x_zero_point)


def _elements(x: ArrayLike) -> int:
    return math.prod(_core.array(x).shape)


def _kernel_for_codes(config: LayerConfig) -> str:
    """The first kernel that runs the layer and takes its activations quantized."""
    selection = _core.explain(config)
    for candidate in selection.candidates:
        if candidate.ok and _core.input_quant_key(candidate.kernel, config) is not None:
            return candidate.kernel
    raise _core.UnsupportedError(f"no kernel takes quantized activations for {config}\n{selection}")
