"""jax arrays in and out: they are read-only, and their 8-bit floats have DLPack codes of their own."""

import numpy as np
import pytest

import scaledmm

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"])
def test_every_dtype_goes_in_without_a_copy(name):
    source = jnp.arange(12, dtype=name).reshape(3, 4)
    array = scaledmm.array(source)
    assert array.shape == (3, 4)
    assert array.data_ptr == source.unsafe_buffer_pointer()
    assert array.numpy().tobytes() == np.asarray(source).tobytes()


def test_a_layer_gives_jax_arrays():
    codes, scale = scaledmm.quantize_weight(jnp.ones((16, 32)), "e4m3fn")
    assert (codes.dtype, scale.shape) == (jnp.float8_e4m3fn, (16, 1))
    layer = scaledmm.Linear(scaledmm.layer_config("fp8_w8a16", 16, 32, input_dtype=jnp.bfloat16), codes, scale)
    y = layer(jnp.ones((2, 32), jnp.bfloat16))
    assert isinstance(y, jax.Array)
    assert (y.dtype, y.shape) == (jnp.bfloat16, (2, 16))
    assert (y == 32).all()
