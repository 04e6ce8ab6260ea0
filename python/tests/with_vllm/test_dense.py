"""bf16 layers on CPUs without bf16 instructions."""

from __future__ import annotations

import gc

import pytest
import torch
from stub_vllm import PlatformEnum, StubVllm
from torch._subclasses.fake_tensor import FakeTensorMode

import scaledmm.vllm
from scaledmm.vllm import dense

N, K = 21, 70


def bf16(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).bfloat16()


def dense_layer(weight: torch.Tensor) -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


@pytest.mark.parametrize("shape", [(1, K), (7, K), (65, K), (2, 3, 5, K), (0, K)])
@pytest.mark.parametrize("keep_weight", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_packed_layer_multiplies_as_torch_does(shape: tuple[int, ...], keep_weight: bool, with_bias: bool) -> None:
    weight, x = bf16(N, K), bf16(*shape, seed=2)
    bias = bf16(N, seed=3) if with_bias else None
    layer = dense_layer(weight)
    dense.pack_dense(layer, keep_weight)
    y = dense.call(x, layer.weight, bias)
    assert y.shape == (*shape[:-1], N) and y.dtype is torch.bfloat16
    wanted = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(y.double(), wanted, rtol=2**-8, atol=1e-4)


def test_a_weight_that_nobody_needs_is_freed_and_keeps_its_shape() -> None:
    layer = dense_layer(bf16(N, K))
    dense.pack_dense(layer, keep_weight=False)
    assert layer.weight.shape == (N, K) and layer.weight.untyped_storage().nbytes() == 2


def test_a_layer_that_goes_takes_its_packed_weight_along() -> None:
    before = len(dense._packed)
    layer = dense_layer(bf16(N, K))
    dense.pack_dense(layer, keep_weight=True)
    dense.pack_dense(layer, keep_weight=True)  # as after a reload
    assert len(dense._packed) == before + 1
    del layer
    gc.collect()
    assert len(dense._packed) == before


def test_a_weight_that_was_not_packed_is_an_error() -> None:
    with pytest.raises(KeyError):
        dense.dense_linear(bf16(1, K), bf16(N, K))


def test_the_operator_has_a_fake_kernel() -> None:
    with FakeTensorMode():  # addresses of tensors mean nothing there
        x, weight = torch.empty(2, 9, K, dtype=torch.bfloat16), torch.empty(N, K, dtype=torch.bfloat16)
        y = torch.ops.scaledmm.dense_linear(x, weight, None)
    assert y.shape == (2, 9, N) and y.dtype is torch.bfloat16


@pytest.mark.parametrize("keep_weight", [False, True])
def test_a_compiled_graph_takes_any_number_of_rows(keep_weight: bool) -> None:
    layer = dense_layer(bf16(N, K))
    dense.pack_dense(layer, keep_weight)
    compiled = torch.compile(lambda x: dense.call(x, layer.weight), fullgraph=True, dynamic=True, backend="eager")
    for rows in (3, 9, 40):
        x = bf16(rows, K)
        assert torch.equal(compiled(x), dense.call(x, layer.weight))


@pytest.mark.parametrize("lacks", [True, False])
def test_only_cpus_without_bf16_instructions_get_it(lacks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaledmm.vllm.install.lacks_bf16", lambda: lacks)
    with StubVllm(PlatformEnum.CPU).imported() as vllm:
        scaledmm.vllm.register()
        layer = dense_layer(bf16(N, K))
        vllm.layer_utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
        assert (layer.cpu_linear is dense.call) == lacks


@pytest.mark.parametrize("weight", [torch.randn(6, 32), torch.empty(0, dtype=torch.bfloat16), bf16(2, 3, 4)])
def test_layers_of_other_types_and_packed_ones_stay_with_vllm(weight: torch.Tensor) -> None:
    with StubVllm(PlatformEnum.CPU).imported() as vllm:
        dense.pack_dense_layers(vllm.layer_utils)
        layer = dense_layer(weight)
        vllm.layer_utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
        assert layer.cpu_linear is torch.nn.functional.linear
