"""A drop-in for torch.nn.Linear that runs a quantized layer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from scaledmm import _core
from scaledmm._configs import Scheme, WeightScales, layer_config, weight_group
from scaledmm._core import Linear
from scaledmm.torch.ops import handle


class ScaledMMLinear(nn.Module):
    """y = x W^T (+ bias) with int8 or FP8 weights, packed for this machine.

    Its state dict has weight (codes [N, K]), weight_scale (f32) and bias (f32 or absent): what a checkpoint has. It
    loads such a dict, and also the dict of the nn.Linear that it replaced, whose weight it then quantizes.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        scheme: Scheme = "int8",
        *,
        weight_scales: WeightScales = "channel",
        block: tuple[int, int] = (128, 128),
        dtype: torch.dtype | None = None,
        kernel: str | None = None,
    ) -> None:
        """Quantizes a weight [N, K] of f32, bf16 or f16 and packs it. bias [N].

        scheme, weight_scales and block as in layer_config. Inputs and outputs are of `dtype`: the weight's if left
        out. The layer runs where the weight is; module.to(device) packs it anew there.
        Errors: ValueError for a weight that is not finite; UnsupportedError when no kernel fits, with every reason.
        """
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.scheme: Scheme = scheme
        self.dtype = dtype or weight.dtype
        self._weight_scales: WeightScales = weight_scales
        self._block = block
        self._bias = None if bias is None else bias.detach()
        codes, self._scale = self._quantize(weight)
        self._pack(codes, kernel)

    @classmethod
    def from_linear(cls, linear: nn.Linear, scheme: Scheme = "int8", **options: Any) -> "ScaledMMLinear":
        """The quantized form of a dense layer."""
        return cls(linear.weight, linear.bias, scheme, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or type(x) is not torch.Tensor:
            return torch.ops.scaledmm.linear(x, self._handle, self.out_features, self.dtype)
        return self.linear(x)  # the same without the dispatcher, which costs several times the call

    def extra_repr(self) -> str:
        kernel, bias = self.linear.kernel, self._bias is not None
        return f"{self.in_features}, {self.out_features}, {self.scheme}, {kernel}, bias={bias}"

    def codes(self) -> torch.Tensor:
        """The weight's codes [N, K], unpacked."""
        return self._host_codes().to(self._scale.device)

    def _host_codes(self) -> torch.Tensor:
        return torch.utils.dlpack.from_dlpack(self.linear.unpack())

    def _pack(self, codes: torch.Tensor, kernel: str | None) -> None:
        config = layer_config(
            self.scheme,
            self.out_features,
            self.in_features,
            weight_scales=self._weight_scales,
            block=self._block,
            input_dtype=self.dtype,
        )
        self.linear = Linear(config, codes, self._scale, bias=self._bias, kernel=kernel, device=self._scale.device)
        self._handle = handle(self.linear)

    def _quantize(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = "int8" if self.scheme.startswith("int8") else "e4m3fn"
        group = weight_group(self.scheme, self._weight_scales, self._block)
        codes, scale = _core.quantize_weight(weight.detach().cpu(), dtype, group)
        return codes, scale.to(weight.device)

    def _apply(self, fn: Any, recurse: bool = True) -> "ScaledMMLinear":
        """What .to(), .cuda() and .cpu() call. Only the device counts: codes and scales keep their dtypes."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = fn(self._scale).device
        if device != self._scale.device:
            codes = self._host_codes()
            self._scale = self._scale.to(device)
            self._bias = None if self._bias is None else self._bias.to(device)
            self._pack(codes, None)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold the codes; they are packed anew for the machine that reads them."""
        state = {key: value for key, value in self.__dict__.items() if key not in ("linear", "_handle")}
        return {**state, "codes": self.codes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        codes = state.pop("codes")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._pack(codes, None)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.codes()
        destination[prefix + "weight_scale"] = self._scale
        if self._bias is not None:
            destination[prefix + "bias"] = self._bias

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        keys = ("weight", "weight_scale", "bias")
        own: dict[str, Any] = {key: state_dict[prefix + key] for key in keys if prefix + key in state_dict}
        weight: Any = own.get("weight")
        scale: Any = own.get("weight_scale")
        bias: Any = own.get("bias")
        dense = weight is not None and weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
        needed = ["weight"] + ([] if dense else ["weight_scale"]) + ([] if self._bias is None else ["bias"])
        missing = [prefix + key for key in needed if key not in own]
        if strict:
            missing_keys.extend(missing)
            unexpected_keys.extend(prefix + "bias" for _ in [0] if bias is not None and self._bias is None)
        if missing:
            return
        try:
            codes, scale = self._quantize(weight) if dense else (weight, scale)
            self.linear.refill(codes, scale, bias=None if self._bias is None else bias.detach())
        except (ValueError, BufferError) as error:
            error_msgs.append(f"{prefix}weight: {error}")
            return
        self._scale = scale.to(self._scale.device, copy=True)
        if self._bias is not None:
            self._bias = bias.detach().clone()
