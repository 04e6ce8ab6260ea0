"""The kernel classes that vLLM's chooser sees, over the base classes of the vLLM that is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import scaledmm
from scaledmm.vllm.blocks import block_height
from scaledmm.vllm.keys import fp8_config, int8_config, is_block
from scaledmm.vllm.packed import apply_packed, pack_layer
from scaledmm.vllm.report import say_what_waits

Answer = tuple[bool, str | None]

# Any shape serves to ask about INT8: vLLM's description has none.
_TYPICAL_SHAPE = (512, 512)


def device_of(platform: Any) -> str:
    """The library's name of the device that a platform's layers run on in this process."""
    return "cpu" if platform.is_cpu() else f"cuda:{torch.cuda.current_device()}"


def answer_of(platform: Any, describe: Callable[[], Any]) -> Answer:
    """What the library says about a layer, for vLLM's chooser. The reference kernel is slow: it does not count."""
    say_what_waits()
    try:
        selection = scaledmm.explain(describe(), device_of(platform))
    except Exception as error:  # the chooser must go on to the next kernel
        return False, f"cannot ask scaledmm about the layer: {error}"
    if selection.kernel is None:
        return False, "has no kernel: " + "; ".join(f"{c.kernel}: {c.reason}" for c in selection.candidates if not c.ok)
    if selection.kernel == "reference":
        return False, "has only its reference kernel for this layer on this machine"
    return True, None


def platform_answer(platform: Any) -> Answer:
    """Whether this build of the library has kernels for a vLLM platform. It asks no driver: vLLM may fork later."""
    if platform.is_cpu():
        return True, None
    device = "cuda" if platform.is_cuda() else "hip" if platform.is_rocm() else platform.device_type
    if not any(kernel.device == device for kernel in scaledmm.kernels()):
        return False, f"has no {device} kernels in this build"
    if not torch._C._dispatch_has_kernel_for_dispatch_key("scaledmm::linear", platform.dispatch_key):
        return False, f"has no torch operator for {platform.dispatch_key} tensors"
    return True, None


def _shared(platform: Any) -> type:
    class Shared:
        """What the classes share: whether the machine can run them, and the call."""

        @classmethod
        def is_supported(cls, compute_capability: int | None = None) -> Answer:
            return platform_answer(platform)

        def apply_weights(
            self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None, **kwargs: Any
        ) -> torch.Tensor:
            return apply_packed(layer, x, bias)

    return Shared


def int8_kernel(base: Any, platform: Any) -> type:
    """A class over Int8ScaledMMLinearKernel."""

    class ScaledmmInt8LinearKernel(_shared(platform), base):  # type: ignore[misc]
        """INT8 weights and activations (W8A8): exact integer sums, scales and bias in f32, one rounding."""

        @classmethod
        def can_implement(cls, c: Any) -> Answer:
            return answer_of(platform, lambda: int8_config(c, _TYPICAL_SHAPE, torch.get_default_dtype()))

        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            weight, scale, input_scale, input_zero_point, _ = self._get_layer_params(layer)
            is_static = self.config.is_static_input_scheme
            pack_layer(
                layer,
                int8_config(self.config, tuple(weight.shape), torch.get_default_dtype()),
                weight,
                scale,
                weight_name=self.layer_param_names[0],
                input_scale=input_scale if is_static else None,
                input_zero_point=input_zero_point if is_static and not self.config.input_symmetric else None,
            )

    return ScaledmmInt8LinearKernel


def fp8_kernel(base: Any, platform: Any) -> type:
    """A class over FP8ScaledMMLinearKernel."""

    class ScaledmmFP8LinearKernel(_shared(platform), base):  # type: ignore[misc]
        """FP8 weights with a scale for each tensor, fused part or channel; activations as the kernel takes them."""

        weight_only = False

        @classmethod
        def can_implement(cls, c: Any) -> Answer:
            return answer_of(platform, lambda: fp8_config(c, weight_only=cls.weight_only))

        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            """For weights as vLLM's methods hand them over: [K, N], or [N, K] in blocks."""
            weight = getattr(layer, self.layer_param_names[0])
            if not is_block(self.config.weight_quant_key):
                weight = weight.t()
            self.pack_stored(layer, weight)

        def pack_stored(self, layer: Any, weight: torch.Tensor) -> None:
            """The same for a weight [N, K] and scales as the checkpoint has them: one for each fused part, too."""
            weight_name, scale_name, input_scale_name, bound_name = self.layer_param_names
            is_static = self.config.activation_quant_key.scale.static and not self.weight_only
            scale = getattr(layer, scale_name, None)
            bound = getattr(layer, bound_name, None)
            pack_layer(
                layer,
                fp8_config(self.config, weight_only=self.weight_only),
                weight,
                layer.weight_scale_inv if scale is None else scale,
                weight_name=weight_name,
                input_scale=getattr(layer, input_scale_name, None) if is_static else None,
                input_scale_ub=None if bound is None else float(bound),
            )

        def apply_scaled_mm(self, **kwargs: Any) -> torch.Tensor:
            raise NotImplementedError("apply_weights is overridden")

    return ScaledmmFP8LinearKernel


def weight_only_kernel(fp8: Any) -> type:
    """A class over fp8_kernel's, for vLLM's list of weight-only kernels."""

    class ScaledmmWFP8A16LinearKernel(fp8):  # type: ignore[misc]
        """FP8 weights, activations as they are (W8A16)."""

        weight_only = True

    return ScaledmmWFP8A16LinearKernel


def fp8_block_kernel(base: Any, platform: Any) -> type:
    """A class over Fp8BlockScaledMMLinearKernel."""

    class ScaledmmFP8BlockLinearKernel(_shared(platform), base):  # type: ignore[misc]
        """FP8 weights with a scale for each block of any size."""

        apply_input_quant = False

        @classmethod
        def can_implement(cls, config: Any) -> Answer:
            return answer_of(platform, lambda: fp8_config(config, weight_only=False))

        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            params = self._get_layer_params(layer)
            scale = params.weight_scale if params.weight_scale_inv is None else params.weight_scale_inv
            height = block_height(layer, self.config.weight_quant_key.scale.group_shape[0])
            config = fp8_config(self.config, weight_only=False, block_height=height)
            pack_layer(layer, config, params.weight, scale, weight_name=params.WEIGHT)

        def apply_block_scaled_mm(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            raise NotImplementedError("apply_weights is overridden")

    return ScaledmmFP8BlockLinearKernel
