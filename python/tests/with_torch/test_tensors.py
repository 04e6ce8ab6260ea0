"""torch tensors in and out of layers, without the operators."""

import numpy as np
import pytest
import torch

import scaledmm
import scaledmm.torch as scaledmm_torch

DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "int8": torch.int8,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "e4m3fn": torch.float8_e4m3fn,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2": torch.float8_e5m2,
    "e8m0": torch.float8_e8m0fnu,
}


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_in_and_out_without_a_copy(name):
    source = torch.arange(12, dtype=torch.uint8).reshape(3, 4).to(DTYPES[name])
    array = scaledmm.array(source)
    assert (array.dtype, array.shape, array.data_ptr) == (name, (3, 4), source.data_ptr())
    back = torch.from_dlpack(array)
    assert (back.dtype, back.data_ptr()) == (source.dtype, source.data_ptr())


def test_views_and_transposes_keep_their_strides():
    source = torch.zeros(6, 8)
    array = scaledmm.array(source[1:, ::2].t())
    assert (array.shape, array.strides, array.data_ptr) == ((4, 5), (2, 8), source.data_ptr() + 32)


def make(scheme="int8", n=32, k=64, dtype="f32"):
    torch.manual_seed(0)
    codes, scale = scaledmm.quantize_weight(torch.randn(n, k), "int8" if scheme.startswith("int8") else "e4m3fn")
    return scaledmm.Linear(scaledmm.layer_config(scheme, n, k, input_dtype=dtype), codes, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_are_tensors_of_the_input_dtype(dtype):
    y = make(dtype=dtype)(torch.randn(2, 3, 64, dtype=dtype))
    assert (type(y), y.dtype, y.shape) == (torch.Tensor, dtype, (2, 3, 32))
    assert y.is_contiguous()


def test_torch_and_numpy_get_the_same_bits():
    x = torch.randn(5, 64)
    layer = make()
    assert np.array_equal(layer(x).numpy(), layer(x.numpy()))
    out = torch.empty(5, 32)
    assert layer(x, out=out) is out
    assert torch.equal(out, layer(x))


def test_quantizers_give_torch_dtypes():
    x = torch.randn(4, 64)
    q, scale, zero_point = scaledmm.scaled_int8_quant(x, symmetric=False)
    assert (q.dtype, scale.dtype, zero_point.dtype) == (torch.int8, torch.float32, torch.int32)
    q, scale = scaledmm.scaled_fp8_quant(x)
    assert (q.dtype, scale.shape) == (torch.float8_e4m3fn, (4, 1))
    assert (q.float() * scale - x).abs().max() < x.abs().max() / 16


def test_tensors_that_want_a_gradient_or_have_no_data_are_refused():
    layer = make()
    with pytest.raises(BufferError, match="requires a gradient"):
        layer(torch.randn(2, 64, requires_grad=True))
    with torch._subclasses.fake_tensor.FakeTensorMode(), pytest.raises((ValueError, BufferError, RuntimeError)):
        layer(torch.randn(2, 64))
    with pytest.raises(RuntimeError, match="meta"):
        layer(torch.randn(2, 64, device="meta"))


def test_a_parameter_without_gradient_is_a_tensor():
    weight = torch.nn.Parameter(torch.randn(8, 16), requires_grad=False)
    codes, scale = scaledmm.quantize_weight(weight, "int8")
    assert (codes.dtype, scale.shape) == (torch.int8, (8, 1))


def test_the_package_does_not_import_torch():
    import subprocess
    import sys

    script = (
        "import scaledmm, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules or 'ml_dtypes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_handles_name_layers_that_live():
    layer = make()
    number = scaledmm_torch.handle(layer)
    assert (number.dtype, number.shape) == (torch.uint8, (8,))
    x = torch.randn(2, 64)
    expected = layer(x)
    assert torch.equal(torch.ops.scaledmm.linear(x, number, 32, torch.float32), expected)
    with pytest.raises(ValueError, match="the layer has N = 32, the call says 31"):
        torch.ops.scaledmm.linear(x, number, 31, torch.float32)
    with pytest.raises(ValueError, match="the layer gives torch.float32"):
        torch.ops.scaledmm.linear(x, number, 32, torch.bfloat16)
    del layer
    with pytest.raises(ValueError, match="no layer of this process has the handle"):
        torch.ops.scaledmm.linear(x, number, 32, torch.float32)
