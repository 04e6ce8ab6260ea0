"""vLLM's descriptions of quantized layers in scaledmm's terms."""

from __future__ import annotations

from typing import Any

import scaledmm


def quant_key(key: Any) -> scaledmm.QuantKey:
    """A vLLM QuantKey as ours. Errors: ValueError for scales on scales and for dtypes that scaledmm does not know."""
    if key.scale2 is not None:
        raise ValueError(f"{key} has a second level of scales")
    row, column = key.scale.group_shape
    scale = scaledmm.ScaleDesc(scaledmm.GroupShape(row, column), is_static=key.scale.static, dtype=key.scale.dtype)
    return scaledmm.QuantKey(key.dtype, scale, symmetric=key.symmetric)


def is_block(key: Any) -> bool:
    """Whether scales cover blocks of rows and columns of the stored weight."""
    row, column = key.scale.group_shape
    return row > 0 and column > 0


def fp8_config(
    config: Any, *, weight_only: bool, block_height: int | None = None
) -> scaledmm.FP8ScaledMMLinearLayerConfig:
    """A vLLM FP8ScaledMMLinearLayerConfig as ours.

    Block weights (bn, bk) take activations in groups of bk, whatever group vLLM names (it names bn).
    """
    weight = quant_key(config.weight_quant_key)
    if block_height is not None:
        block = scaledmm.GroupShape(block_height, weight.scale.group_shape.col)
        weight = scaledmm.QuantKey(weight.dtype, scaledmm.ScaleDesc(block))
    activation = None if weight_only else quant_key(config.activation_quant_key)
    if activation is not None and is_block(config.weight_quant_key):
        group = scaledmm.GroupShape(1, weight.scale.group_shape.col)
        activation = scaledmm.QuantKey(activation.dtype, scaledmm.ScaleDesc(group, is_static=False))
    n, k = config.weight_shape
    return scaledmm.FP8ScaledMMLinearLayerConfig(
        weight_shape=(n, k),
        weight_quant_key=weight,
        activation_quant_key=activation,
        input_dtype=config.input_dtype,
        out_dtype=config.out_dtype or config.input_dtype,
    )


def int8_config(config: Any, shape: tuple[int, int], dtype: Any) -> scaledmm.Int8ScaledMMLinearLayerConfig:
    """A vLLM Int8ScaledMMLinearLayerConfig as ours; vLLM's has neither shape nor dtype."""
    return scaledmm.Int8ScaledMMLinearLayerConfig(
        weight_shape=shape,
        is_static_input_scheme=config.is_static_input_scheme,
        is_channelwise=config.is_channelwise,
        input_symmetric=config.input_symmetric,
        input_dtype=dtype,
        out_dtype=dtype,
    )
