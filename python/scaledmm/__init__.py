"""Quantized linear layers of language models (INT8, FP8) without PyTorch.

    import scaledmm
    layer = scaledmm.load("checkpoint")["model.layers.0.self_attn.q_proj"]
    y = layer(x)

Arrays of numpy, torch, jax and everything else with DLPack go in without a copy, and results come back in the framework
of x. See docs/python.md.
"""

from scaledmm._configs import layer_config
from scaledmm._core import (
    Array,
    BackendStatus,
    Candidate,
    CheckpointError,
    DenseLinear,
    Device,
    DeviceError,
    Error,
    FP8ScaledMMLinearLayerConfig,
    GroupShape,
    Int8ScaledMMLinearLayerConfig,
    KernelInfo,
    LayerRecord,
    Linear,
    QuantKey,
    ScaleDesc,
    Selection,
    StoredTensor,
    UnsupportedError,
    array,
    device,
    devices,
    explain,
    get_num_threads,
    kernels,
    quantize_weight,
    scaled_fp8_quant,
    scaled_int8_quant,
    select,
    set_num_threads,
    to_float32,
    version,
)
from scaledmm._ops import scaled_mm
from scaledmm._types import ArrayLike, DTypeLike, LayerConfig
from scaledmm.checkpoint import Checkpoint, CheckpointLayer, load

__version__ = version()

__all__ = [
    "Array",
    "ArrayLike",
    "BackendStatus",
    "Candidate",
    "Checkpoint",
    "CheckpointError",
    "CheckpointLayer",
    "DTypeLike",
    "DenseLinear",
    "Device",
    "DeviceError",
    "Error",
    "FP8ScaledMMLinearLayerConfig",
    "GroupShape",
    "Int8ScaledMMLinearLayerConfig",
    "KernelInfo",
    "LayerConfig",
    "LayerRecord",
    "Linear",
    "QuantKey",
    "ScaleDesc",
    "Selection",
    "StoredTensor",
    "UnsupportedError",
    "array",
    "device",
    "devices",
    "explain",
    "get_num_threads",
    "kernels",
    "layer_config",
    "load",
    "quantize_weight",
    "scaled_fp8_quant",
    "scaled_int8_quant",
    "scaled_mm",
    "select",
    "set_num_threads",
    "to_float32",
    "version",
]
