// Weights: the scale of a tensor, channel or block, and its codes. docs/quantization.md 5.
#pragma once

#include <cstdint>
#include <limits>

#include "numerics/fp8_scale.hpp"
#include "numerics/int8.hpp"

namespace scaledmm {

// absmax / 127 for int8, absmax / 448 for e4m3fn (224 fnuz, 57344 e5m2), so that the largest weight keeps its value:
// 6.35 -> 0.05. A part without any weight but 0 gets the scale 1. A quotient below the normal numbers is rounded up, so
// that no code saturates.
constexpr float weight_scale(float absmax, DType dtype) {
  if (absmax == 0.0f) return 1.0f;
  const float largest = dtype == DType::kInt8 ? kInt8SymmetricMax : fp8_quantized_max(dtype);
  const float scale = absmax / largest;
  const bool is_small = scale < std::numeric_limits<float>::min();
  return is_small && scale * largest < absmax ? scale + std::numeric_limits<float>::denorm_min() : scale;
}

// rne(w / scale), saturated. int8, scale 0.05: 6.35 -> 127, -0.12 -> -2.
constexpr std::uint8_t quantize_weight_value(float w, float scale, DType dtype) {
  if (dtype == DType::kInt8) return static_cast<std::uint8_t>(quantize_int8(w, static_symmetric_int8(scale)));
  return quantize_fp8(w, {scale, 0.0f, true, false}, dtype);
}

}  // namespace scaledmm
