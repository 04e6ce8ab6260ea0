// Rows of f32, bf16 or f16 activations: the statistics that a dynamic scale needs, and the codes. docs/quantization.md
// 2, 3.
#pragma once

#include <algorithm>
#include <cstdint>

#include "numerics/formats.hpp"
#include "numerics/fp8_scale.hpp"
#include "numerics/int8.hpp"

namespace scaledmm {

// `count` values that begin at element `begin` of an array.
struct FloatRow {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t begin = 0;
  std::int64_t count = 0;

  float operator[](std::int64_t i) const { return load_f32(data, dtype, begin + i); }
  FloatRow part(std::int64_t first, std::int64_t size) const { return {data, dtype, begin + first, size}; }
};

// The largest magnitude; NaN where the row holds one. 1, -3, 2 -> 3.
inline float row_absmax(const FloatRow& row) {
  float largest = 0.0f;
  for (std::int64_t i = 0; i < row.count; ++i) largest = absmax_of(largest, row[i]);
  return largest;
}

// The largest magnitude of the finite values. 1, Inf, -3, NaN -> 3.
inline float row_finite_absmax(const FloatRow& row) {
  float largest = 0.0f;
  for (std::int64_t i = 0; i < row.count; ++i) {
    if (is_finite(row[i])) largest = absmax_of(largest, row[i]);
  }
  return largest;
}

// The dynamic per-token scale of a row.
inline Int8Scale row_int8_scale(const FloatRow& row, bool symmetric) {
  const float absmax = row_absmax(row);
  if (symmetric) return dynamic_symmetric_int8(absmax);
  if (!is_finite(absmax)) return dynamic_asymmetric_int8(absmax, absmax);
  float least = 0.0f;
  float largest = 0.0f;
  for (std::int64_t i = 0; i < row.count; ++i) {
    least = std::min(least, row[i]);
    largest = std::max(largest, row[i]);
  }
  return dynamic_asymmetric_int8(least, largest);
}

inline void quantize_row(const FloatRow& row, const Int8Scale& scale, std::int8_t* q) {
  for (std::int64_t i = 0; i < row.count; ++i) q[i] = quantize_int8(row[i], scale);
}

inline void quantize_row(const FloatRow& row, const Fp8Scale& scale, DType dtype, std::uint8_t* q) {
  for (std::int64_t i = 0; i < row.count; ++i) q[i] = quantize_fp8(row[i], scale, dtype);
}

}  // namespace scaledmm
