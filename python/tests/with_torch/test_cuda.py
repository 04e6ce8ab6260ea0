"""Layers on a GPU: torch's tensors where they are, on torch's current stream. Skipped where there is none."""

import copy

import pytest
import torch
from torch.library import opcheck

import scaledmm
import scaledmm.torch as scaledmm_torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

N, K = 384, 512
ops = torch.ops.scaledmm


def parts(scheme="int8", n=N, k=K, seed=0):
    """Codes, scales and a bias in the processor's memory."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n, k, generator=generator)
    codes, scale = scaledmm.quantize_weight(weight, "int8" if scheme == "int8" else "e4m3fn")
    return codes, scale, torch.randn(n, generator=generator)


def make(scheme="int8", device="cuda", dtype="bf16", with_bias=True, **options):
    codes, scale, bias = (tensor.to(device) for tensor in parts(scheme))
    config = scaledmm.layer_config(scheme, N, K, input_dtype=dtype)
    return scaledmm.Linear(config, codes, scale, bias=bias if with_bias else None, **options)


def activations(*leading, dtype=torch.bfloat16, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*leading, K, generator=generator).to(dtype)


def test_a_layer_runs_where_its_weight_is():
    assert make().device == "cuda:0"
    assert make(device="cpu").device == "cpu"
    assert make(device="cpu").explain("cuda").kernel == make().kernel
    codes, scale, _ = parts()
    config = scaledmm.layer_config("int8", N, K)
    assert scaledmm.Linear(config, codes, scale, device=torch.device("cuda", 0)).device == "cuda:0"
    assert scaledmm.Linear(config, codes.numpy(), scale.numpy(), device="cuda").device == "cuda:0"
    assert torch.equal(torch.from_dlpack(make().unpack()), codes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 0, 4), (200,)])
def test_int8_has_the_bits_of_the_processor(dtype, shape):
    x = activations(*shape, dtype=dtype)
    y = make(dtype=dtype)(x.cuda())
    assert (y.device.type, y.dtype, y.shape) == ("cuda", dtype, (*shape, N))
    assert torch.equal(y.cpu(), make(device="cpu", dtype=dtype)(x))


def test_fp8_is_near_the_dequantized_product():
    codes, scale, bias = parts("fp8_w8a8")
    x = activations(17)
    q, x_scale = scaledmm.scaled_fp8_quant(x)
    exact = (q.double() * x_scale.double()) @ (codes.double() * scale.double()).t() + bias.double()
    y = make("fp8_w8a8")(x.cuda()).cpu().double()
    assert (y - exact).abs().max() <= 2.0**-8 * exact.abs().max()


def test_memory_of_another_place_is_refused_with_both():
    layer, x = make(), activations(2)
    with pytest.raises(ValueError, match="x is in the memory of the processor, must be in that of cuda:0"):
        layer(x)
    with pytest.raises(ValueError, match="x is in the memory of cuda:0, must be in that of the processor"):
        make(device="cpu")(x.cuda())
    with pytest.raises(ValueError, match="out is in the memory of the processor"):
        layer(x.cuda(), torch.empty(2, N, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="stream must be None"):
        make(device="cpu")(x, stream=0)


def test_views_go_in_and_out_without_a_copy():
    layer, x = make(), activations(9).cuda()
    wide = torch.zeros(9, 2 * K, dtype=torch.bfloat16, device="cuda")
    wide[:, K:] = x
    out = torch.full((9, N + 8), 7, dtype=torch.bfloat16, device="cuda")
    layer(wide[:, K:], out[:, :N])
    assert torch.equal(out[:, :N], layer(x)) and bool((out[:, N:] == 7).all())
    before = torch.cuda.memory_allocated()
    y = layer(x)
    assert torch.cuda.memory_allocated() - before <= y.untyped_storage().nbytes() + 512


def test_calls_follow_the_current_stream():
    """x is written at the end of a long row of work on a side stream; the default stream is idle."""
    layer, x = make(), activations(64).cuda()
    expected = layer(x)
    for give_stream in (False, True):
        side, late = torch.cuda.Stream(), torch.zeros_like(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            late.copy_(x)
            if not give_stream:
                y = layer(late)
        if give_stream:
            y = layer(late, torch.empty_like(expected), stream=side)
        side.synchronize()
        assert torch.equal(y, expected)


def test_streams_share_no_scratch_memory():
    layers = [make(), make("fp8_w8a8")]
    xs = [activations(256, seed=i).cuda() for i in range(4)]
    expected = [[layer(x) for layer in layers] for x in xs]
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    for _ in range(20):
        results = []
        for stream, x in zip(streams, xs, strict=True):
            with torch.cuda.stream(stream):
                results.append([layer(x) for layer in layers])
        torch.cuda.synchronize()
        for got, wanted in zip(results, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_a_graph_captures_and_replays_the_same_bits():
    layers, x = [make(), make("fp8_w8a8")], activations(32).cuda()
    expected = [layer(x).clone() for layer in layers]  # on the stream before, with memory that the capture takes over
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [layer(x) for layer in layers]
    for round in range(100):
        for result in results:
            result.zero_()
        graph.replay()
        if round % 10 == 0:
            eager = [layer(activations(200, seed=round).cuda()) for layer in layers]
            assert all(bool(y.isfinite().all()) for y in eager)
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_operators_pass_opcheck_and_compile_into_one_graph():
    layer, x = make(dtype="f32"), activations(3, 2, dtype=torch.float32).cuda()
    handle = scaledmm_torch.handle(layer)
    opcheck(ops.linear.default, (x, handle, N, torch.float32))
    opcheck(ops.scaled_int8_quant.default, (x,))
    opcheck(ops.scaled_fp8_quant.default, (x, 1, -1))
    compiled = torch.compile(lambda x: ops.linear(x, handle, N, torch.float32) + 1, fullgraph=True, dynamic=True)
    for rows in (4, 7, 1):
        x = activations(rows, dtype=torch.float32).cuda()
        assert torch.equal(compiled(x), layer(x) + 1)
    plain, bias = make(dtype="f32", with_bias=False), torch.randn(N, device="cuda")
    handle = scaledmm_torch.handle(plain)
    torch.testing.assert_close(ops.linear(x, handle, N, torch.float32, bias), plain(x) + bias)


def test_quantizers_give_the_bits_of_the_processor():
    x = activations(33)
    for symmetric in (True, False):
        here, there = (scaledmm.scaled_int8_quant(each, symmetric=symmetric) for each in (x, x.cuda()))
        assert all(a is b is None or torch.equal(a, b.cpu()) for a, b in zip(here, there, strict=True))
    for group in (scaledmm.GroupShape(-1, -1), scaledmm.GroupShape(1, -1), scaledmm.GroupShape(1, 128)):
        (q, scale), (q_there, scale_there) = (scaledmm.scaled_fp8_quant(each, group=group) for each in (x, x.cuda()))
        assert torch.equal(q.view(torch.uint8), q_there.cpu().view(torch.uint8))
        assert torch.equal(scale, scale_there.cpu())


def test_quantized_activations_give_the_same_bits():
    layer, x = make(), activations(6).cuda()
    assert torch.equal(layer.apply_quantized(*scaledmm.scaled_int8_quant(x)), layer(x))


def test_refilled_layers_have_the_new_weights_and_bias():
    layer, x = make(), activations(4).cuda()
    codes, scale, bias = (tensor.cuda() for tensor in parts(seed=3))
    layer.refill(codes, scale, bias=bias)
    fresh = scaledmm.Linear(layer.config, codes, scale, bias=bias)
    assert torch.equal(layer(x), fresh(x))
    assert torch.equal(layer.apply_quantized(*scaledmm.scaled_int8_quant(x)), fresh(x))


def test_modules_move_between_devices_with_their_state():
    torch.manual_seed(0)
    dense = torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.GELU(), torch.nn.Linear(N, 64)).eval()
    here = copy.deepcopy(dense)
    scaledmm_torch.quantize_model_(here)
    there = copy.deepcopy(dense).cuda()
    scaledmm_torch.quantize_model_(there)
    assert there[0].linear.device == "cuda:0"
    x = activations(5, dtype=torch.float32)
    with torch.no_grad():
        expected = there(x.cuda())
        moved = copy.deepcopy(here).cuda()
        assert torch.equal(moved(x.cuda()), expected)
        assert moved[2].linear.device == "cuda:0"
        other = copy.deepcopy(dense).cuda()
        scaledmm_torch.quantize_model_(other)
        other.load_state_dict(here.state_dict())
        assert torch.equal(other(x.cuda()), expected)
        assert torch.equal(moved.cpu()(x), here(x))


def test_cupy_arrays_go_in_and_out():
    cupy = pytest.importorskip("cupy")
    layer, x = make(dtype="f32"), activations(5, dtype=torch.float32).cuda()
    y = layer(cupy.from_dlpack(x))
    assert isinstance(y, cupy.ndarray) and y.dtype == cupy.float32
    assert torch.equal(torch.from_dlpack(y), layer(x))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out = cupy.empty((5, N), cupy.float32)
        assert layer(cupy.from_dlpack(x), out) is out
        stream.synchronize()
    assert torch.equal(torch.from_dlpack(out), layer(x))


def test_jax_arrays_go_in_and_out_of_given_memory():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("jax has no GPU here")
    layer, x = make(dtype="f32"), activations(5, dtype=torch.float32)
    array, out = jax.numpy.asarray(x.numpy()), torch.empty(5, N, device="cuda")
    with pytest.raises(ValueError, match="pass `out`"):
        layer(array)
    layer(array, out)
    assert torch.equal(out, layer(x.cuda()))
