// Integer dot products: VNNI in three widths and the AVX-VNNI and AVX-VNNI-INT8 spellings. The plain forms wrap; the
// saturating ones sum the products and the accumulator exactly and saturate once.
#pragma once

#include "avx512_types.hpp"

namespace scaledmm::emu {
namespace {

// The even or odd bytes of each 32-bit lane as 16-bit numbers.
template <bool kSigned>
inline __m256i even_bytes(__m256i a) {
  return kSigned ? _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8) : _mm256_and_si256(a, _mm256_set1_epi16(255));
}
template <bool kSigned>
inline __m256i odd_bytes(__m256i a) {
  return kSigned ? _mm256_srai_epi16(a, 8) : _mm256_srli_epi16(a, 8);
}
// Exact: each of the two pair sums is at most 2 * 255 * 255 in size.
template <bool kSignedA, bool kSignedB>
inline __m256i byte_products(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_madd_epi16(even_bytes<kSignedA>(a), even_bytes<kSignedB>(b)),
                          _mm256_madd_epi16(odd_bytes<kSignedA>(a), odd_bytes<kSignedB>(b)));
}

template <bool kSignedResult>
inline std::int32_t saturate_sum(std::int64_t sum) {
  if constexpr (kSignedResult) {
    return static_cast<std::int32_t>(sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum);
  } else {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(sum > UINT32_MAX ? UINT32_MAX : sum));
  }
}

template <bool kSignedA, bool kSignedB>
inline __m256i dot_bytes(__m256i c, __m256i a, __m256i b) {
  return _mm256_add_epi32(c, byte_products<kSignedA, kSignedB>(a, b));
}
template <bool kSignedA, bool kSignedB>
inline __m256i dot_bytes_saturating(__m256i c, __m256i a, __m256i b) {
  constexpr bool kSignedResult = kSignedA || kSignedB;
  auto r = EMU_LANES(std::int32_t, c);
  const auto products = EMU_LANES(std::int32_t, (byte_products<kSignedA, kSignedB>(a, b)));
  for (int i = 0; i < 8; ++i) {
    const std::int64_t start = kSignedResult ? std::int64_t{r.v[i]} : std::int64_t{static_cast<std::uint32_t>(r.v[i])};
    r.v[i] = saturate_sum<kSignedResult>(start + products.v[i]);
  }
  return __builtin_bit_cast(__m256i, r);
}
inline __m256i dot_words(__m256i c, __m256i a, __m256i b) { return _mm256_add_epi32(c, _mm256_madd_epi16(a, b)); }
inline __m256i dot_words_saturating(__m256i c, __m256i a, __m256i b) {
  auto r = EMU_LANES(std::int32_t, c);
  const auto x = EMU_LANES(std::int16_t, a), y = EMU_LANES(std::int16_t, b);
  for (int i = 0; i < 8; ++i) {
    const std::int64_t low = std::int64_t{x.v[2 * i]} * y.v[2 * i],
                       high = std::int64_t{x.v[2 * i + 1]} * y.v[2 * i + 1];
    r.v[i] = saturate_sum<true>(r.v[i] + low + high);
  }
  return __builtin_bit_cast(__m256i, r);
}

inline __m256i widen(__m128i a) { return _mm256_castsi128_si256(a); }

#define EMU_DOT(op, ...)                                                                       \
  inline __m256i _mm256_##op(__m256i c, __m256i a, __m256i b) { return __VA_ARGS__(c, a, b); } \
  inline __m128i _mm_##op(__m128i c, __m128i a, __m128i b) {                                   \
    return _mm256_castsi256_si128(__VA_ARGS__(widen(c), widen(a), widen(b)));                  \
  }                                                                                            \
  inline __m512i _mm512_##op(__m512i c, __m512i a, __m512i b) {                                \
    return {__VA_ARGS__(c.lo, a.lo, b.lo), __VA_ARGS__(c.hi, a.hi, b.hi)};                     \
  }                                                                                            \
  EMU_WIDTHS(EMU_MASKED_3, i, std::int32_t, op)
#define EMU_DOT_VEX(op)                                                                                            \
  inline __m256i _mm256_##op##_avx_epi32(__m256i c, __m256i a, __m256i b) { return _mm256_##op##_epi32(c, a, b); } \
  inline __m128i _mm_##op##_avx_epi32(__m128i c, __m128i a, __m128i b) { return _mm_##op##_epi32(c, a, b); }
EMU_DOT(dpbusd_epi32, dot_bytes<false, true>)
EMU_DOT(dpbusds_epi32, dot_bytes_saturating<false, true>)
EMU_DOT(dpwssd_epi32, dot_words)
EMU_DOT(dpwssds_epi32, dot_words_saturating)
EMU_DOT_VEX(dpbusd)
EMU_DOT_VEX(dpbusds)
EMU_DOT_VEX(dpwssd)
EMU_DOT_VEX(dpwssds)
EMU_DOT(dpbssd_epi32, dot_bytes<true, true>)
EMU_DOT(dpbssds_epi32, dot_bytes_saturating<true, true>)
EMU_DOT(dpbsud_epi32, dot_bytes<true, false>)
EMU_DOT(dpbsuds_epi32, dot_bytes_saturating<true, false>)
EMU_DOT(dpbuud_epi32, dot_bytes<false, false>)
EMU_DOT(dpbuuds_epi32, dot_bytes_saturating<false, false>)
#undef EMU_DOT
#undef EMU_DOT_VEX

}  // namespace
}  // namespace scaledmm::emu
