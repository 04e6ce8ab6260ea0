// FP8 activations: scale and code. docs/quantization.md 3.
//   x ~ scale * q
#pragma once

#include <cstdint>

#include "numerics/formats.hpp"
#include "numerics/rounding.hpp"
#include "scaledmm/dtype.hpp"

namespace scaledmm {

// The largest code that a quantizer writes: e4m3fn 0x7e (448), e5m2 0x7b (57344), e4m3fnuz 0x7e (224; its 240 costs
// accuracy).
constexpr std::uint8_t fp8_quantized_max_code(DType dtype) { return dtype == DType::kE5M2 ? 0x7b : 0x7e; }

// The magnitude that a scale maps to the largest one of a row: 448, 224 or 57344.
constexpr float fp8_quantized_max(DType dtype) {
  return dtype == DType::kE5M2 ? 57344.0f : dtype == DType::kE4M3FNUZ ? 224.0f : 448.0f;
}

// How a tensor, row or group is quantized: q = encode(x / scale) where `divides`, else encode(x * inverse).
struct Fp8Scale {
  float scale = 1.0f;
  float inverse = 1.0f;
  bool divides = false;
  bool inf_is_nan = false;  // an infinite value becomes the NaN code; else it saturates
};

// The checkpoint's scale, finite and positive. Scale 0.5: inverse 2. A product unless 1 / scale leaves f32.
constexpr Fp8Scale static_fp8(float scale) {
  const float inverse = 1.0f / scale;
  return {scale, inverse, !is_finite(inverse), false};
}

// One scale for a whole tensor from the largest finite magnitude: 896 -> 2, 0 -> 2^-126. Rows that hold a NaN or an Inf
// get NaN codes there, so that they alone become NaN.
constexpr Fp8Scale dynamic_tensor_fp8(float finite_absmax, DType dtype) {
  constexpr float kLeast = std::numeric_limits<float>::min();  // 2^-126: its inverse is finite
  const float scale = finite_absmax / fp8_quantized_max(dtype);
  const float floored = scale > kLeast ? scale : kLeast;
  return {floored, 1.0f / floored, false, true};
}

// One scale for a row, by division: 896 -> 2. At least 1 / (448 * 512), so a zero row gives 4.36e-6 and codes 0.
// `upper_bound` limits the absmax, not the scale. Not finite -> scale and codes NaN.
constexpr Fp8Scale dynamic_token_fp8(float absmax, DType dtype,
                                     float upper_bound = std::numeric_limits<float>::infinity()) {
  if (!is_finite(absmax)) return {kNaN, kNaN, true, true};
  const float largest = absmax < upper_bound ? absmax : upper_bound;
  const float least = 1.0f / (fp8_quantized_max(dtype) * 512.0f);
  const float scale = largest / fp8_quantized_max(dtype);
  const float floored = scale > least ? scale : least;
  return {floored, 1.0f / floored, true, true};
}

// The least power of two that is not below `value`, a normal positive number: 0.75 -> 1, 1 -> 1, 1.25 -> 2.
constexpr float power_of_two_above(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7fffffu) & 0x7f800000u);
}

// One scale for a group of a row, by division: 896 -> 2. The absmax is at least 1e-10, so a zero group gives 2.23e-13
// and codes 0. With ue8m0 the scale, at least 1e-10, is rounded up to a power of two: 672 -> 1.5 -> 2. Not finite ->
// scale and codes NaN.
constexpr Fp8Scale dynamic_group_fp8(float absmax, DType dtype, bool ue8m0 = false) {
  if (!is_finite(absmax)) return {kNaN, kNaN, true, true};
  constexpr float kLeast = 1e-10f;
  float scale = (absmax > kLeast ? absmax : kLeast) / fp8_quantized_max(dtype);
  if (ue8m0) scale = power_of_two_above(scale > kLeast ? scale : kLeast);
  return {scale, 1.0f / scale, true, true};
}

// The code of one value. e4m3fn, static scale 1: 300 -> 0x79 (288), 1000 and Inf -> 0x7e, NaN -> 0x7f.
constexpr std::uint8_t quantize_fp8(float x, const Fp8Scale& s, DType dtype) {
  if (s.inf_is_nan && !is_finite(x)) x = kNaN;
  const float value = s.divides ? x / s.scale : x * s.inverse;
  if (dtype == DType::kE5M2) return f32_to_e5m2(value);
  if (dtype == DType::kE4M3FN) return f32_to_e4m3fn(value);
  const std::uint8_t code = f32_to_e4m3fnuz(value);
  return (code & 0x7f) > fp8_quantized_max_code(dtype) ? static_cast<std::uint8_t>(code - 1) : code;
}

}  // namespace scaledmm
