"""Quantizers and the lists of kernels and devices, as Python sees them."""

import ml_dtypes
import numpy as np
import pytest

import scaledmm
from scaledmm import GroupShape


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_int8_dynamic_scales_are_one_a_row():
    x = random(2, 3, 64)
    q, scale, zero_point = scaledmm.scaled_int8_quant(x)
    assert (q.dtype, q.shape, scale.shape, zero_point) == (np.int8, x.shape, (2, 3, 1), None)
    assert np.array_equal(scale[..., 0], np.abs(x).max(-1) / np.float32(127))
    assert np.abs(q * scale - x).max() <= scale.max() / 2 * 1.001


def test_int8_asymmetric_uses_the_whole_range():
    x = random(4, 64) + 3
    q, scale, zero_point = scaledmm.scaled_int8_quant(x, symmetric=False)
    assert (zero_point.dtype, zero_point.shape) == (np.int32, (4, 1))
    assert np.abs((q.astype(np.int32) - zero_point) * scale - x).max() <= scale.max() * 0.51


def test_int8_static_scales_are_returned_as_they_came():
    scale = np.float32([0.5])
    q, same, zero_point = scaledmm.scaled_int8_quant(np.float32([[1, -2, 100]]), scale)
    assert same is scale
    assert zero_point is None
    assert q.tolist() == [[2, -4, 127]]
    with pytest.raises(ValueError, match="zero point"):
        scaledmm.scaled_int8_quant(np.ones((1, 2), np.float32), symmetric=False, zero_point=3)


@pytest.mark.parametrize(
    ("group", "shape"), [(GroupShape.PER_TENSOR, (1,)), (GroupShape.PER_TOKEN, (5, 1)), (GroupShape(1, 32), (5, 3))]
)
def test_fp8_scales_cover_what_the_group_says(group, shape):
    x = random(5, 70)
    q, scale = scaledmm.scaled_fp8_quant(x, group=group)
    assert (q.dtype.name, scale.shape) == ("float8_e4m3fn", shape)
    full = np.repeat(scale, 32, -1)[:, :70] if group.col == 32 else scale
    assert np.abs(q.astype(np.float32) * full - x).max() <= np.abs(x).max() / 16


def test_fp8_options_reach_the_quantizer():
    x = np.float32([[896, 448]])
    q, scale = scaledmm.scaled_fp8_quant(x, 2.0, dtype="e4m3fnuz")
    assert (q.dtype.name, scale) == ("float8_e4m3fnuz", 2.0)
    assert scaledmm.scaled_fp8_quant(x, scale_ub=448)[1].tolist() == [[1]]
    assert scaledmm.scaled_fp8_quant(np.float32([[672]]), group=GroupShape(1, 128), ue8m0=True)[1].tolist() == [[2]]
    with pytest.raises(ValueError, match="ue8m0 is for dynamic scales per group only"):
        scaledmm.scaled_fp8_quant(x, ue8m0=True)


@pytest.mark.parametrize("rows", [1, 2])
def test_weights_that_are_not_finite_are_refused_with_their_place(rows):
    weight = random(3, 5)
    weight[rows, 4] = np.inf
    with pytest.raises(ValueError, match=rf"{rows}, 4"):
        scaledmm.quantize_weight(weight, "int8")


def test_kernels_are_listed_with_their_guarantees():
    kernels = scaledmm.kernels()
    assert kernels[-1].name == "reference"
    assert len({k.name for k in kernels}) == len(kernels)
    cpu = [k for k in kernels if k.device == "cpu"]
    assert all(k.deterministic and k.batch_invariant and k.thread_invariant for k in cpu)


def test_a_selection_has_every_candidate_and_its_reason():
    config = scaledmm.layer_config("int8", 64, 64)
    selection = scaledmm.explain(config, "cpu:avx512vnni")
    assert selection.kernel == "int8_w8a8_avx512vnni" == scaledmm.select(config, "cpu:avx512vnni")
    assert all(c.ok or c.reason for c in selection.candidates)
    assert "int8_w8a8_amx" in str(selection)
    assert scaledmm.select(config, "cpu", kernel="reference") == "reference"
    assert scaledmm.select(config, "cpu:scalar") == "reference"
    with pytest.raises(scaledmm.UnsupportedError, match="int8_w8a8_amx was forced"):
        scaledmm.select(config, "cpu:avx2", kernel="int8_w8a8_amx")
    assert scaledmm.explain(config, "cpu:avx2", kernel="int8_w8a8_amx").kernel is None
    with pytest.raises(ValueError, match="unknown device"):
        scaledmm.explain(config, "cpu:mmx")


def test_configurations_compare_by_value():
    config = scaledmm.layer_config("fp8_w8a8", 8, 16)
    assert config == scaledmm.layer_config("fp8_w8a8", 8, 16)
    assert hash(config) == hash(scaledmm.layer_config("fp8_w8a8", 8, 16))
    assert config != scaledmm.layer_config("fp8_w8a8", 8, 17)
    assert config.activation_quant_key.scale.group_shape == GroupShape.PER_TOKEN
    assert len({GroupShape(1, 2), GroupShape(1, 2), GroupShape(2, 1)}) == 2
    with pytest.raises(ValueError, match="unknown scheme 'int4'"):
        scaledmm.layer_config("int4", 8, 16)
    with pytest.raises(ValueError, match="activations of fp8_w8a16 are not static"):
        scaledmm.layer_config("fp8_w8a16", 8, 16, activations="static")


def test_devices_say_what_is_there_and_why_the_rest_is_not():
    cpu, *others = scaledmm.devices()
    assert cpu.kind == "cpu"
    assert cpu.devices[0].description
    assert all(status.available or status.detail for status in others)
    assert scaledmm.device("cpu:amx").isa == "amx"


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e8m0fnu"])
def test_every_8_bit_code_has_its_value(name):
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)
    expected = codes.view(getattr(ml_dtypes, name)).astype(np.float32)
    assert np.array_equal(scaledmm.to_float32(codes, name), expected, equal_nan=True)
    assert np.array_equal(scaledmm.to_float32(codes.view(getattr(ml_dtypes, name)).T), expected.T, equal_nan=True)
    with pytest.raises(ValueError, match="x is uint8, which is no float"):
        scaledmm.to_float32(codes)
