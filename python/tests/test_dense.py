"""scaledmm.DenseLinear: layers that stay in bf16."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import scaledmm

N, K = 19, 45
bf16 = ml_dtypes.bfloat16


def values(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, bf16, np.float16])
@pytest.mark.parametrize("leading", [(1,), (9,), (2, 3), ()])
@pytest.mark.parametrize("with_bias", [False, True])
def test_y_is_the_product_in_the_dtype_of_x(dtype: type, leading: tuple[int, ...], with_bias: bool) -> None:
    weight, x = values(N, K).astype(bf16), values(*leading, K, seed=2).astype(dtype)
    bias = values(N, seed=3).astype(bf16) if with_bias else None
    layer = scaledmm.DenseLinear(weight)
    assert (layer.n, layer.k) == (N, K) and layer.kernel.startswith("bf16_")
    y = layer(x, bias)
    assert y.shape == (*leading, N) and y.dtype == dtype
    wanted = x.astype(np.float64) @ weight.astype(np.float64).T + (0 if bias is None else bias.astype(np.float64))
    assert np.allclose(y.astype(np.float64), wanted, rtol=2**-8, atol=1e-4)


def test_a_row_has_the_same_bits_in_every_batch_and_on_any_threads() -> None:
    layer = scaledmm.DenseLinear(values(N, K).astype(bf16), threads=2)
    x = values(30, K, seed=2)
    whole = layer(x, threads=1)
    assert np.array_equal(whole, layer(x, threads=3))
    assert all(np.array_equal(layer(x[i : i + 1]), whole[i : i + 1]) for i in range(30))


def test_rows_of_a_larger_array_are_taken_as_they_lie() -> None:
    layer = scaledmm.DenseLinear(values(N, K + 3).astype(bf16)[:, :K])
    x = values(4, K + 5, seed=2)
    assert np.array_equal(layer(x[:, :K]), layer(x[:, :K].copy()))


def test_what_does_not_fit_is_refused_with_both_shapes() -> None:
    layer = scaledmm.DenseLinear(values(N, K).astype(bf16))
    with pytest.raises(ValueError, match=r"x has shape \[2, 44\], its second dimension must be K = 45"):
        layer(values(2, K - 1))
    with pytest.raises(ValueError, match=r"bias must be f32, bf16 or f16 of shape \[19\], it is f32 of shape \[18\]"):
        layer(values(2, K), values(N - 1))
    with pytest.raises(ValueError, match="the weight is f32, not bf16"):
        scaledmm.DenseLinear(values(N, K))
    with pytest.raises(ValueError, match="must have two dimensions or be packed"):
        layer(values(2, 3, 2 * K)[:, :, :K])
