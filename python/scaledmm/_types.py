"""Names for what arguments may be."""

from typing import Any, Protocol, TypeAlias

from scaledmm._core import FP8ScaledMMLinearLayerConfig, Int8ScaledMMLinearLayerConfig


class ArrayLike(Protocol):
    """Anything with DLPack: arrays of numpy, torch, jax, cupy, and scaledmm.Array."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...


# A name ("bf16", "bfloat16", "float8_e4m3fn") or a dtype object of numpy, ml_dtypes, torch or jax.
DTypeLike: TypeAlias = Any

LayerConfig: TypeAlias = Int8ScaledMMLinearLayerConfig | FP8ScaledMMLinearLayerConfig
