// INT8 activations: scale, zero point and code. docs/quantization.md 2.
//   x ~ scale * (q - zero_point)
#pragma once

#include <cstdint>

#include "numerics/rounding.hpp"
#include "scaledmm/dtype.hpp"

namespace scaledmm {

inline constexpr std::int32_t kInt8Min = -128;
inline constexpr std::int32_t kInt8Max = 127;
inline constexpr float kInt8SymmetricMax = 127.0f;     // what the largest magnitude of a symmetric row is mapped to
inline constexpr float kInt8AsymmetricSteps = 255.0f;  // steps between the least and the largest value of an asymmetric
                                                       // row

// How one row, or a whole static tensor, is quantized.
//   codes: q = clamp(rne((x * prescale) * inverse) + zero_point), or
//   clamp(rne(x / scale)) where `divides`.
// `prescale` is 1, or 2^64 for rows so small that 1 / scale would leave f32.
struct Int8Scale {
  float scale = 0.0f;
  float inverse = 0.0f;
  float prescale = 1.0f;
  std::int32_t zero_point = 0;
  bool divides = false;
};

namespace detail {

// `span` covers `steps` codes and steps / span is not finite. The scale is the least one with span <= steps * scale, so
// a row of subnormal numbers keeps them: span 190 * 2^-149 over 127 steps gives the scale 2 * 2^-149 and the code 95.
constexpr Int8Scale tiny_int8_scale(float span, float steps) {
  constexpr float kPrescale = 18446744073709551616.0f;  // 2^64
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  float scale = span / steps;
  if (scale * steps < span) scale += kLeast;
  return {scale, 1.0f / (scale * kPrescale), kPrescale, 0, false};
}

}  // namespace detail

// One scale for a row from its largest magnitude (absmax_of). absmax 6.35 -> scale 0.05, inverse 20; 0 -> scale 0,
// codes 0. Not finite -> scale NaN, codes 0: the row's outputs are NaN.
constexpr Int8Scale dynamic_symmetric_int8(float absmax) {
  if (!is_finite(absmax)) return {kNaN, 0.0f, 1.0f, 0, false};
  if (absmax == 0.0f) return {};
  const float inverse = kInt8SymmetricMax / absmax;
  if (!is_finite(inverse)) return detail::tiny_int8_scale(absmax, kInt8SymmetricMax);
  return {absmax / kInt8SymmetricMax, inverse, 1.0f, 0, false};
}

// One scale and zero point for a row from its least and largest value, of which one is NaN where the row holds a NaN.
// The range is widened to hold 0. -1 .. 4.1 -> scale 0.02, zero point -78; 3 .. 3 -> 0 .. 3 -> scale 3 / 255, zero
// point -128.
constexpr Int8Scale dynamic_asymmetric_int8(float least, float largest) {
  if (!is_finite(least) || !is_finite(largest)) return {kNaN, 0.0f, 1.0f, 0, false};
  if (least > 0.0f) least = 0.0f;
  if (largest < 0.0f) largest = 0.0f;
  if (least == largest) return {};
  const float range = largest - least;
  // Halves where the range leaves f32: the same quotient, as both are powers of two apart.
  const float scale =
      is_finite(range) ? range / kInt8AsymmetricSteps : (largest * 0.5f - least * 0.5f) / (kInt8AsymmetricSteps * 0.5f);
  Int8Scale result{scale, 1.0f / scale, 1.0f, 0, false};
  if (!is_finite(result.inverse)) result = detail::tiny_int8_scale(range, kInt8AsymmetricSteps);
  const float zero_point = round_even(static_cast<float>(kInt8Min) - least / result.scale);
  result.zero_point = zero_point > kInt8Max ? kInt8Max : static_cast<std::int32_t>(zero_point);
  return result;
}

// Codes are clamp(rne(x / scale)), by a division. Scale 0.5: 1.25 -> 2 (2.5 is a tie), NaN -> 0.
constexpr Int8Scale static_symmetric_int8(float scale) { return {scale, 0.0f, 1.0f, 0, true}; }

// Codes are clamp(rne(x * (1 / scale)) + zero_point). Scale 0.5, zero point 20: 53.5 -> 127, NaN -> 20.
constexpr Int8Scale static_asymmetric_int8(float scale, std::int32_t zero_point) {
  return {scale, 1.0f / scale, 1.0f, zero_point, false};
}

// The code of one value. NaN takes the code of value 0, Inf and overflow saturate after the zero point is added.
constexpr std::int8_t quantize_int8(float x, const Int8Scale& s) {
  const float steps = round_even(s.divides ? x / s.scale : x * s.prescale * s.inverse);
  constexpr float kWide = 4294967296.0f;  // 2^32: past every int32 zero point
  std::int64_t code = s.zero_point;
  if (steps >= kWide) {
    code += std::int64_t{1} << 32;
  } else if (steps <= -kWide) {
    code -= std::int64_t{1} << 32;
  } else if (steps == steps) {
    code += static_cast<std::int64_t>(steps);
  }
  return static_cast<std::int8_t>(code < kInt8Min ? kInt8Min : code > kInt8Max ? kInt8Max : code);
}

}  // namespace scaledmm
