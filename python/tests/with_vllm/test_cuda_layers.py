"""The kernel classes on a GPU, made for a stub of vLLM's CUDA platform. Skipped where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import stub_vllm
import torch
from stub_vllm import FP8ScaledMMLinearLayerConfig, Int8ScaledMMLinearLayerConfig, PlatformEnum, StubVllm
from test_layers import FP8_NAMES, INT8_NAMES, fp8_exact, fp8_weight, int8_exact, int8_weight, layer_of

import scaledmm.vllm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

N, K = 96, 160


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubVllm]:
    monkeypatch.setenv("SCALEDMM_VLLM", "1")
    with StubVllm(PlatformEnum.CUDA).imported() as stub:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        scaledmm.vllm.register()
        yield stub
        torch.set_default_dtype(default)


def on_gpu(layer: torch.nn.Module) -> Any:
    return layer.to("cuda")


def x_of(rows: int) -> torch.Tensor:
    return torch.randn(rows, K, dtype=torch.float32).to(torch.bfloat16)


def check(y: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    assert y.device.type == "cuda" and y.dtype == torch.bfloat16
    assert (y.cpu().double() - exact).abs().max() <= tolerance * exact.abs().max()


def test_int8_runs_on_the_card(vllm: StubVllm) -> None:
    config = Int8ScaledMMLinearLayerConfig(False, True, True)
    kernel = vllm.choose("INT8", config)(config, INT8_NAMES)
    assert type(kernel).__name__ == "ScaledmmInt8LinearKernel"
    weight, scale = int8_weight(), torch.rand(N, 1, dtype=torch.float32) + 0.01
    layer = on_gpu(layer_of(weight=weight, weight_scale=scale, input_scale=None, input_zero_point=None))
    kernel.process_weights_after_loading(layer)
    x, bias = x_of(7), torch.randn(N, dtype=torch.bfloat16)
    exact = int8_exact(x, weight, scale)
    check(kernel.apply_weights(layer, x.cuda()), exact, 2.0**-8)
    check(kernel.apply_weights(layer, x.cuda(), bias.cuda()), exact + bias.double(), 2.0**-7)


@pytest.mark.parametrize("widths", [(N,), (48, 24, 24)])
def test_fp8_runs_on_the_card_with_a_scale_for_each_part(vllm: StubVllm, widths: tuple[int, ...]) -> None:
    keys = (stub_vllm.STATIC_TENSOR, stub_vllm.DYNAMIC_TENSOR)
    config = FP8ScaledMMLinearLayerConfig(*keys, (N, K), torch.bfloat16, torch.bfloat16)
    method = vllm.fp8_method()
    method.fp8_linear = vllm.choose("FP8", config)(config, FP8_NAMES)
    weight = fp8_weight()
    scale = torch.tensor([0.5, 0.03, 0.002], dtype=torch.float32)[: len(widths)]
    layer = on_gpu(layer_of(widths, weight=weight, weight_scale=scale))
    method.process_weights_after_loading(layer)
    each = torch.repeat_interleave(scale, torch.tensor(widths)).reshape(N, 1)
    x = x_of(5)
    # The card rounds activations to FP8 with one scale.
    q, x_scale = scaledmm.scaled_fp8_quant(x, group=scaledmm.GroupShape.PER_TENSOR)
    exact = fp8_exact((q.float() * x_scale).double(), weight, each)
    check(method.fp8_linear.apply_weights(layer, x.cuda()), exact, 2.0**-7)
