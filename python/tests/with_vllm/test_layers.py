"""What the kernel classes do with a layer, on layers as vLLM hands them over after loading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import stub_vllm
import torch
from stub_vllm import FP8ScaledMMLinearLayerConfig, Int8ScaledMMLinearLayerConfig, PlatformEnum, StubVllm

import scaledmm
import scaledmm.vllm

N, K = 96, 160
FP8_NAMES = ["weight", "weight_scale", "input_scale", "input_scale_ub"]
INT8_NAMES = ["weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj"]


@pytest.fixture
def vllm() -> Iterator[StubVllm]:
    with StubVllm(PlatformEnum.CPU).imported() as stub:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)  # as vLLM does while it makes a model
        scaledmm.vllm.register()
        yield stub
        torch.set_default_dtype(default)


def layer_of(widths: Sequence[int] = (N,), **tensors: torch.Tensor | None) -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.logical_widths = list(widths)
    layer.prefix = "model.layers.0.self_attn.qkv_proj"
    for name, tensor in tensors.items():
        layer.register_parameter(name, None if tensor is None else torch.nn.Parameter(tensor, requires_grad=False))
    return layer


def int8_weight() -> torch.Tensor:
    return torch.randint(-127, 128, (N, K), dtype=torch.int8)


def fp8_weight() -> torch.Tensor:
    return torch.randn(N, K, dtype=torch.float32).mul(30).to(torch.float8_e4m3fn)


def activations(*leading: int) -> torch.Tensor:
    return torch.randn(*leading, K, dtype=torch.float32).to(torch.bfloat16)


def expect_close(y: torch.Tensor, exact: torch.Tensor) -> None:
    """Within the sum's own rounding and one rounding to bf16."""
    assert y.dtype == torch.bfloat16 and y.shape == exact.shape
    slack = exact.abs() * 2.0**-8 + exact.abs().amax(dim=-1, keepdim=True) * 2.0**-14
    assert bool(((y.double() - exact).abs() <= slack).all())


def int8_exact(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    largest = x.float().abs().amax(dim=-1, keepdim=True)
    codes = (x.float() * torch.full_like(largest, 127.0).div(largest)).round().double()
    return (codes @ weight.double().t()) * (largest / 127.0).double() * scale.double().reshape(-1)


@pytest.mark.parametrize("widths", [(N,), (48, 24, 24)])
@pytest.mark.parametrize("is_channelwise", [True, False])
def test_int8_with_dynamic_tokens(vllm: StubVllm, widths: tuple[int, ...], is_channelwise: bool) -> None:
    config = Int8ScaledMMLinearLayerConfig(False, is_channelwise, True)
    kernel = vllm.choose("INT8", config)(config, INT8_NAMES)
    weight = int8_weight()
    parts = torch.rand(len(widths), dtype=torch.float32) + 0.01
    scale = torch.rand(N, 1, dtype=torch.float32) + 0.01 if is_channelwise else parts
    each = scale if is_channelwise else torch.repeat_interleave(parts, torch.tensor(widths))
    layer = layer_of(widths, weight=weight, weight_scale=scale, input_scale=None, input_zero_point=None)
    kernel.process_weights_after_loading(layer)
    x = activations(5)
    expect_close(kernel.apply_weights(layer, x), int8_exact(x, weight, each))


def test_int8_with_a_static_zero_point(vllm: StubVllm) -> None:
    config = Int8ScaledMMLinearLayerConfig(True, True, False)
    kernel = vllm.choose("INT8", config)(config, INT8_NAMES)
    weight, scale = int8_weight(), torch.rand(N, 1, dtype=torch.float32) + 0.01
    step, zero = torch.tensor([0.05], dtype=torch.float32), torch.tensor([-9], dtype=torch.int8)
    layer = layer_of(weight=weight, weight_scale=scale, input_scale=step, input_zero_point=zero)
    kernel.process_weights_after_loading(layer)
    x = activations(3)
    codes = ((x.float() * (1 / step)).round() + zero).clamp(-128, 127).double()
    exact = ((codes - zero.double()) @ weight.double().t()) * step.double() * scale.double().reshape(-1)
    expect_close(kernel.apply_weights(layer, x), exact)


def test_leading_dimensions_bias_and_no_rows(vllm: StubVllm) -> None:
    config = Int8ScaledMMLinearLayerConfig(False, True, True)
    kernel = vllm.choose("INT8", config)(config, INT8_NAMES)
    weight, scale = int8_weight(), torch.rand(N, 1, dtype=torch.float32) + 0.01
    layer = layer_of(weight=weight, weight_scale=scale, input_scale=None, input_zero_point=None)
    kernel.process_weights_after_loading(layer)
    x, bias = activations(2, 3), torch.randn(N, dtype=torch.float32).mul(1000).to(torch.bfloat16)
    expect_close(kernel.apply_weights(layer, x, bias), int8_exact(x, weight, scale) + bias.double())
    assert kernel.apply_weights(layer, activations(0)).shape == (0, N)


def fp8_layer(vllm: StubVllm, config: FP8ScaledMMLinearLayerConfig, name: str = "FP8") -> Any:
    kind = vllm.choose(name, config)
    return kind(config) if name == "FP8_BLOCK" else kind(config, FP8_NAMES)


def fp8_exact(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x.double() @ (weight.float().double() * scale.double()).t()


@pytest.mark.parametrize("list_name", ["FP8", "WFP8A16"])
def test_fp8_by_channel(vllm: StubVllm, list_name: str) -> None:
    keys = (stub_vllm.STATIC_CHANNEL, stub_vllm.DYNAMIC_TOKEN)
    kernel = fp8_layer(vllm, FP8ScaledMMLinearLayerConfig(*keys, (N, K), torch.bfloat16, torch.bfloat16), list_name)
    weight, scale = fp8_weight(), torch.rand(N, 1, dtype=torch.float32) + 0.01
    layer = layer_of(weight=weight.t(), weight_scale=scale)
    kernel.process_weights_after_loading(layer)
    x = activations(7)
    expect_close(kernel.apply_weights(layer, x), fp8_exact(x, weight, scale))


@pytest.mark.parametrize("kind", ["fp8_method", "scheme"])
@pytest.mark.parametrize("widths", [(N,), (48, 24, 24)])
def test_fused_fp8_parts_keep_their_scales(vllm: StubVllm, kind: str, widths: tuple[int, ...]) -> None:
    keys = (stub_vllm.STATIC_TENSOR, stub_vllm.DYNAMIC_TENSOR)
    config = FP8ScaledMMLinearLayerConfig(*keys, (N, K), torch.bfloat16, torch.bfloat16)
    method = getattr(vllm, kind)()
    method.strategy = "tensor"
    method.fp8_linear = fp8_layer(vllm, config)
    weight = fp8_weight()
    scale = torch.tensor([0.5, 0.03, 0.002], dtype=torch.float32)[: len(widths)]
    layer = layer_of(widths, weight=weight, weight_scale=scale)
    method.process_weights_after_loading(layer)
    assert not hasattr(layer, "was_requantized")
    x = activations(4)
    each = torch.repeat_interleave(scale, torch.tensor(widths)).reshape(N, 1)
    expect_close(method.fp8_linear.apply_weights(layer, x), fp8_exact(x, weight, each))


def test_parts_fused_on_disk_share_the_scale_that_was_loaded(vllm: StubVllm) -> None:
    keys = (stub_vllm.STATIC_TENSOR, stub_vllm.DYNAMIC_TENSOR)
    method = vllm.fp8_method()
    method.fp8_linear = fp8_layer(vllm, FP8ScaledMMLinearLayerConfig(*keys, (N, K), torch.bfloat16, torch.bfloat16))
    weight, unset = fp8_weight(), torch.finfo(torch.float32).min
    layer = layer_of((48, 24, 24), weight=weight, weight_scale=torch.tensor([0.25, unset, unset], dtype=torch.float32))
    method.process_weights_after_loading(layer)
    x = activations(4)
    expect_close(method.fp8_linear.apply_weights(layer, x), fp8_exact(x, weight, torch.full((N, 1), 0.25)))


def test_methods_with_other_kernels_are_left_alone(vllm: StubVllm) -> None:
    method = vllm.fp8_method()
    method.fp8_linear = object()
    layer = layer_of(weight=fp8_weight(), weight_scale=torch.ones(1, dtype=torch.float32))
    method.process_weights_after_loading(layer)
    assert layer.was_requantized
    assert method.apply(layer, activations(1)) == "vLLM's own"


@pytest.mark.parametrize("scale_name", ["weight_scale", "weight_scale_inv"])
def test_fp8_blocks_with_ragged_edges(vllm: StubVllm, scale_name: str) -> None:
    keys = (stub_vllm.STATIC_BLOCK, stub_vllm.DYNAMIC_GROUP)
    config = FP8ScaledMMLinearLayerConfig(*keys, (N, K), torch.bfloat16, torch.bfloat16)
    kernel = fp8_layer(vllm, config, "FP8_BLOCK")
    weight, scale = fp8_weight(), torch.rand(1, 2, dtype=torch.float32) + 0.01
    layer = layer_of(weight=weight, **{scale_name: scale})
    kernel.process_weights_after_loading(layer)
    each = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:N, :K]
    x = activations(9)
    expect_close(kernel.apply_weights(layer, x), fp8_exact(x, weight, each))


BLOCK_KEYS = (stub_vllm.STATIC_BLOCK, stub_vllm.DYNAMIC_GROUP)


def block_layer(vllm: StubVllm, kind: str, widths: Sequence[int], scale_name: str) -> tuple[Any, torch.nn.Module]:
    """A kernel and a layer with scales to be loaded, as vLLM's method makes them."""
    config = FP8ScaledMMLinearLayerConfig(*BLOCK_KEYS, (sum(widths), K), torch.bfloat16, torch.bfloat16)
    method = getattr(vllm, kind)()
    method.fp8_linear = fp8_layer(vllm, config, "FP8_BLOCK")
    layer = torch.nn.Module()
    method.create_weights(layer, K, list(widths), scale_name=scale_name)
    return method.fp8_linear, layer


def part_scales(widths: Sequence[int]) -> list[torch.Tensor]:
    return [torch.rand(-(-width // 128), 2, dtype=torch.float32) + 0.01 for width in widths]


def rows_of(scale: torch.Tensor, rows: range) -> torch.Tensor:
    """Scales [rows, K] of the rows of a part."""
    return scale[[row // 128 for row in rows]].repeat_interleave(128, 1)[:, :K]


@pytest.mark.parametrize("kind,scale_name", [("fp8_method", "weight_scale_inv"), ("scheme", "weight_scale")])
@pytest.mark.parametrize("widths", [(192, 64, 64), (130, 258), (320, 200)])
def test_fp8_blocks_of_parts_that_end_inside_a_block(
    vllm: StubVllm, kind: str, scale_name: str, widths: tuple[int, ...]
) -> None:
    """No row of scales is lost: q and k of 192 and 64 rows have three rows of scales in the space of two."""
    kernel, layer = block_layer(vllm, kind, widths, scale_name)
    parts, scale = part_scales(widths), getattr(layer, scale_name)
    for name, part in zip("qkv" if len(widths) == 3 else (0, 1), parts, strict=True):
        scale.weight_loader(scale, part, name)
    weight = torch.randn(sum(widths), K, dtype=torch.float32).mul(30).to(torch.float8_e4m3fn)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    kernel.process_weights_after_loading(layer)
    each = torch.cat([rows_of(part, range(width)) for part, width in zip(parts, widths, strict=True)])
    x = activations(3)
    expect_close(kernel.apply_weights(layer, x), fp8_exact(x, weight, each))


def test_fp8_blocks_of_parts_that_are_fused_on_disk(vllm: StubVllm) -> None:
    widths = (192, 64, 64)
    kernel, layer = block_layer(vllm, "fp8_method", widths, "weight_scale_inv")
    (whole,), scale = part_scales([sum(widths)]), layer.weight_scale_inv
    scale.weight_loader(scale, whole)
    weight = torch.randn(sum(widths), K, dtype=torch.float32).mul(30).to(torch.float8_e4m3fn)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    kernel.process_weights_after_loading(layer)
    x = activations(3)
    expect_close(kernel.apply_weights(layer, x), fp8_exact(x, weight, rows_of(whole, range(sum(widths)))))


@pytest.mark.parametrize("rank", range(4))
def test_fp8_blocks_of_a_share_begin_inside_a_block(vllm: StubVllm, rank: int) -> None:
    """Four processes, two key heads: q's rows are a quarter each, k's and v's of every second process are the same."""
    widths = (96, 64, 64)
    kernel, layer = block_layer(vllm, "fp8_method", widths, "weight_scale_inv")
    layer.tp_rank, layer.tp_size, layer.num_kv_head_replicas = rank, 4, 2
    q, k, v = part_scales([4 * 96, 2 * 64, 2 * 64])
    scale = layer.weight_scale_inv
    for name, part in zip("qkv", (q, k, v), strict=True):
        scale.weight_loader(scale, part, name)
    shares = [range(96 * rank, 96 * rank + 96), *[range(64 * (rank // 2), 64 * (rank // 2) + 64)] * 2]
    each = torch.cat([rows_of(part, rows) for part, rows in zip((q, k, v), shares, strict=True)])
    height = 32  # divides 128, 96 and 64
    assert torch.equal(scale.repeat_interleave(height, 0).repeat_interleave(128, 1)[:, :K], each)

    whole = torch.arange(2 * 5, dtype=torch.float32).reshape(5, 2) + 1
    scale.weight_loader(scale, whole)
    starts = (0, 4 * 96, 4 * 96 + 2 * 64)
    shares = [range(start + rows[0], start + rows[-1] + 1) for start, rows in zip(starts, shares, strict=True)]
    each = torch.cat([rows_of(whole, rows) for rows in shares])
    assert torch.equal(scale.repeat_interleave(height, 0).repeat_interleave(128, 1)[:, :K], each)


def test_whole_blocks_keep_the_loader_of_vllm(vllm: StubVllm) -> None:
    _, layer = block_layer(vllm, "fp8_method", (256, 128), "weight_scale_inv")
    assert layer.weight_scale_inv.weight_loader is stub_vllm.load_over and layer.weight_scale_inv.shape == (3, 2)


def test_blocks_that_vllm_loaded_over_each_other_are_refused(vllm: StubVllm) -> None:
    """A method that the plugin does not know has made the layer."""
    widths = (192, 64)
    config = FP8ScaledMMLinearLayerConfig(*BLOCK_KEYS, (256, K), torch.bfloat16, torch.bfloat16)
    kernel = fp8_layer(vllm, config, "FP8_BLOCK")
    layer = layer_of(widths, weight=torch.zeros(256, K).to(torch.float8_e4m3fn), weight_scale_inv=torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"\[192, 64\] do not fill blocks of 128"):
        kernel.process_weights_after_loading(layer)


def test_plain_weights_are_freed_but_for_mla(vllm: StubVllm) -> None:
    keys = (stub_vllm.STATIC_BLOCK, stub_vllm.DYNAMIC_GROUP)
    config = FP8ScaledMMLinearLayerConfig(*keys, (N, K), torch.bfloat16, torch.bfloat16)
    for is_mla in (False, True):
        layer = layer_of(weight=fp8_weight(), weight_scale_inv=torch.ones(1, 2, dtype=torch.float32))
        layer._cpu_skip_gemm_dispatch = is_mla
        fp8_layer(vllm, config, "FP8_BLOCK").process_weights_after_loading(layer)
        assert tuple(layer.weight.shape) == ((N, K) if is_mla else (0,))


def test_new_weights_take_the_place_of_the_old(vllm: StubVllm) -> None:
    config = Int8ScaledMMLinearLayerConfig(False, True, True)
    kernel = vllm.choose("INT8", config)(config, INT8_NAMES)
    layer = layer_of(weight=int8_weight(), weight_scale=torch.ones(N, 1), input_scale=None, input_zero_point=None)
    kernel.process_weights_after_loading(layer)
    graph_input = layer.scaledmm_handle
    weight, scale = int8_weight(), torch.rand(N, 1, dtype=torch.float32) + 0.01
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scale, requires_grad=False)
    kernel.process_weights_after_loading(layer)
    # vLLM's reload copies what is new into the tensors that graphs hold.
    graph_input.copy_(layer.scaledmm_handle)
    layer.scaledmm_handle = graph_input
    x = activations(5)
    expect_close(kernel.apply_weights(layer, x), int8_exact(x, weight, scale))


def test_the_call_compiles_into_one_graph(vllm: StubVllm) -> None:
    config = Int8ScaledMMLinearLayerConfig(False, True, True)
    kernel = vllm.choose("INT8", config)(config, INT8_NAMES)
    weight, scale = int8_weight(), torch.rand(N, 1, dtype=torch.float32) + 0.01
    layer = layer_of(weight=weight, weight_scale=scale, input_scale=None, input_zero_point=None)
    kernel.process_weights_after_loading(layer)

    def double(x: torch.Tensor) -> torch.Tensor:
        return kernel.apply_weights(layer, x) * 2  # type: ignore[no-any-return]

    compiled = torch.compile(double, fullgraph=True, backend="eager", dynamic=True)
    for rows in (1, 6, 3):
        x = activations(rows)
        expect_close(compiled(x), int8_exact(x, weight, scale) * 2)


def test_a_weight_of_another_shape_is_refused_with_both(vllm: StubVllm) -> None:
    keys = (stub_vllm.STATIC_CHANNEL, stub_vllm.DYNAMIC_TOKEN)
    kernel = fp8_layer(vllm, FP8ScaledMMLinearLayerConfig(*keys, (N, K), torch.bfloat16, torch.bfloat16))
    layer = layer_of(weight=fp8_weight(), weight_scale=torch.ones(N, 1, dtype=torch.float32))  # [N, K], not [K, N]
    with pytest.raises(ValueError, match=r"\[160, 96\].*\[96, 160\]"):
        kernel.process_weights_after_loading(layer)


def test_the_quantizer_gives_the_nearest_codes(vllm: StubVllm) -> None:
    quantize = vllm.custom_ops.scaled_fp8_quant
    x = torch.randn(6, K, dtype=torch.float32)
    scale = torch.tensor(0.02, dtype=torch.float32)
    q, used = quantize(x, scale)
    limit = torch.finfo(torch.float8_e4m3fn).max
    expected = (x * (1 / scale)).clamp(-limit, limit).to(torch.float8_e4m3fn)
    assert used is scale and torch.equal(q.view(torch.uint8), expected.view(torch.uint8))
    q, used = quantize(x, use_per_token_if_dynamic=True, num_token_padding=9)
    assert q.shape == (9, K) and used.shape == (9, 1)
    assert torch.allclose(used[:6, 0], x.abs().amax(dim=1) / limit)
    output = torch.empty(6, K, dtype=torch.float8_e4m3fn)
    q, used = quantize(x, output=output)
    assert q is output and used.shape == (1,) and torch.allclose(used[0], x.abs().max() / limit)
    with pytest.raises(ValueError, match="one element"):
        quantize(x, torch.ones(6, 1))
