// Rows of f32, bf16 or f16 values in AVX2: loads as f32, the largest magnitude, and f32 to bf16. Each file that
// includes this has its own copy, so that none of it is a symbol that the linker could share with baseline code.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "device/target.hpp"
#include "numerics/formats.hpp"
#include "numerics/rounding.hpp"

SCALEDMM_TARGET_BEGIN("avx2,fma,f16c")
namespace scaledmm {
namespace {

inline constexpr std::int64_t kLanes = 8;

// Loads of 8 values as f32.
struct LoadF32 {
  using Element = float;
  static __m256 load(const float* x) { return _mm256_loadu_ps(x); }
};
struct LoadBF16 {
  using Element = std::uint16_t;
  static __m256 load(const std::uint16_t* x) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
};
struct LoadF16 {
  using Element = std::uint16_t;
  static __m256 load(const std::uint16_t* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }
};

// The largest magnitude of a row, as bits: those order as integers, NaN above Inf. With kFinite the values that are not
// finite are left out.
template <bool kFinite>
std::uint32_t largest_magnitude(const float* x, std::int64_t k) {
  constexpr std::int32_t kInf = std::bit_cast<std::int32_t>(std::numeric_limits<float>::infinity());
  const __m256i mask = _mm256_set1_epi32(std::numeric_limits<std::int32_t>::max());
  __m256i largest[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= k; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i + j * kLanes));
      bits = _mm256_and_si256(bits, mask);
      if constexpr (kFinite) bits = _mm256_and_si256(bits, _mm256_cmpgt_epi32(_mm256_set1_epi32(kInf), bits));
      largest[j] = _mm256_max_epu32(largest[j], bits);
    }
  }
  largest[0] = _mm256_max_epu32(_mm256_max_epu32(largest[0], largest[1]), _mm256_max_epu32(largest[2], largest[3]));
  alignas(32) std::uint32_t values[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(values), largest[0]);
  std::uint32_t result = *std::max_element(values, values + kLanes);
  for (; i < k; ++i) {
    if (!kFinite || is_finite(x[i])) result = std::max(result, std::bit_cast<std::uint32_t>(magnitude(x[i])));
  }
  return result;
}

// The same among 16-bit floats whose Inf has the bits `inf`.
template <bool kFinite>
std::uint16_t largest_magnitude(const std::uint16_t* x, std::int64_t k, std::int16_t inf) {
  constexpr std::uint16_t kMagnitude = std::numeric_limits<std::int16_t>::max();
  const __m256i mask = _mm256_set1_epi16(kMagnitude);
  __m256i largest[4] = {};
  std::int64_t i = 0;
  for (; i + 8 * kLanes <= k; i += 8 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i + j * 2 * kLanes));
      bits = _mm256_and_si256(bits, mask);
      if constexpr (kFinite) bits = _mm256_and_si256(bits, _mm256_cmpgt_epi16(_mm256_set1_epi16(inf), bits));
      largest[j] = _mm256_max_epu16(largest[j], bits);
    }
  }
  largest[0] = _mm256_max_epu16(_mm256_max_epu16(largest[0], largest[1]), _mm256_max_epu16(largest[2], largest[3]));
  alignas(32) std::uint16_t values[2 * kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(values), largest[0]);
  std::uint16_t result = *std::max_element(values, values + 2 * kLanes);
  for (; i < k; ++i) {
    const std::uint16_t bits = x[i] & kMagnitude;
    if (!kFinite || bits < inf) result = std::max(result, bits);
  }
  return result;
}

template <bool kFinite = false>
float absmax_of_row(LoadF32, const float* x, std::int64_t k) {
  return std::bit_cast<float>(largest_magnitude<kFinite>(x, k));
}
template <bool kFinite = false>
float absmax_of_row(LoadBF16, const std::uint16_t* x, std::int64_t k) {
  return bf16_to_f32(largest_magnitude<kFinite>(x, k, 0x7f80));
}
template <bool kFinite = false>
float absmax_of_row(LoadF16, const std::uint16_t* x, std::int64_t k) {
  return f16_to_f32(largest_magnitude<kFinite>(x, k, 0x7c00));
}

// f32_to_bf16 on 8 lanes.
inline __m128i to_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

}  // namespace
}  // namespace scaledmm
SCALEDMM_TARGET_END
