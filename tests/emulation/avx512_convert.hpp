// Conversions between lane types: widening, narrowing with and without saturation, integer to and from float, float16
// storage.
#pragma once

#include "avx512_types.hpp"

namespace scaledmm::emu {
namespace {

template <class To, class From, class VTo, class VFrom>
inline VTo widen_lanes(VFrom a) {
  const auto x = EMU_LANES(From, a);
  Lanes<To, sizeof(VTo) / sizeof(To)> r;
  for (unsigned i = 0; i < sizeof(VTo) / sizeof(To); ++i) r.v[i] = x.v[i];
  return __builtin_bit_cast(VTo, r);
}
#define EMU_WIDEN_MASKED(P, VTo, VFrom, To, From, op)                   \
  inline VTo P##_mask_##op(VTo src, EMU_MASK(VTo, To) k, VFrom a) {     \
    return select<To>(k, widen_lanes<To, From, VTo>(a), src);           \
  }                                                                     \
  inline VTo P##_maskz_##op(EMU_MASK(VTo, To) k, VFrom a) {             \
    return select<To>(k, widen_lanes<To, From, VTo>(a), EMU_ZERO(VTo)); \
  }
#define EMU_WIDEN(VFrom, To, From, op)                                              \
  inline __m512i _mm512_##op(VFrom a) { return widen_lanes<To, From, __m512i>(a); } \
  EMU_WIDEN_MASKED(_mm512, __m512i, VFrom, To, From, op)                            \
  EMU_WIDEN_MASKED(_mm256, __m256i, __m128i, To, From, op)                          \
  EMU_WIDEN_MASKED(_mm, __m128i, __m128i, To, From, op)
EMU_WIDEN(__m256i, std::int16_t, std::int8_t, cvtepi8_epi16)
EMU_WIDEN(__m128i, std::int32_t, std::int8_t, cvtepi8_epi32)
EMU_WIDEN(__m128i, std::int64_t, std::int8_t, cvtepi8_epi64)
EMU_WIDEN(__m256i, std::int32_t, std::int16_t, cvtepi16_epi32)
EMU_WIDEN(__m128i, std::int64_t, std::int16_t, cvtepi16_epi64)
EMU_WIDEN(__m256i, std::int64_t, std::int32_t, cvtepi32_epi64)
EMU_WIDEN(__m256i, std::int16_t, std::uint8_t, cvtepu8_epi16)
EMU_WIDEN(__m128i, std::int32_t, std::uint8_t, cvtepu8_epi32)
EMU_WIDEN(__m128i, std::int64_t, std::uint8_t, cvtepu8_epi64)
EMU_WIDEN(__m256i, std::int32_t, std::uint16_t, cvtepu16_epi32)
EMU_WIDEN(__m128i, std::int64_t, std::uint16_t, cvtepu16_epi64)
EMU_WIDEN(__m256i, std::int64_t, std::uint32_t, cvtepu32_epi64)
#undef EMU_WIDEN
#undef EMU_WIDEN_MASKED

template <class To, class From>
inline To clamp_to(From a) {
  constexpr From kMax = static_cast<From>(To(-1) > To(0) ? To(-1) : (std::uint64_t{1} << (8 * sizeof(To) - 1)) - 1);
  if (a > kMax) return static_cast<To>(kMax);
  if constexpr (To(-1) < To(0)) {
    if (a < -kMax - 1) return static_cast<To>(-kMax - 1);
  }
  return static_cast<To>(a);
}
// Lanes beyond those of the source are zero, with and without a mask.
template <class To, class From, bool kSaturate, class VTo, class VFrom>
inline VTo narrow_lanes(VTo src, std::uint64_t mask, VFrom a) {
  const auto x = EMU_LANES(From, a);
  const auto kept = EMU_LANES(To, src);
  Lanes<To, sizeof(VTo) / sizeof(To)> r{};
  for (unsigned i = 0; i < sizeof(VFrom) / sizeof(From); ++i) {
    const To value = kSaturate ? clamp_to<To>(x.v[i]) : static_cast<To>(x.v[i]);
    r.v[i] = bit(mask, i) ? value : kept.v[i];
  }
  return __builtin_bit_cast(VTo, r);
}
#define EMU_NARROW(P, VTo, VFrom, To, From, saturate, op, store)                                     \
  inline VTo P##_##op(VFrom a) { return narrow_lanes<To, From, saturate>(EMU_ZERO(VTo), ~0ull, a); } \
  inline VTo P##_mask_##op(VTo src, EMU_MASK(VFrom, From) k, VFrom a) {                              \
    return narrow_lanes<To, From, saturate>(src, k, a);                                              \
  }                                                                                                  \
  inline VTo P##_maskz_##op(EMU_MASK(VFrom, From) k, VFrom a) {                                      \
    return narrow_lanes<To, From, saturate>(EMU_ZERO(VTo), k, a);                                    \
  }                                                                                                  \
  inline void P##_mask_##store(void* p, EMU_MASK(VFrom, From) k, VFrom a) {                          \
    const auto r = EMU_LANES(To, P##_##op(a));                                                       \
    for (unsigned i = 0; i < sizeof(VFrom) / sizeof(From); ++i)                                      \
      if (bit(k, i)) __builtin_memcpy(static_cast<char*>(p) + i * sizeof(To), &r.v[i], sizeof(To));  \
  }
#define EMU_NARROW_MODES(P, VTo, VFrom, to, from)                                                   \
  EMU_NARROW(P, VTo, VFrom, std::uint##to##_t, std::uint##from##_t, false, cvtepi##from##_epi##to,  \
             cvtepi##from##_storeu_epi##to)                                                         \
  EMU_NARROW(P, VTo, VFrom, std::int##to##_t, std::int##from##_t, true, cvtsepi##from##_epi##to,    \
             cvtsepi##from##_storeu_epi##to)                                                        \
  EMU_NARROW(P, VTo, VFrom, std::uint##to##_t, std::uint##from##_t, true, cvtusepi##from##_epi##to, \
             cvtusepi##from##_storeu_epi##to)
#define EMU_NARROW_WIDTHS(V512, V256, to, from)     \
  EMU_NARROW_MODES(_mm512, V512, __m512i, to, from) \
  EMU_NARROW_MODES(_mm256, V256, __m256i, to, from) \
  EMU_NARROW_MODES(_mm, __m128i, __m128i, to, from)
EMU_NARROW_WIDTHS(__m256i, __m128i, 8, 16)
EMU_NARROW_WIDTHS(__m128i, __m128i, 8, 32)
EMU_NARROW_WIDTHS(__m256i, __m128i, 16, 32)
EMU_NARROW_WIDTHS(__m128i, __m128i, 8, 64)
EMU_NARROW_WIDTHS(__m128i, __m128i, 16, 64)
EMU_NARROW_WIDTHS(__m256i, __m128i, 32, 64)
#undef EMU_NARROW
#undef EMU_NARROW_MODES
#undef EMU_NARROW_WIDTHS

// _MM_FROUND_* as an argument: the real instruction takes it as an immediate.
inline __m256 round_half(__m256 a, int mode) {
  switch (mode & 7) {
    case _MM_FROUND_TO_NEAREST_INT:
      return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    case _MM_FROUND_TO_NEG_INF:
      return _mm256_round_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    case _MM_FROUND_TO_POS_INF:
      return _mm256_round_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    case _MM_FROUND_TO_ZERO:
      return _mm256_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    default:
      return _mm256_round_ps(a, _MM_FROUND_CUR_DIRECTION);
  }
}
inline void require_nearest(int mode) {
  if ((mode & 7) != _MM_FROUND_TO_NEAREST_INT && (mode & 7) != _MM_FROUND_CUR_DIRECTION)
    fault("only round to nearest is emulated here");
}
inline std::uint32_t to_unsigned(float a) {
  return a > -1.0f && a < 4294967296.0f ? static_cast<std::uint32_t>(static_cast<std::int64_t>(a)) : ~0u;
}

inline __m512i _mm512_cvtps_epi32(__m512 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline __m512i _mm512_cvttps_epi32(__m512 a) { return {_mm256_cvttps_epi32(a.lo), _mm256_cvttps_epi32(a.hi)}; }
inline __m512 _mm512_cvtepi32_ps(__m512i a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline __m512i _mm512_cvt_roundps_epi32(__m512 a, int mode) {
  return _mm512_cvttps_epi32({round_half(a.lo, mode), round_half(a.hi, mode)});
}
inline __m512 _mm512_cvt_roundepi32_ps(__m512i a, int mode) {
  require_nearest(mode);
  return _mm512_cvtepi32_ps(a);
}
template <class VTo, class To, class From, class VFrom, class Convert>
inline VTo convert_lanes(VFrom a, Convert convert) {
  const auto x = EMU_LANES(From, a);
  Lanes<To, sizeof(VTo) / sizeof(To)> r;
  for (unsigned i = 0; i < sizeof(VTo) / sizeof(To); ++i) r.v[i] = convert(x.v[i]);
  return __builtin_bit_cast(VTo, r);
}
#define EMU_UNSIGNED(P, VInteger, VFloat)                                                                              \
  inline VInteger P##_cvttps_epu32(VFloat a) { return convert_lanes<VInteger, std::uint32_t, float>(a, to_unsigned); } \
  inline VInteger P##_cvtps_epu32(VFloat a) {                                                                          \
    return convert_lanes<VInteger, std::uint32_t, float>(a, [](float x) { return to_unsigned(__builtin_rintf(x)); });  \
  }                                                                                                                    \
  inline VFloat P##_cvtepu32_ps(VInteger a) {                                                                          \
    return convert_lanes<VFloat, float, std::uint32_t>(a, [](std::uint32_t x) { return static_cast<float>(x); });      \
  }
EMU_UNSIGNED(_mm, __m128i, __m128)
EMU_UNSIGNED(_mm256, __m256i, __m256)
EMU_UNSIGNED(_mm512, __m512i, __m512)
#undef EMU_UNSIGNED

#define EMU_CONVERT_MASKED(P, VTo, VFrom, T, op)                                                            \
  inline VTo P##_mask_##op(VTo src, EMU_MASK(VTo, T) k, VFrom a) { return select<T>(k, P##_##op(a), src); } \
  inline VTo P##_maskz_##op(EMU_MASK(VTo, T) k, VFrom a) { return select<T>(k, P##_##op(a), EMU_ZERO(VTo)); }
#define EMU_CONVERT_WIDTHS(op, to, from)                                 \
  EMU_CONVERT_MASKED(_mm, __m128##to, __m128##from, std::int32_t, op)    \
  EMU_CONVERT_MASKED(_mm256, __m256##to, __m256##from, std::int32_t, op) \
  EMU_CONVERT_MASKED(_mm512, __m512##to, __m512##from, std::int32_t, op)
EMU_CONVERT_WIDTHS(cvtps_epi32, i, )
EMU_CONVERT_WIDTHS(cvttps_epi32, i, )
EMU_CONVERT_WIDTHS(cvtps_epu32, i, )
EMU_CONVERT_WIDTHS(cvttps_epu32, i, )
EMU_CONVERT_WIDTHS(cvtepi32_ps, , i)
EMU_CONVERT_WIDTHS(cvtepu32_ps, , i)
#undef EMU_CONVERT_WIDTHS

inline __m512d _mm512_cvtps_pd(__m256 a) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))};
}
inline __m256 _mm512_cvtpd_ps(__m512d a) { return _mm256_set_m128(_mm256_cvtpd_ps(a.hi), _mm256_cvtpd_ps(a.lo)); }
inline __m512d _mm512_cvtepi32_pd(__m256i a) {
  return {_mm256_cvtepi32_pd(_mm256_castsi256_si128(a)), _mm256_cvtepi32_pd(_mm256_extracti128_si256(a, 1))};
}
inline __m256i _mm512_cvtpd_epi32(__m512d a) {
  return _mm256_set_m128i(_mm256_cvtpd_epi32(a.hi), _mm256_cvtpd_epi32(a.lo));
}
inline __m512 _mm512_cvtph_ps(__m256i a) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
}
EMU_CONVERT_MASKED(_mm512, __m512d, __m256, double, cvtps_pd)
EMU_CONVERT_MASKED(_mm512, __m512, __m256i, float, cvtph_ps)
EMU_CONVERT_MASKED(_mm256, __m256, __m128i, float, cvtph_ps)
EMU_CONVERT_MASKED(_mm, __m128, __m128i, float, cvtph_ps)
#undef EMU_CONVERT_MASKED

inline __m128i to_float16(__m256 a, int mode) {
  switch (mode & 7) {
    case _MM_FROUND_TO_NEAREST_INT:
      return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    case _MM_FROUND_TO_NEG_INF:
      return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEG_INF);
    case _MM_FROUND_TO_POS_INF:
      return _mm256_cvtps_ph(a, _MM_FROUND_TO_POS_INF);
    case _MM_FROUND_TO_ZERO:
      return _mm256_cvtps_ph(a, _MM_FROUND_TO_ZERO);
    default:
      return _mm256_cvtps_ph(a, _MM_FROUND_CUR_DIRECTION);
  }
}
inline __m256i _mm512_cvtps_ph(__m512 a, int mode) {
  return _mm256_set_m128i(to_float16(a.hi, mode), to_float16(a.lo, mode));
}
inline __m256i _mm512_cvt_roundps_ph(__m512 a, int mode) { return _mm512_cvtps_ph(a, mode); }
inline __m256i _mm512_mask_cvtps_ph(__m256i src, __mmask16 k, __m512 a, int mode) {
  return select<std::int16_t>(k, _mm512_cvtps_ph(a, mode), src);
}
inline __m256i _mm512_maskz_cvtps_ph(__mmask16 k, __m512 a, int mode) {
  return select<std::int16_t>(k, _mm512_cvtps_ph(a, mode), EMU_ZERO(__m256i));
}

}  // namespace
}  // namespace scaledmm::emu
