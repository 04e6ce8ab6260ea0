// Constants, casts, broadcasts of scalars, and moves and blends by mask.
#pragma once

#include "avx512_types.hpp"

namespace scaledmm::emu {
namespace {

inline __m512i _mm512_setzero_si512() { return EMU_ZERO(__m512i); }
inline __m512i _mm512_setzero_epi32() { return EMU_ZERO(__m512i); }
inline __m512 _mm512_setzero_ps() { return EMU_ZERO(__m512); }
inline __m512 _mm512_setzero() { return EMU_ZERO(__m512); }
inline __m512d _mm512_setzero_pd() { return EMU_ZERO(__m512d); }
inline __m512i _mm512_undefined_epi32() { return EMU_UNDEFINED(__m512i); }
inline __m512 _mm512_undefined_ps() { return EMU_UNDEFINED(__m512); }
inline __m512 _mm512_undefined() { return EMU_UNDEFINED(__m512); }
inline __m512d _mm512_undefined_pd() { return EMU_UNDEFINED(__m512d); }

#define EMU_SET1(op, real, T, S) \
  inline __m512##S _mm512_##op(T value) { return {_mm256_##real(value), _mm256_##real(value)}; }
EMU_SET1(set1_epi8, set1_epi8, char, i)
EMU_SET1(set1_epi16, set1_epi16, short, i)
EMU_SET1(set1_epi32, set1_epi32, int, i)
EMU_SET1(set1_epi64, set1_epi64x, long long, i)
EMU_SET1(set1_ps, set1_ps, float, )
EMU_SET1(set1_pd, set1_pd, double, d)
#undef EMU_SET1

#define EMU_MASKED_SET1(P, V, T, op, real)                                                                  \
  inline V P##_mask_##op(V src, EMU_MASK(V, T) k, T value) { return select<T>(k, P##_##real(value), src); } \
  inline V P##_maskz_##op(EMU_MASK(V, T) k, T value) { return select<T>(k, P##_##real(value), EMU_ZERO(V)); }
EMU_WIDTHS(EMU_MASKED_SET1, i, char, set1_epi8, set1_epi8)
EMU_WIDTHS(EMU_MASKED_SET1, i, short, set1_epi16, set1_epi16)
EMU_WIDTHS(EMU_MASKED_SET1, i, int, set1_epi32, set1_epi32)
EMU_MASKED_SET1(_mm, __m128i, long long, set1_epi64, set1_epi64x)
EMU_MASKED_SET1(_mm256, __m256i, long long, set1_epi64, set1_epi64x)
EMU_MASKED_SET1(_mm512, __m512i, long long, set1_epi64, set1_epi64)
#undef EMU_MASKED_SET1

#define EMU_SET(type, T, S)                                                                          \
  template <class... Value>                                                                          \
  requires(sizeof...(Value) == 64 / sizeof(T)) inline __m512##S _mm512_setr_##type(Value... value) { \
    return __builtin_bit_cast(__m512##S, Lanes<T, 64 / sizeof(T)>{static_cast<T>(value)...});        \
  }                                                                                                  \
  template <class... Value>                                                                          \
  requires(sizeof...(Value) == 64 / sizeof(T)) inline __m512##S _mm512_set_##type(Value... value) {  \
    const T first_last[] = {static_cast<T>(value)...};                                               \
    Lanes<T, 64 / sizeof(T)> r;                                                                      \
    for (unsigned i = 0; i < 64 / sizeof(T); ++i) r.v[i] = first_last[64 / sizeof(T) - 1 - i];       \
    return __builtin_bit_cast(__m512##S, r);                                                         \
  }
EMU_SET(epi8, std::int8_t, i)
EMU_SET(epi16, std::int16_t, i)
EMU_SET(epi32, std::int32_t, i)
EMU_SET(epi64, std::int64_t, i)
EMU_SET(ps, float, )
EMU_SET(pd, double, d)
#undef EMU_SET
inline __m512i _mm512_set4_epi32(int d, int c, int b, int a) {
  const __m256i four = _mm256_set_epi32(d, c, b, a, d, c, b, a);
  return {four, four};
}
inline __m512i _mm512_setr4_epi32(int a, int b, int c, int d) { return _mm512_set4_epi32(d, c, b, a); }

#define EMU_CAST(name, To, From) \
  inline To _mm512_cast##name(From a) { return static_cast<To>(a); }
EMU_CAST(ps_si512, __m512i, __m512)
EMU_CAST(pd_si512, __m512i, __m512d)
EMU_CAST(ph_si512, __m512i, __m512h)
EMU_CAST(si512_ps, __m512, __m512i)
EMU_CAST(si512_pd, __m512d, __m512i)
EMU_CAST(si512_ph, __m512h, __m512i)
EMU_CAST(ps_pd, __m512d, __m512)
EMU_CAST(pd_ps, __m512, __m512d)
EMU_CAST(ps_ph, __m512h, __m512)
EMU_CAST(ph_ps, __m512, __m512h)
#undef EMU_CAST

#define EMU_RESIZE(V, Half, Quarter, half, quarter, whole)                                                \
  inline Half _mm512_cast##whole##_##half(V a) { return a.lo; }                                           \
  inline Quarter _mm512_cast##whole##_##quarter(V a) { return _mm256_cast##half##_##quarter(a.lo); }      \
  inline V _mm512_cast##half##_##whole(Half a) { return {a, EMU_UNDEFINED(Half)}; }                       \
  inline V _mm512_zext##half##_##whole(Half a) { return {a, EMU_ZERO(Half)}; }                            \
  inline V _mm512_cast##quarter##_##whole(Quarter a) {                                                    \
    const struct {                                                                                        \
      Quarter part[4];                                                                                    \
    } r = {{a, EMU_UNDEFINED(Quarter), EMU_UNDEFINED(Quarter), EMU_UNDEFINED(Quarter)}};                  \
    return __builtin_bit_cast(V, r);                                                                      \
  }                                                                                                       \
  inline V _mm512_zext##quarter##_##whole(Quarter a) {                                                    \
    const struct { Quarter part[4]; } r = {{a, EMU_ZERO(Quarter), EMU_ZERO(Quarter), EMU_ZERO(Quarter)}}; \
    return __builtin_bit_cast(V, r);                                                                      \
  }
EMU_RESIZE(__m512i, __m256i, __m128i, si256, si128, si512)
EMU_RESIZE(__m512, __m256, __m128, ps256, ps128, ps512)
EMU_RESIZE(__m512d, __m256d, __m128d, pd256, pd128, pd512)
#undef EMU_RESIZE

inline float _mm512_cvtss_f32(__m512 a) { return _mm256_cvtss_f32(a.lo); }
inline double _mm512_cvtsd_f64(__m512d a) { return _mm256_cvtsd_f64(a.lo); }
inline int _mm512_cvtsi512_si32(__m512i a) { return _mm256_cvtsi256_si32(a.lo); }

#define EMU_MOVES(P, V, T, type)                                                                \
  inline V P##_mask_mov_##type(V src, EMU_MASK(V, T) k, V a) { return select<T>(k, a, src); }   \
  inline V P##_maskz_mov_##type(EMU_MASK(V, T) k, V a) { return select<T>(k, a, EMU_ZERO(V)); } \
  inline V P##_mask_blend_##type(EMU_MASK(V, T) k, V a, V b) { return select<T>(k, b, a); }
EMU_WIDTHS(EMU_MOVES, i, std::int8_t, epi8)
EMU_WIDTHS(EMU_MOVES, i, std::int16_t, epi16)
EMU_WIDTHS(EMU_MOVES, i, std::int32_t, epi32)
EMU_WIDTHS(EMU_MOVES, i, std::int64_t, epi64)
EMU_WIDTHS(EMU_MOVES, , float, ps)
EMU_WIDTHS(EMU_MOVES, d, double, pd)
#undef EMU_MOVES

}  // namespace
}  // namespace scaledmm::emu
