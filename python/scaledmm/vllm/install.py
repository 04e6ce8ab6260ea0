"""Puts the kernels into vLLM's lists, and what they need beside."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from scaledmm._openmp import use_torch_threads
from scaledmm.vllm.blocks import keep_block_scales
from scaledmm.vllm.dense import lacks_bf16, pack_dense_layers
from scaledmm.vllm.fp8_methods import keep_part_scales, skip_dequantizing
from scaledmm.vllm.kernels import fp8_block_kernel, fp8_kernel, int8_kernel, weight_only_kernel
from scaledmm.vllm.quantizer import lacks_quantizer, supply_quantizer
from scaledmm.vllm.report import Moved, Report

_LINEAR = "vllm.model_executor.kernels.linear"
_METHODS = "vllm.model_executor.layers.quantization"

# The classes of this process, by the module they are made for and by family: registering again changes nothing.
_classes: dict[tuple[Any, str], type] = {}


class Family(NamedTuple):
    """One of vLLM's lists, and what our class for it counts on."""

    what: str
    list_name: str
    base: str
    make: Callable[[Any, Any], type]
    config: str  # the layer description, and what it must have
    config_fields: tuple[str, ...]
    arguments: int  # that the chooser makes a kernel from


_FP8_FIELDS = ("weight_quant_key", "activation_quant_key", "weight_shape", "input_dtype", "out_dtype")
_INT8_FIELDS = ("is_static_input_scheme", "is_channelwise", "input_symmetric")
_FP8_CONFIG = "FP8ScaledMMLinearLayerConfig"
_INT8_CONFIG = "Int8ScaledMMLinearLayerConfig"


def _make_weight_only(base: Any, platform: Any) -> type:
    return weight_only_kernel(fp8_kernel(base, platform))


INT8 = Family("INT8", "_POSSIBLE_INT8_KERNELS", "Int8ScaledMMLinearKernel", int8_kernel, _INT8_CONFIG, _INT8_FIELDS, 2)
FP8 = Family("FP8", "_POSSIBLE_FP8_KERNELS", "FP8ScaledMMLinearKernel", fp8_kernel, _FP8_CONFIG, _FP8_FIELDS, 2)
FP8_BLOCK = Family(
    "FP8 block",
    "_POSSIBLE_FP8_BLOCK_KERNELS",
    "Fp8BlockScaledMMLinearKernel",
    fp8_block_kernel,
    _FP8_CONFIG,
    _FP8_FIELDS,
    1,
)
FP8_WEIGHT_ONLY = Family(
    "FP8 weight-only",
    "_POSSIBLE_WFP8A16_KERNELS",
    "FP8ScaledMMLinearKernel",
    _make_weight_only,
    _FP8_CONFIG,
    _FP8_FIELDS,
    2,
)


def _need(module: Any, name: str) -> Any:
    value = getattr(module, name, None)
    if value is None:
        raise Moved(f"{module.__name__} has no {name}")
    return value


def _kernel(linear: Any, family: Family, platform: Any) -> type:
    """Our class for a list. Errors: Moved for what the chooser could not construct or the class could not read."""
    if (linear, family.what) not in _classes:
        _classes[linear, family.what] = family.make(_need(linear, family.base), platform)
    kernel = _classes[linear, family.what]
    config_fields = getattr(_need(linear, family.config), "__dataclass_fields__", {})
    missing = [name for name in family.config_fields if name not in config_fields]
    if missing:
        raise Moved(f"{family.config} has no {', '.join(missing)}")
    abstract = sorted(getattr(kernel, "__abstractmethods__", ()))
    if abstract:
        raise Moved(f"kernel classes must have {', '.join(abstract)}")
    parameters = inspect.signature(kernel).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(required) != family.arguments:
        raise Moved(f"{family.base} is made from {len(required)} arguments, not {family.arguments}")
    return kernel


def _described(kernel: Any, platform: Any) -> str:
    """A kernel of vLLM's, and why it cannot run here if it says so. On a GPU it is not asked: that may start CUDA."""
    if not platform.is_cpu():
        return str(kernel.__name__)
    try:
        supported, reason = kernel.is_supported()
    except Exception as error:  # it would fail in the chooser too, after ours
        supported, reason = False, f"{type(error).__name__}: {error}"
    return str(kernel.__name__) + ("" if supported else f" ({str(reason).rstrip('.')})")


def _put_first(linear: Any, family: Family, platform: Any) -> str | None:
    """Puts our kernel ahead of a list. What was done, or None: it was there. Errors: Moved."""
    kernel = _kernel(linear, family, platform)
    lists = _need(linear, family.list_name)
    theirs = lists.get(platform._enum) if isinstance(lists, dict) else None
    if not isinstance(theirs, list):
        raise Moved(f"{family.list_name} has no list for {platform._enum}")
    if kernel in theirs:
        return None
    before = ", ".join(_described(other, platform) for other in theirs) or "nothing"
    theirs.insert(0, kernel)
    return f"{family.what}: {_described(kernel, platform)} before {before}"


def _attempt(report: Report, what: str, action: Callable[[], str | None]) -> None:
    try:
        done = action()
    except Exception as error:  # the rest may still work, and vLLM must go on
        report.stand_aside(what, error)
        return
    if done is not None:
        report.replaced(done)


def _fp8_methods() -> tuple[Any, Any]:
    """vLLM's two methods for FP8 layers: of `fp8` checkpoints and of compressed-tensors."""
    fp8 = importlib.import_module(f"{_METHODS}.fp8")
    compressed = importlib.import_module(f"{_METHODS}.compressed_tensors.schemes.compressed_tensors_w8a8_fp8")
    return _need(fp8, "Fp8LinearMethod"), _need(compressed, "CompressedTensorsW8A8Fp8")


def _keep_part_scales(linear: Any, platform: Any) -> str | None:
    """Exact per-tensor scales of fused layers, in both methods."""
    kernel = _kernel(linear, FP8, platform)
    fp8, compressed = _fp8_methods()
    wrapped = keep_part_scales(fp8, kernel, lambda method: not method.block_quant)
    keep_part_scales(compressed, kernel, _is_tensor_strategy)
    skip_dequantizing(fp8, kernel)
    return "fused FP8 layers keep a scale for each part (vLLM would quantize them again)" if wrapped else None


def _keep_block_scales(linear: Any, platform: Any) -> str | None:
    """Exact block scales of fused layers whose parts are not whole blocks, in both methods."""
    kernel = _kernel(linear, FP8_BLOCK, platform)
    wrapped = [keep_block_scales(method, kernel) for method in _fp8_methods()]
    return "fused FP8 layers keep all block scales (vLLM would load some over others)" if any(wrapped) else None


def _is_tensor_strategy(scheme: Any) -> bool:
    return str(getattr(scheme.strategy, "value", scheme.strategy)) == "tensor"


def _supply_quantizer(platform: Any) -> str | None:
    custom_ops = importlib.import_module("vllm._custom_ops")
    _need(custom_ops, "scaled_fp8_quant")
    if not lacks_quantizer() or not supply_quantizer(custom_ops, platform.fp8_dtype()):
        return None
    return "scaled_fp8_quant (this build of vLLM has no native one)"


def _pack_dense() -> str | None:
    if not lacks_bf16():
        return None
    utils = importlib.import_module("vllm.model_executor.layers.utils")
    _need(utils, "dispatch_cpu_unquantized_gemm")
    if not pack_dense_layers(utils):
        return None
    return "dense bf16 layers: DenseLinear before torch's linear (this CPU has no bf16 instructions)"


def install(report: Report, everywhere: bool) -> None:
    """Does everything that can be done with the vLLM that is there, on GPUs only if `everywhere`.

    Errors: what importing vLLM raises.
    """
    platform = importlib.import_module("vllm.platforms").current_platform
    if not platform.is_cpu() and not everywhere:
        return
    linear = importlib.import_module(_LINEAR)
    importlib.import_module("scaledmm.torch")  # defines the operator
    use_torch_threads()  # again: a forked worker has lost them
    for family in (INT8, FP8, FP8_BLOCK, FP8_WEIGHT_ONLY):
        _attempt(report, f"{family.what} layers", partial(_put_first, linear, family, platform))
    _attempt(report, "scales of fused FP8 layers", partial(_keep_part_scales, linear, platform))
    _attempt(report, "block scales of fused FP8 layers", partial(_keep_block_scales, linear, platform))
    if platform.is_cpu():
        _attempt(report, "the FP8 quantizer", partial(_supply_quantizer, platform))
        _attempt(report, "dense bf16 layers", _pack_dense)
