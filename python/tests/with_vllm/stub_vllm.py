"""A small vLLM: the modules that the plugin touches, with the chooser's rules as kernels.md 3 states them."""

from __future__ import annotations

import enum
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch


class PlatformEnum(enum.Enum):
    CUDA = "cuda"
    ROCM = "rocm"
    XPU = "xpu"
    CPU = "cpu"


class GroupShape(NamedTuple):
    row: int
    col: int


@dataclass(frozen=True)
class ScaleDesc:
    dtype: torch.dtype
    static: bool
    group_shape: GroupShape


@dataclass(frozen=True)
class QuantKey:
    dtype: torch.dtype
    scale: ScaleDesc
    scale2: ScaleDesc | None = None
    symmetric: bool = True


def fp8_key(static: bool, row: int, col: int) -> QuantKey:
    return QuantKey(torch.float8_e4m3fn, ScaleDesc(torch.float32, static, GroupShape(row, col)))


STATIC_TENSOR = fp8_key(True, -1, -1)
STATIC_CHANNEL = fp8_key(True, -1, 1)
DYNAMIC_TENSOR = fp8_key(False, -1, -1)
DYNAMIC_TOKEN = fp8_key(False, 1, -1)
STATIC_BLOCK = fp8_key(True, 128, 128)
DYNAMIC_GROUP = fp8_key(False, 1, 128)


@dataclass
class Int8ScaledMMLinearLayerConfig:
    is_static_input_scheme: bool
    is_channelwise: bool
    input_symmetric: bool


@dataclass
class FP8ScaledMMLinearLayerConfig:
    weight_quant_key: QuantKey
    activation_quant_key: QuantKey
    weight_shape: tuple[int, int]
    input_dtype: torch.dtype
    out_dtype: torch.dtype


class ScaledMMLinearKernel(ABC):
    @classmethod
    @abstractmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]: ...

    @classmethod
    @abstractmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]: ...

    def __init__(self, c: Any, layer_param_names: list[str]) -> None:
        assert self.can_implement(c)[0]
        self.config = c
        self.layer_param_names = layer_param_names

    @abstractmethod
    def process_weights_after_loading(self, layer: torch.nn.Module) -> None: ...

    @abstractmethod
    def apply_weights(self, layer: torch.nn.Module, x: Any, bias: Any = None) -> torch.Tensor: ...

    def _get_layer_params(self, layer: torch.nn.Module) -> tuple[Any, ...]:
        return tuple(getattr(layer, name, None) for name in self.layer_param_names)


class Int8ScaledMMLinearKernel(ScaledMMLinearKernel, ABC):
    pass


class FP8ScaledMMLinearKernel(ScaledMMLinearKernel, ABC):
    @abstractmethod
    def apply_scaled_mm(self, **kwargs: Any) -> torch.Tensor: ...


class BlockParams(SimpleNamespace):
    WEIGHT = "weight"


class Fp8BlockScaledMMLinearKernel(ABC):
    apply_input_quant = True

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    @abstractmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]: ...

    @abstractmethod
    def apply_block_scaled_mm(self, A: Any, B: Any, As: Any, Bs: Any) -> torch.Tensor: ...

    def _get_layer_params(self, layer: torch.nn.Module) -> BlockParams:
        return BlockParams(
            weight=layer.weight,
            weight_scale=getattr(layer, "weight_scale", None),
            weight_scale_inv=getattr(layer, "weight_scale_inv", None),
        )


def other_kernel(name: str, supported: bool = True) -> type:
    """One of vLLM's own."""
    reason = None if supported else "requires AMX."
    return type(
        name,
        (),
        {
            "is_supported": classmethod(lambda cls, cc=None: (supported, reason)),
            "can_implement": classmethod(lambda cls, config: (True, None)),
        },
    )


class StubVllm:
    """What a test changes and asks."""

    def __init__(self, platform: PlatformEnum) -> None:
        self.disabled: set[str] = set()
        self.backend: set[type] | None = None
        self.platform = SimpleNamespace(
            _enum=platform,
            device_type="cuda" if platform is PlatformEnum.ROCM else platform.value,
            dispatch_key="CUDA" if platform is PlatformEnum.ROCM else platform.name,
            is_cpu=lambda: platform is PlatformEnum.CPU,
            is_cuda=lambda: platform is PlatformEnum.CUDA,
            is_rocm=lambda: platform is PlatformEnum.ROCM,
            fp8_dtype=lambda: torch.float8_e4m3fn,
        )
        self.linear = ModuleType("vllm.model_executor.kernels.linear")
        for kind in (
            Int8ScaledMMLinearLayerConfig,
            FP8ScaledMMLinearLayerConfig,
            Int8ScaledMMLinearKernel,
            FP8ScaledMMLinearKernel,
            Fp8BlockScaledMMLinearKernel,
        ):
            setattr(self.linear, kind.__name__, kind)
        for name in ("INT8", "FP8", "FP8_BLOCK", "WFP8A16"):
            own = [] if name == "WFP8A16" else [other_kernel(f"Best{name}", False), other_kernel(name)]
            setattr(self.linear, f"_POSSIBLE_{name}_KERNELS", {p: list(own) for p in PlatformEnum})
        self.custom_ops = ModuleType("vllm._custom_ops")
        self.custom_ops.scaled_fp8_quant = lambda *args, **kwargs: (_ for _ in ()).throw(AttributeError("no such op"))
        self.layer_utils = ModuleType("vllm.model_executor.layers.utils")
        self.layer_utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm
        self.fp8_method = type("Fp8LinearMethod", (), {"block_quant": False, **_method()})
        self.scheme = type("CompressedTensorsW8A8Fp8", (), _method())

    def list_of(self, name: str) -> list[type]:
        kernels: list[type] = getattr(self.linear, f"_POSSIBLE_{name}_KERNELS")[self.platform._enum]
        return kernels

    def choose(self, name: str, config: Any) -> type:
        """The chooser: filter by backend, skip the disabled, take the first that says yes twice."""
        kernels = self.list_of(name)
        if self.backend is not None:
            kernels = [kernel for kernel in kernels if kernel in self.backend] or kernels
        reasons = []
        for kernel in kernels:
            if kernel.__name__ in self.disabled:
                reasons.append(f" {kernel.__name__} is disabled by environment variable")
                continue
            for question, argument in ((kernel.is_supported, None), (kernel.can_implement, config)):
                ok, reason = question(argument)
                if not ok:
                    reasons.append(f"{kernel.__name__} {reason}.")
                    break
            else:
                return kernel
        raise ValueError("Failed to find a kernel. Reasons:\n" + "\n".join(reasons))

    @contextmanager
    def imported(self) -> Iterator[StubVllm]:
        """Stands in the place of vllm until the end."""
        quantization = "vllm.model_executor.layers.quantization"
        schemes = f"{quantization}.compressed_tensors.schemes"
        modules = {name: ModuleType(name) for name in ("vllm", "vllm.model_executor", "vllm.model_executor.kernels")}
        modules |= {name: ModuleType(name) for name in ("vllm.model_executor.layers", quantization)}
        modules |= {name: ModuleType(name) for name in (f"{quantization}.compressed_tensors", schemes)}
        modules["vllm.platforms"] = ModuleType("vllm.platforms")
        modules["vllm.platforms"].current_platform = self.platform
        modules["vllm.model_executor.kernels.linear"] = self.linear
        modules["vllm._custom_ops"] = self.custom_ops
        modules["vllm.model_executor.layers.utils"] = self.layer_utils
        modules[f"{quantization}.fp8"] = ModuleType(f"{quantization}.fp8")
        modules[f"{quantization}.fp8"].Fp8LinearMethod = self.fp8_method
        modules[f"{schemes}.compressed_tensors_w8a8_fp8"] = ModuleType("compressed_tensors_w8a8_fp8")
        modules[f"{schemes}.compressed_tensors_w8a8_fp8"].CompressedTensorsW8A8Fp8 = self.scheme
        before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "vllm"}
        for name in before:
            del sys.modules[name]
        sys.modules.update(modules)
        try:
            yield self
        finally:
            for name in modules:
                sys.modules.pop(name, None)
            sys.modules.update(before)


class BlockQuantScaleParameter(torch.nn.Parameter):
    """Scales with the loader that models call."""

    weight_loader: Any

    def __new__(cls, data: torch.Tensor, input_dim: int, output_dim: int, weight_loader: Any) -> Any:
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data: torch.Tensor, input_dim: int, output_dim: int, weight_loader: Any) -> None:
        self.weight_loader = weight_loader


def load_over(param: torch.nn.Parameter, loaded: torch.Tensor, part: object = None) -> None:
    raise AssertionError("vLLM's loader, which puts scales of one part over those of another")


def dispatch_cpu_unquantized_gemm(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Chooses torch's linear, as vLLM does where it has no GEMM of its own."""
    layer.cpu_linear = torch.nn.functional.linear


def _method() -> dict[str, Any]:
    def create_weights(self: Any, layer: torch.nn.Module, in_features: int, widths: list[int], **extra: Any) -> None:
        layer.logical_widths = widths
        blocks = (-(-sum(widths) // 128), -(-in_features // 128))
        scale = BlockQuantScaleParameter(torch.empty(blocks, dtype=torch.float32), 1, 0, load_over)
        scale.scale_type = "weight_scale"
        layer.register_parameter(extra.get("scale_name", "weight_scale_inv"), scale)

    def process_weights_after_loading(self: Any, layer: torch.nn.Module) -> None:
        layer.was_requantized = True

    def apply(self: Any, layer: torch.nn.Module, x: Any, bias: Any = None) -> str:
        return "vLLM's own"

    return {
        "create_weights": create_weights,
        "process_weights_after_loading": process_weights_after_loading,
        "apply": apply,
    }
