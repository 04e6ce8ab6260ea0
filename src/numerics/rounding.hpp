// Rounding to whole numbers, and magnitudes that do not lose a NaN. docs/quantization.md 1.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace scaledmm {

// Nearest whole number, ties to even; NaN and Inf as they are. 2.5 -> 2, 3.5 -> 4, -0.5 -> -0.
constexpr float round_even(float value) {
  constexpr float kWhole = 8388608.0f;  // 2^23: from here on every float is whole
  if (value >= 0.0f && value < kWhole) return (value + kWhole) - kWhole;
  if (value < 0.0f && value > -kWhole) return (value - kWhole) + kWhole;
  return value;
}

constexpr bool is_finite(float value) { return (std::bit_cast<std::uint32_t>(value) & 0x7f800000u) != 0x7f800000u; }

constexpr float magnitude(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
}

// max(largest, |value|) where NaN counts as larger than Inf: the bit patterns of magnitudes order as integers, so a
// vector kernel takes an unsigned integer maximum. Start with 0.
constexpr float absmax_of(float largest, float value) {
  const std::uint32_t a = std::bit_cast<std::uint32_t>(largest);
  const std::uint32_t b = std::bit_cast<std::uint32_t>(magnitude(value));
  return std::bit_cast<float>(a > b ? a : b);
}

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace scaledmm
