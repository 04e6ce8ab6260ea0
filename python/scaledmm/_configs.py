"""Layer configurations in one call."""

from typing import Literal

from scaledmm._core import (
    FP8ScaledMMLinearLayerConfig,
    GroupShape,
    Int8ScaledMMLinearLayerConfig,
    QuantKey,
    ScaleDesc,
)
from scaledmm._types import DTypeLike, LayerConfig

Scheme = Literal["int8", "fp8_w8a8", "fp8_w8a16", "int8_block", "fp8_w8a8_block", "fp8_w8a16_block"]
WeightScales = Literal["channel", "tensor"]
Activations = Literal["token", "tensor", "static"]

SCHEMES = ("int8", "fp8_w8a8", "fp8_w8a16", "int8_block", "fp8_w8a8_block", "fp8_w8a16_block")


def layer_config(
    scheme: Scheme,
    n: int,
    k: int,
    *,
    weight_dtype: DTypeLike = "e4m3fn",
    weight_scales: WeightScales = "channel",
    block: tuple[int, int] = (128, 128),
    activations: Activations = "token",
    symmetric: bool = True,
    input_dtype: DTypeLike = "bf16",
    out_dtype: DTypeLike | None = None,
) -> LayerConfig:
    """The configuration of a layer with n output and k input features.

    weight_dtype is for FP8 schemes (int8 weights are int8). weight_scales is what one weight scale covers in the
    schemes without blocks, block what it covers in those with. activations is how those of int8 and fp8_w8a8 are
    quantized: a scale for each token, one for the whole tensor (FP8), or one from the checkpoint; those of
    fp8_w8a8_block have one for each token and block[1] features. symmetric=False gives int8 activations a zero point.
    out_dtype is input_dtype if left out.

    Errors: ValueError for an unknown word, and for a combination that has no meaning.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}; known are {', '.join(SCHEMES)}")
    if weight_scales not in ("channel", "tensor"):
        raise ValueError(f"unknown weight_scales {weight_scales!r}; known are channel, tensor")
    if activations not in ("token", "tensor", "static"):
        raise ValueError(f"unknown activations {activations!r}; known are token, tensor, static")
    out_dtype = input_dtype if out_dtype is None else out_dtype
    blocked = scheme.endswith("_block")
    if activations != "token" and (blocked or scheme == "fp8_w8a16"):
        raise ValueError(f"activations of {scheme} are not {activations}")
    if scheme.startswith("int8"):
        if activations == "tensor":
            raise ValueError("int8 activations have a scale for each token, or a static one")
        return Int8ScaledMMLinearLayerConfig(
            weight_shape=(n, k),
            is_static_input_scheme=activations == "static",
            is_channelwise=weight_scales == "channel",
            input_symmetric=symmetric,
            input_dtype=input_dtype,
            out_dtype=out_dtype,
            weight_block=GroupShape(*block) if blocked else None,
        )
    if not symmetric:
        raise ValueError("FP8 activations are symmetric")
    return FP8ScaledMMLinearLayerConfig(
        weight_shape=(n, k),
        weight_quant_key=QuantKey(weight_dtype, ScaleDesc(weight_group(scheme, weight_scales, block))),
        activation_quant_key=_fp8_activation_key(scheme, weight_dtype, activations, block),
        input_dtype=input_dtype,
        out_dtype=out_dtype,
    )


def weight_group(scheme: Scheme, weight_scales: WeightScales, block: tuple[int, int]) -> GroupShape:
    """What one weight scale covers."""
    if scheme.endswith("_block"):
        return GroupShape(*block)
    return GroupShape.PER_CHANNEL if weight_scales == "channel" else GroupShape.PER_TENSOR


def _fp8_activation_key(
    scheme: Scheme, dtype: DTypeLike, activations: Activations, block: tuple[int, int]
) -> QuantKey | None:
    if scheme.startswith("fp8_w8a16"):
        return None
    if scheme == "fp8_w8a8_block":
        return QuantKey(dtype, ScaleDesc(GroupShape(1, block[1]), is_static=False))
    group = GroupShape.PER_TOKEN if activations == "token" else GroupShape.PER_TENSOR
    return QuantKey(dtype, ScaleDesc(group, is_static=activations == "static"))
