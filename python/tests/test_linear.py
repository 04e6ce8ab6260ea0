"""Layers made of arrays: results, errors, threads."""

import os
import threading

import ml_dtypes
import numpy as np
import pytest

import scaledmm

SCHEMES = ["int8", "fp8_w8a8", "fp8_w8a16", "int8_block", "fp8_w8a8_block", "fp8_w8a16_block"]
N, K, BLOCK = 48, 160, (16, 64)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make(scheme, *, bias=None, input_dtype="f32", weight=None, **options):
    """A layer, and its dequantized weight."""
    weight = random(N, K) if weight is None else weight
    group = scaledmm.GroupShape(*BLOCK) if scheme.endswith("block") else scaledmm.GroupShape.PER_CHANNEL
    codes, scale = scaledmm.quantize_weight(weight, "int8" if scheme.startswith("int8") else "e4m3fn", group)
    config = scaledmm.layer_config(scheme, *weight.shape, block=BLOCK, input_dtype=input_dtype)
    full = scale
    if scheme.endswith("block"):
        full = np.repeat(np.repeat(scale, BLOCK[0], 0), BLOCK[1], 1)[: weight.shape[0], : weight.shape[1]]
    return scaledmm.Linear(config, codes, scale, bias=bias, **options), codes.astype(np.float32) * full


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_multiplies(scheme):
    bias = random(N, seed=1)
    linear, dense = make(scheme, bias=bias)
    x = random(3, 5, K, seed=2)
    y = linear(x)
    assert (y.shape, y.dtype) == ((3, 5, N), np.float32)
    error = np.abs(y - (x @ dense.T + bias)).max() / np.abs(y).max()
    assert error < (0.05 if linear.computes == "w8a8" else 1e-5)
    assert linear.config.scheme == scheme


@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_results_have_the_type_of_the_input(name, dtype):
    linear, _ = make("int8", input_dtype=name)
    y = linear(random(2, K).astype(dtype))
    assert isinstance(y, np.ndarray)
    assert y.dtype == dtype


def test_a_scaledmm_array_gives_one():
    linear, _ = make("int8")
    x = random(2, K)
    y = linear(scaledmm.array(x))
    assert isinstance(y, scaledmm.Array)
    assert np.array_equal(np.asarray(y), linear(x))


def test_out_is_written_in_place_and_returned():
    linear, _ = make("int8")
    x, out = random(4, K), np.full((4, 2 * N), 7, np.float32)
    result = linear(x, out=out[:, :N])
    assert result.base is out
    assert np.array_equal(out[:, :N], linear(x))
    assert (out[:, N:] == 7).all()


def test_row_strides_are_honoured_and_others_refused():
    linear, _ = make("int8")
    x = random(6, 2 * K)
    assert np.array_equal(linear(x[::2, :K]), linear(x[::2, :K].copy()))
    assert np.array_equal(linear(x[::-1, :K]), linear(x[::-1, :K].copy()))
    with pytest.raises(ValueError, match="last dimension must be contiguous, its stride is 2"):
        linear(x[:, ::2])


def test_no_rows_give_no_rows():
    linear, _ = make("fp8_w8a16")
    assert linear(np.zeros((0, K), np.float32)).shape == (0, N)


def test_errors_have_both_numbers():
    linear, _ = make("int8")
    with pytest.raises(ValueError, match=r"x has shape \[2, 7\], its last dimension must be K = 160"):
        linear(random(2, 7))
    with pytest.raises(ValueError, match="x is f16, the layer takes f32"):
        linear(random(2, K).astype(np.float16))
    with pytest.raises(ValueError, match=r"x has shape \[2, 160\] and y \[3, 48\]"):
        linear(random(2, K), out=np.zeros((3, N), np.float32))
    with pytest.raises(ValueError, match="rank 0"):
        linear(np.zeros((), np.float32))
    codes, scale = scaledmm.quantize_weight(random(N, K), "int8")
    with pytest.raises(ValueError, match=r"weight has shape \[48, 160\], expected \[48, 161\]"):
        scaledmm.Linear(scaledmm.layer_config("int8", N, K + 1), codes, scale)
    with pytest.raises(ValueError, match="weight is int8, the configuration says e4m3fn"):
        scaledmm.Linear(scaledmm.layer_config("fp8_w8a8", N, K), codes, scale)


def test_a_forced_kernel_runs_or_says_why_not():
    linear, _ = make("int8", kernel="reference")
    assert linear.kernel == "reference"
    assert np.array_equal(linear(random(3, K)), make("int8")[0](random(3, K)))
    with pytest.raises(
        scaledmm.UnsupportedError, match="fp8_w8a16_avx2 was forced and cannot run this layer: weights are int8"
    ):
        make("int8", kernel="fp8_w8a16_avx2")
    with pytest.raises(ValueError, match="nonesuch"):
        make("int8", kernel="nonesuch")


def test_weights_come_back_and_can_be_replaced():
    linear, dense = make("int8")
    codes, scale = scaledmm.quantize_weight(random(N, K), "int8")
    assert np.array_equal(linear.unpack().numpy(), codes)
    other, other_scale = scaledmm.quantize_weight(random(N, K, seed=9), "int8")
    kernel, x = linear.kernel, random(2, K, seed=3)
    linear.refill(other, other_scale, bias=np.ones(N, np.float32))
    assert linear.kernel == kernel
    expected = scaledmm.Linear(linear.config, other, other_scale, bias=np.ones(N, np.float32))
    assert np.array_equal(linear(x), expected(x))
    with pytest.raises(ValueError, match="weight has shape"):
        linear.refill(other[:5], other_scale)
    assert np.array_equal(linear(x), expected(x))


def test_uint8_codes_are_what_the_configuration_says():
    codes, scale = scaledmm.quantize_weight(random(N, K), "e4m3fn")
    config = scaledmm.layer_config("fp8_w8a16", N, K, input_dtype="f32")
    x = random(2, K)
    typed, carried = scaledmm.Linear(config, codes, scale), scaledmm.Linear(config, codes.view(np.uint8), scale)
    assert np.array_equal(typed(x), carried(x))


def test_static_and_asymmetric_inputs_and_numbers_as_scales():
    weight = random(N, K)
    codes, scale = scaledmm.quantize_weight(weight, "int8")
    config = scaledmm.layer_config("int8", N, K, activations="static", symmetric=False, input_dtype="f32")
    linear = scaledmm.Linear(config, codes, scale, input_scale=0.03, input_zero_point=4)
    x = random(3, K)
    assert np.abs(linear(x) - x @ weight.T).max() < 1.5
    q, _, _ = scaledmm.scaled_int8_quant(x, 0.03, 4, symmetric=False)
    assert np.array_equal(linear.apply_quantized(q, 0.03, 4), linear(x))


def test_quantized_activations_give_the_same_bits():
    linear, _ = make("int8", bias=random(N, seed=1))
    x = random(5, K)
    q, scale, none = scaledmm.scaled_int8_quant(x)
    assert none is None
    assert np.array_equal(linear.apply_quantized(q, scale), linear(x))
    assert linear.input_quant_key == scaledmm.QuantKey("int8", scaledmm.ScaleDesc(scaledmm.GroupShape.PER_TOKEN, False))


def test_fused_parts_keep_a_scale_each():
    parts = [scaledmm.quantize_weight(random(n, K, seed=n), "int8", scaledmm.GroupShape.PER_TENSOR) for n in (16, 32)]
    config = scaledmm.layer_config("int8", 48, K, weight_scales="tensor", input_dtype="f32")
    codes = np.concatenate([codes for codes, _ in parts])
    fused = scaledmm.Linear(config, codes, np.concatenate([s for _, s in parts]), logical_widths=[16, 32])
    x = random(2, K)
    for (part, scale), columns in zip(parts, (slice(0, 16), slice(16, 48)), strict=True):
        alone = scaledmm.Linear(
            scaledmm.layer_config("int8", len(part), K, weight_scales="tensor", input_dtype="f32"), part, scale
        )
        assert np.array_equal(fused(x)[:, columns], alone(x))


def test_any_number_of_threads_gives_the_same_bits():
    linear, _ = make("int8", weight=random(300, 256))
    x = random(70, 256)
    expected = linear(x, threads=1)
    for threads in (2, 3, 5):
        assert np.array_equal(linear(x, threads=threads), expected)
    before = scaledmm.get_num_threads()
    scaledmm.set_num_threads(1)
    try:
        assert scaledmm.get_num_threads() == 1
    finally:
        scaledmm.set_num_threads(0)
    assert scaledmm.get_num_threads() == before
    with pytest.raises(ValueError, match="threads = -1"):
        scaledmm.set_num_threads(-1)


def test_threads_share_a_layer_while_it_is_refilled():
    first, second = (scaledmm.quantize_weight(random(N, K, seed=seed), "int8") for seed in (1, 2))
    linear = scaledmm.Linear(scaledmm.layer_config("int8", N, K, input_dtype="f32"), *first)
    x = random(3, K)
    allowed = [linear(x), scaledmm.Linear(linear.config, *second)(x)]
    wrong = []

    def work():
        for _ in range(50):
            y = linear(x)
            if not any(np.array_equal(y, a) for a in allowed):
                wrong.append(y)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for i in range(40):
        linear.refill(*(first, second)[i % 2])
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_forked_child_can_call_a_layer_of_its_parent():
    linear, _ = make("int8", weight=random(300, 256))
    x = random(70, 256)
    expected = linear(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(linear(x), expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_scaled_mm_is_a_layer_for_one_call():
    weight, x = random(N, K), random(4, K, seed=1)
    w, w_scale = scaledmm.quantize_weight(weight, "int8")
    q, q_scale, _ = scaledmm.scaled_int8_quant(x)
    layer = scaledmm.Linear(scaledmm.layer_config("int8", N, K, input_dtype="f32"), w, w_scale)
    assert np.array_equal(scaledmm.scaled_mm(q, w, q_scale, w_scale), layer(x))
    q, q_scale, zero = scaledmm.scaled_int8_quant(x, symmetric=False)
    assert np.abs(scaledmm.scaled_mm(q, w, q_scale, w_scale, x_zero_point=zero) - x @ weight.T).max() < 1
    static, _, _ = scaledmm.scaled_int8_quant(x, 0.03)
    one = np.float32([0.03])
    assert np.abs(scaledmm.scaled_mm(static, w, one, w_scale) - x @ weight.T).max() < 2
    f, f_scale = scaledmm.scaled_fp8_quant(x)
    wf, wf_scale = scaledmm.quantize_weight(weight, "e4m3fn", scaledmm.GroupShape.PER_TENSOR)
    y = scaledmm.scaled_mm(f, wf, f_scale, wf_scale, out_dtype="bf16", bias=np.ones(N, np.float32))
    assert y.dtype == ml_dtypes.bfloat16
    assert np.abs(y.astype(np.float32) - (x @ weight.T + 1)).max() < 3
    with pytest.raises(ValueError, match="x is int8 and w is e4m3fn"):
        scaledmm.scaled_mm(q, wf, q_scale, wf_scale)
