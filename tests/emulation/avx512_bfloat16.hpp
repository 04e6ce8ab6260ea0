// AVX-512-BF16.   Source: Intel SDM vol. 2, VDPBF16PS, VCVTNEPS2BF16. These round to nearest even, take denormal inputs
// for zero, turn denormal results into signed zero, and neither read nor set MXCSR.
#pragma once

#include "avx512_float.hpp"

namespace scaledmm::emu {
namespace {

inline __m256 flush(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7F800000));
  const __m256i tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_srli_epi32(tiny, 1), bits));
}

// a * b + c where a and b have bfloat16 precision or one of them is 1. A result is denormal by its value rounded to 24
// bits with no bound on the exponent, so one just below 2^-126 may round up to it and still count; those few are
// decided in f64, exactly.
inline __m256 fused_flushing(__m256 a, __m256 b, __m256 c) {
  __m256 r = flush(_mm256_fmadd_ps(a, b, c));
  const __m256 smallest = _mm256_set1_ps(0x1p-126f);
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(absolute(r), smallest, _CMP_EQ_OQ)) != 0, 0)) {
    const auto x = EMU_LANES(float, a), y = EMU_LANES(float, b), z = EMU_LANES(float, c);
    auto result = EMU_LANES(float, r);
    for (int i = 0; i < 8; ++i) {
      const double exact = __builtin_fma(double{x.v[i]}, double{y.v[i]}, double{z.v[i]});
      if (__builtin_fabs(exact) < 0x1p-126 - 0x1p-151) result.v[i] = __builtin_copysignf(0.0f, result.v[i]);
    }
    r = __builtin_bit_cast(__m256, result);
  }
  return r;
}

inline __m256 odd_bfloat16(__m256i a) {
  return flush(_mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(-65536))));
}
inline __m256 even_bfloat16(__m256i a) { return flush(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16))); }

// Two fused multiply-adds in sequence, the odd pair first.
inline __m256 dot_bfloat16(__m256 c, __m256i a, __m256i b) {
  const __m256 odd = fused_flushing(odd_bfloat16(a), odd_bfloat16(b), flush(c));
  return fused_flushing(even_bfloat16(a), even_bfloat16(b), odd);
}
inline __m512 _mm512_dpbf16_ps(__m512 c, __m512bh a, __m512bh b) {
  return {dot_bfloat16(c.lo, a.lo, b.lo), dot_bfloat16(c.hi, a.hi, b.hi)};
}
inline __m256 _mm256_dpbf16_ps(__m256 c, __m256bh a, __m256bh b) { return dot_bfloat16(c, (__m256i)a, (__m256i)b); }
inline __m128 _mm_dpbf16_ps(__m128 c, __m128bh a, __m128bh b) {
  return _mm256_castps256_ps128(
      dot_bfloat16(_mm256_zextps128_ps256(c), _mm256_zextsi128_si256((__m128i)a), _mm256_zextsi128_si256((__m128i)b)));
}

inline std::uint16_t to_bfloat16(std::uint32_t a) {
  const std::uint32_t magnitude = a & 0x7FFFFFFF;
  const std::uint32_t nearest = (a + 0x7FFF + (a >> 16 & 1)) >> 16;
  const std::uint32_t result = magnitude > 0x7F800000 ? a >> 16 | 0x40
                               : magnitude < 0x800000 ? (a >> 31) << 15
                                                      : nearest;
  return static_cast<std::uint16_t>(result);
}
// The first operand of the two-operand form becomes the upper half.
template <class To, class From>
inline To narrow_to_bfloat16(From a) {
  const auto x = EMU_LANES(std::uint32_t, a);
  Lanes<std::uint16_t, sizeof(To) / 2> r{};
  for (unsigned i = 0; i < sizeof(From) / 4; ++i) r.v[i] = to_bfloat16(x.v[i]);
  return __builtin_bit_cast(To, r);
}
template <class V>
struct Pair {
  V low, high;
};
inline __m256bh _mm512_cvtneps_pbh(__m512 a) { return narrow_to_bfloat16<__m256bh>(a); }
inline __m128bh _mm256_cvtneps_pbh(__m256 a) { return narrow_to_bfloat16<__m128bh>(a); }
inline __m128bh _mm_cvtneps_pbh(__m128 a) { return narrow_to_bfloat16<__m128bh>(a); }
inline __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  return narrow_to_bfloat16<__m512bh>(Pair<__m512>{low, high});
}
inline __m256bh _mm256_cvtne2ps_pbh(__m256 high, __m256 low) { return narrow_to_bfloat16<__m256bh>(__m512(low, high)); }
inline __m128bh _mm_cvtne2ps_pbh(__m128 high, __m128 low) {
  return narrow_to_bfloat16<__m128bh>(_mm256_set_m128(high, low));
}

inline __m512 _mm512_cvtpbh_ps(__m256bh a) {
  const __m256i bits = (__m256i)a;
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(bits)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(bits, 1)), 16))};
}
inline __m256 _mm256_cvtpbh_ps(__m128bh a) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)a), 16));
}
inline __m128 _mm_cvtpbh_ps(__m128bh a) { return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32((__m128i)a), 16)); }

// The lanes past those of the source are zero whatever the mask.
template <class V>
constexpr std::uint64_t lanes_of() {
  return (std::uint64_t{1} << (sizeof(V) / 4)) - 1;
}
#define EMU_BFLOAT16_MASKED(P, V, Wide, Narrow, mask)                                                              \
  inline V P##_mask_dpbf16_ps(V c, mask k, Wide a, Wide b) { return select<float>(k, P##_dpbf16_ps(c, a, b), c); } \
  inline V P##_maskz_dpbf16_ps(mask k, V c, Wide a, Wide b) {                                                      \
    return select<float>(k, P##_dpbf16_ps(c, a, b), EMU_ZERO(V));                                                  \
  }                                                                                                                \
  inline Wide P##_mask_cvtne2ps_pbh(Wide src, EMU_MASK(Wide, std::int16_t) k, V a, V b) {                          \
    return select<std::int16_t>(k, P##_cvtne2ps_pbh(a, b), src);                                                   \
  }                                                                                                                \
  inline Wide P##_maskz_cvtne2ps_pbh(EMU_MASK(Wide, std::int16_t) k, V a, V b) {                                   \
    return select<std::int16_t>(k, P##_cvtne2ps_pbh(a, b), EMU_ZERO(Wide));                                        \
  }                                                                                                                \
  inline Narrow P##_mask_cvtneps_pbh(Narrow src, mask k, V a) {                                                    \
    return select<std::int16_t>(k | ~lanes_of<V>(), P##_cvtneps_pbh(a), src);                                      \
  }                                                                                                                \
  inline Narrow P##_maskz_cvtneps_pbh(mask k, V a) {                                                               \
    return select<std::int16_t>(k, P##_cvtneps_pbh(a), EMU_ZERO(Narrow));                                          \
  }                                                                                                                \
  inline V P##_mask_cvtpbh_ps(V src, mask k, Narrow a) { return select<float>(k, P##_cvtpbh_ps(a), src); }         \
  inline V P##_maskz_cvtpbh_ps(mask k, Narrow a) { return select<float>(k, P##_cvtpbh_ps(a), EMU_ZERO(V)); }
EMU_BFLOAT16_MASKED(_mm, __m128, __m128bh, __m128bh, __mmask8)
EMU_BFLOAT16_MASKED(_mm256, __m256, __m256bh, __m128bh, __mmask8)
EMU_BFLOAT16_MASKED(_mm512, __m512, __m512bh, __m256bh, __mmask16)
#undef EMU_BFLOAT16_MASKED

}  // namespace
}  // namespace scaledmm::emu
