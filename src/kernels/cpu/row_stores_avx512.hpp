// Rows of outputs in AVX-512: f32 to y's type, rounded once, 16 or fewer at a time. Each file that includes this has
// its own copy, so that none of it is a symbol that the linker could share with baseline code.
#pragma once

#include <cstdint>

#include "device/target.hpp"

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
// clang-format on
namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr __mmask16 lanes_below(std::int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1 << count) - 1);
}

// f32_to_bf16 on 16 lanes.
inline __m256i to_bf16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40)));
}

struct StoreF32 {
  using Element = float;
  static void store(float* y, __mmask16 mask, __m512 values) { _mm512_mask_storeu_ps(y, mask, values); }
};
struct StoreBF16 {
  using Element = std::uint16_t;
  static void store(std::uint16_t* y, __mmask16 mask, __m512 values) {
    _mm256_mask_storeu_epi16(y, mask, to_bf16(values));
  }
};
struct StoreF16 {
  using Element = std::uint16_t;
  static void store(std::uint16_t* y, __mmask16 mask, __m512 values) {
    _mm256_mask_storeu_epi16(y, mask, _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
SCALEDMM_TARGET_END
