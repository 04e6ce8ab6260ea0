// Number formats: every storage type to and from f32, one value at a time. docs/quantization.md 1.
//   fp8 and 16-bit floats to f32 are exact; f32 to them rounds to nearest, ties
//   to even. Valid in the default rounding mode.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "numerics/host_device.hpp"
#include "scaledmm/dtype.hpp"

namespace scaledmm {

// An 8-bit float: sign, exponent, mantissa. `max_code` is the largest finite magnitude, `nan_code` the NaN that is
// written.
struct Fp8Format {
  int mantissa_bits;
  int bias;
  std::uint8_t max_code;
  std::uint8_t nan_code;
  bool is_fnuz;  // no -0: 0x80 is the only NaN
};

// Functions, since GPU code may not refer to the host's objects.
constexpr Fp8Format e4m3fn_format() { return {3, 7, 0x7e, 0x7f, false}; }   // largest number 448
constexpr Fp8Format e4m3fnuz_format() { return {3, 8, 0x7f, 0x80, true}; }  // largest number 240
constexpr Fp8Format e5m2_format() { return {2, 15, 0x7b, 0x7f, false}; }    // largest number 57344; 0x7c is Inf

inline constexpr Fp8Format kE4M3FN = e4m3fn_format();
inline constexpr Fp8Format kE4M3FNUZ = e4m3fnuz_format();
inline constexpr Fp8Format kE5M2 = e5m2_format();

// An f32 with exponent field e is 2^(e - 127) times its significand.
inline constexpr std::uint32_t kF32ExponentBias = 127;

namespace detail {

// 2^exponent for -126 <= exponent <= 127.
constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

constexpr float fp8_decode(std::uint8_t code, const Fp8Format& format) {
  const int sign = code >> 7;
  const int magnitude = code & 0x7f;
  const int exponent = magnitude >> format.mantissa_bits;
  const int mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
  if (format.is_fnuz ? code == 0x80 : magnitude > format.max_code) {
    const bool is_inf = format.mantissa_bits == 2 && magnitude == 0x7c;
    const float special = is_inf ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    return sign ? -special : special;
  }
  const int significand = exponent == 0 ? mantissa : mantissa | 1 << format.mantissa_bits;
  const int shift = (exponent == 0 ? 1 : exponent) - format.bias - format.mantissa_bits;
  const float value = static_cast<float>(significand) * power_of_two(shift);
  return sign ? -value : value;
}

constexpr std::array<float, 256> fp8_table(const Fp8Format& format) {
  std::array<float, 256> table{};
  for (std::size_t code = 0; code < table.size(); ++code)
    table[code] = fp8_decode(static_cast<std::uint8_t>(code), format);
  return table;
}

// Saturates at the largest finite number, Inf included. For e4m3fn: 272 lies half way between 256 and 288 and gives 256
// (0x78).
constexpr std::uint8_t fp8_encode(float value, const Fp8Format& format) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return format.nan_code;
  const int drop = 23 - format.mantissa_bits;
  std::uint32_t code = 0;
  if (magnitude >= static_cast<std::uint32_t>(128 - format.bias) << 23) {  // a normal number of the format
    const std::uint32_t half = (1u << (drop - 1)) - 1 + (magnitude >> drop & 1);
    code = (magnitude + half) >> drop;
    code -= static_cast<std::uint32_t>(127 - format.bias) << format.mantissa_bits;
  } else {  // adding 2^23 subnormal steps makes the addition round to a whole
            // number of them
    const float steps = power_of_two(23 + 1 - format.bias - format.mantissa_bits);
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + steps) - std::bit_cast<std::uint32_t>(steps);
  }
  if (code > format.max_code) code = format.max_code;
  if (format.is_fnuz && code == 0) return 0;
  return static_cast<std::uint8_t>(code | (bits >> 24 & 0x80u));
}

inline constexpr std::array<float, 256> kE4M3FNValues = fp8_table(kE4M3FN);
inline constexpr std::array<float, 256> kE4M3FNUZValues = fp8_table(kE4M3FNUZ);
inline constexpr std::array<float, 256> kE5M2Values = fp8_table(kE5M2);

}  // namespace detail

// 0x7e -> 448, 0x01 -> 2^-9, 0x7f and 0xff -> NaN.
inline float e4m3fn_to_f32(std::uint8_t code) { return detail::kE4M3FNValues[code]; }
// 0x7f -> 240, 0x01 -> 2^-10, 0x80 -> NaN.
inline float e4m3fnuz_to_f32(std::uint8_t code) { return detail::kE4M3FNUZValues[code]; }
// 0x7b -> 57344, 0x01 -> 2^-16, 0x7c -> Inf, 0x7d -> NaN.
inline float e5m2_to_f32(std::uint8_t code) { return detail::kE5M2Values[code]; }

// 1.0625 -> 0x38 (1), 1000 -> 0x7e (448), NaN -> 0x7f.
constexpr std::uint8_t f32_to_e4m3fn(float value) { return detail::fp8_encode(value, e4m3fn_format()); }
// 1 -> 0x40, 1000 -> 0x7f (240), -0 -> 0x00, NaN -> 0x80.
constexpr std::uint8_t f32_to_e4m3fnuz(float value) { return detail::fp8_encode(value, e4m3fnuz_format()); }
// 1 -> 0x3c, 1e6 -> 0x7b (57344), NaN -> 0x7f.
constexpr std::uint8_t f32_to_e5m2(float value) { return detail::fp8_encode(value, e5m2_format()); }

// 2^(code - 127): 130 -> 8, 0 -> 2^-127, 255 -> NaN.
constexpr float e8m0_to_f32(std::uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(code == 0 ? 0x00400000u : static_cast<std::uint32_t>(code) << 23);
}

// 0x3f80 -> 1.
constexpr float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// 1 + 2^-8 lies half way between 0x3f80 and 0x3f81 and gives 0x3f80. NaN stays NaN.
constexpr std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// 0x3c00 -> 1, 0x0001 -> 2^-24.
constexpr float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float value = static_cast<float>(magnitude) * detail::power_of_two(-24);
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

// 65519 -> 0x7bff (65504), 65520 -> 0x7c00 (Inf). NaN stays NaN.
constexpr std::uint16_t f32_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and above
  std::uint32_t code = 0;
  if (magnitude >= 0x38800000u) {  // 2^-14: a normal number of the format
    code = ((magnitude + 0xfffu + (magnitude >> 13 & 1)) >> 13) - (112u << 10);
  } else {  // adding 2^23 steps of 2^-24 makes the addition round to a whole
            // number of them
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
  }
  return static_cast<std::uint16_t>(sign | code);
}

// The value of an e4m3fn, e4m3fnuz or e5m2 code.
inline const std::array<float, 256>& fp8_values(DType dtype) {
  if (dtype == DType::kE5M2) return detail::kE5M2Values;
  return dtype == DType::kE4M3FNUZ ? detail::kE4M3FNUZValues : detail::kE4M3FNValues;
}
inline float fp8_to_f32(std::uint8_t code, DType dtype) { return fp8_values(dtype)[code]; }

// Element `index` of an f32, bf16 or f16 array.
SCALEDMM_HOST_DEVICE inline float load_f32(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kBF16:
      return bf16_to_f32(static_cast<const std::uint16_t*>(data)[index]);
    case DType::kF16:
      return f16_to_f32(static_cast<const std::uint16_t*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

// Writes element `index` of an f32, bf16 or f16 array, rounded once.
SCALEDMM_HOST_DEVICE inline void store_f32(float value, void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kBF16:
      static_cast<std::uint16_t*>(data)[index] = f32_to_bf16(value);
      break;
    case DType::kF16:
      static_cast<std::uint16_t*>(data)[index] = f32_to_f16(value);
      break;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

}  // namespace scaledmm
