// One static scale and zero point for a fused layer whose parts came with one each. docs/quantization.md 2.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "numerics/int8.hpp"

namespace scaledmm {

struct Int8StaticInput {
  float scale = 1.0f;
  std::int32_t zero_point = 0;
};

// The least range that holds every part's: lo = min s (-128 - zp), hi = max s (127 - zp), s' = (hi - lo) / 255, zp' =
// rne(-128 - lo / s'). Equal parts come out as they are. (0.5, 20) and (0.5, -20) -> lo -74, hi 73.5: s' 0.578, zp' 0.
inline Int8StaticInput merge_static_int8(std::span<const float> scales, std::span<const std::int32_t> zero_points) {
  bool equal = true;
  float low = 0.0f, high = 0.0f;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    equal = equal && scales[i] == scales[0] && zero_points[i] == zero_points[0];
    const auto zero_point = static_cast<float>(zero_points[i]);
    low = std::min(low, scales[i] * (static_cast<float>(kInt8Min) - zero_point));
    high = std::max(high, scales[i] * (static_cast<float>(kInt8Max) - zero_point));
  }
  if (equal) return {scales[0], zero_points[0]};
  const Int8Scale merged = dynamic_asymmetric_int8(low, high);
  return {merged.scale, merged.zero_point};
}

}  // namespace scaledmm
