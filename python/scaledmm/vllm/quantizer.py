"""The FP8 quantizer that some of vLLM's CPU builds lack."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

import scaledmm


def lacks_quantizer() -> bool:
    """Whether this build of vLLM has no native FP8 quantizer for CPUs. It may declare one all the same."""
    if not hasattr(torch.ops._C, "static_scaled_fp8_quant"):
        return True
    return not torch._C._dispatch_has_kernel_for_dispatch_key("_C::static_scaled_fp8_quant", "CPU")


def make_scaled_fp8_quant(fp8_dtype: Any) -> Any:
    """A function that stands for vllm._custom_ops.scaled_fp8_quant, by our quantizer (docs/quantization.md 3)."""

    def scaled_fp8_quant(
        input: torch.Tensor,
        scale: torch.Tensor | None = None,
        num_token_padding: int | None = None,
        scale_ub: torch.Tensor | None = None,
        use_per_token_if_dynamic: bool = False,
        output: torch.Tensor | None = None,
        group_shape: tuple[int, int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantizes [M, K] with one scale, given or found, or with one for each row, found.

        Errors: ValueError for static scales of other shapes.
        """
        if scale is not None and scale.numel() != 1:
            raise ValueError(f"scale has shape {tuple(scale.shape)}, this quantizer takes one element")
        bound = None if scale_ub is None else float(scale_ub)
        group = scaledmm.GroupShape(1 if use_per_token_if_dynamic else -1, -1)
        codes, used = scaledmm.scaled_fp8_quant(
            input.contiguous(), None if scale is None else scale.float(), group=group, scale_ub=bound, dtype=fp8_dtype
        )
        rows = input.shape[0]
        if output is None:
            padded = max(num_token_padding or 0, rows)
            output = torch.empty((padded, input.shape[1]), dtype=fp8_dtype, device=input.device)
        output[:rows] = codes
        if scale is not None:
            return output, scale
        if not use_per_token_if_dynamic:
            return output, used.reshape(1)
        scales = torch.ones((output.shape[0], 1), dtype=torch.float32, device=input.device)
        scales[:rows] = used.reshape(rows, 1)
        return output, scales

    return scaled_fp8_quant


def supply_quantizer(custom_ops: ModuleType, fp8_dtype: Any) -> bool:
    """Puts the function into vllm._custom_ops. False: it is there already."""
    if getattr(custom_ops.scaled_fp8_quant, "_scaledmm", False):
        return False
    function = make_scaled_fp8_quant(fp8_dtype)
    function._scaledmm = True
    custom_ops.scaled_fp8_quant = function  # type: ignore[attr-defined]
    return True
