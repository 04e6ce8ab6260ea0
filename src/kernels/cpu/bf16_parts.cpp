#include "kernels/cpu/bf16_parts.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "device/target.hpp"
#include "kernels/cpu/fp8_rows.hpp"
#include "kernels/cpu/row_values.hpp"
#include "numerics/formats.hpp"

namespace scaledmm::bf16 {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffff;

// The largest magnitude of some values, and the smallest but zero minus 1: a zero wraps round to the top. As bits.
struct Range {
  std::uint32_t largest = 0;
  std::uint32_t below = 0xffffffff;
};

float power_of(const Range& range) {
  if (range.below == 0xffffffff) return 1.0f;  // all zero
  const std::uint32_t smallest = range.below + 1;
  const int exponent = static_cast<int>(smallest >> 23);
  // The exponent field 0 stands for 0, -1, ... with each leading zero of a denormal.
  const int least = exponent > 0 ? exponent : 9 - std::countl_zero(smallest);
  return fp8::bf16_row_power(least, static_cast<int>(range.largest >> 23));
}

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c")
// clang-format on

Range range_of(const float* x, std::int64_t k) {
  __m256i largest = _mm256_setzero_si256();
  __m256i below = _mm256_set1_epi32(-1);
  const auto take = [&](__m256 values) {
    const __m256i magnitudes = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(kMagnitude));
    largest = _mm256_max_epu32(largest, magnitudes);
    below = _mm256_min_epu32(below, _mm256_sub_epi32(magnitudes, _mm256_set1_epi32(1)));
  };
  std::int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) take(_mm256_loadu_ps(x + i));
  alignas(32) float last[kLanes] = {};
  std::memcpy(last, x + i, static_cast<std::size_t>(k - i) * sizeof(float));
  take(_mm256_load_ps(last));
  alignas(32) std::uint32_t largest_of[kLanes];
  alignas(32) std::uint32_t below_of[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(largest_of), largest);
  _mm256_store_si256(reinterpret_cast<__m256i*>(below_of), below);
  return {*std::max_element(largest_of, largest_of + kLanes), *std::min_element(below_of, below_of + kLanes)};
}

// The parts of 8 values, each to 16 bytes, `step` elements from part to part.
template <int kParts>
SCALEDMM_INLINE inline void split_eight(__m256 x, std::uint16_t* out, std::int64_t step) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  const __m256i not_finite = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(x), exponent), exponent);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  __m256i bits = _mm256_or_si256(_mm256_castps_si256(x), _mm256_and_si256(is_nan, _mm256_set1_epi32(0x400000)));
  for (int part = 0; part < kParts; ++part) {
    bits = _mm256_and_si256(bits, high);
    const __m256i words = _mm256_srli_epi32(bits, 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + part * step),
                     _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    x = _mm256_sub_ps(x, _mm256_castsi256_ps(bits));
    bits = _mm256_andnot_si256(not_finite, _mm256_castps_si256(x));
  }
}

template <class Load, int kParts>
void split(const typename Load::Element* x, std::int64_t k, float power, std::uint16_t* out) {
  const __m256 factor = _mm256_set1_ps(power);
  std::int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) split_eight<kParts>(_mm256_mul_ps(Load::load(x + i), factor), out + i, k);
  if (i == k) return;
  typename Load::Element last[kLanes] = {};
  std::memcpy(last, x + i, static_cast<std::size_t>(k - i) * sizeof(last[0]));
  std::uint16_t parts[kParts][kLanes];
  split_eight<kParts>(_mm256_mul_ps(Load::load(last), factor), parts[0], kLanes);
  for (int part = 0; part < kParts; ++part) {
    std::memcpy(out + part * k + i, parts[part], static_cast<std::size_t>(k - i) * sizeof(parts[0][0]));
  }
}

}  // namespace

std::int64_t parts_of(DType x) { return x == DType::kF32 ? 3 : x == DType::kF16 ? 2 : 1; }

float split_row(const void* x, DType dtype, std::int64_t k, std::uint16_t* parts) {
  if (dtype == DType::kF16) {  // between 2^-24 and 2^16
    split<LoadF16, 2>(static_cast<const std::uint16_t*>(x), k, 1.0f, parts);
    return 1.0f;
  }
  const auto* values = static_cast<const float*>(x);
  const float power = power_of(range_of(values, k));
  split<LoadF32, 3>(values, k, power, parts);
  return power == 0.0f ? 0.0f : 1.0f / power;
}

void add_parts(std::int64_t parts, std::int64_t panels, std::int64_t rows, float* sums, std::int64_t panel_sums) {
  constexpr std::int64_t kColumns = fp8::kPanelColumns;
  for (std::int64_t p = 0; p < panels; ++p, sums += panel_sums) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* from = sums + row * parts * kColumns;
      for (std::int64_t c = 0; c < kColumns; c += kLanes) {
        __m256 sum = _mm256_load_ps(from + (parts - 1) * kColumns + c);
        for (std::int64_t part = parts - 2; part >= 0; --part) {
          sum = _mm256_add_ps(sum, _mm256_load_ps(from + part * kColumns + c));
        }
        _mm256_store_ps(sums + row * kColumns + c, sum);
      }
    }
  }
}

SCALEDMM_TARGET_END

}  // namespace scaledmm::bf16
