// Float and double arithmetic, comparisons and reductions. Rounding is the one of MXCSR, as on the hardware. The
// approximations rcp14 and rsqrt14 are left out: their bits are tables of the vendors.
#pragma once

#include "avx512_convert.hpp"

namespace scaledmm::emu {
namespace {

#define EMU_BOTH_FLOATS(op) EMU_NATIVE_2(op##_ps, float, ) EMU_NATIVE_2(op##_pd, double, d)
EMU_BOTH_FLOATS(add)
EMU_BOTH_FLOATS(sub)
EMU_BOTH_FLOATS(div)
EMU_BOTH_FLOATS(max)
EMU_BOTH_FLOATS(min)
EMU_BOTH_FLOATS(and)
EMU_BOTH_FLOATS(andnot)
EMU_BOTH_FLOATS(or)
EMU_BOTH_FLOATS(xor)
#undef EMU_BOTH_FLOATS
EMU_NATIVE_1(sqrt_ps, float, )
EMU_NATIVE_1(sqrt_pd, double, d)

// The compiler spells these as `a * b` and would fuse a following addition; the empty asm keeps the rounded product.
inline __m256 rounded(__m256 a) {
  asm("" : "+x"(a));
  return a;
}
inline __m256d rounded(__m256d a) {
  asm("" : "+x"(a));
  return a;
}
inline __m512 _mm512_mul_ps(__m512 a, __m512 b) {
  return {rounded(_mm256_mul_ps(a.lo, b.lo)), rounded(_mm256_mul_ps(a.hi, b.hi))};
}
inline __m512d _mm512_mul_pd(__m512d a, __m512d b) {
  return {rounded(_mm256_mul_pd(a.lo, b.lo)), rounded(_mm256_mul_pd(a.hi, b.hi))};
}
EMU_WIDTHS(EMU_MASKED_SAME_2, , float, mul_ps)
EMU_WIDTHS(EMU_MASKED_SAME_2, d, double, mul_pd)

#define EMU_FUSED(op, T, S)                                                \
  inline __m512##S _mm512_##op(__m512##S a, __m512##S b, __m512##S c) {    \
    return {_mm256_##op(a.lo, b.lo, c.lo), _mm256_##op(a.hi, b.hi, c.hi)}; \
  }                                                                        \
  EMU_WIDTHS(EMU_MASKED_3, S, T, op)                                       \
  EMU_WIDTHS(EMU_MASK3_3, S, T, op)
#define EMU_FUSED_BOTH(op) EMU_FUSED(op##_ps, float, ) EMU_FUSED(op##_pd, double, d)
EMU_FUSED_BOTH(fmadd)
EMU_FUSED_BOTH(fmsub)
EMU_FUSED_BOTH(fnmadd)
EMU_FUSED_BOTH(fnmsub)
EMU_FUSED_BOTH(fmaddsub)
#undef EMU_FUSED
#undef EMU_FUSED_BOTH

#define EMU_EXPLICIT_ROUNDING(op)                                      \
  inline __m512 _mm512_##op##_round_ps(__m512 a, __m512 b, int mode) { \
    require_nearest(mode);                                             \
    return _mm512_##op##_ps(a, b);                                     \
  }
EMU_EXPLICIT_ROUNDING(add)
EMU_EXPLICIT_ROUNDING(sub)
EMU_EXPLICIT_ROUNDING(mul)
EMU_EXPLICIT_ROUNDING(div)
#undef EMU_EXPLICIT_ROUNDING
inline __m512 _mm512_fmadd_round_ps(__m512 a, __m512 b, __m512 c, int mode) {
  require_nearest(mode);
  return _mm512_fmadd_ps(a, b, c);
}

inline __m256 absolute(__m256 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline __m512 _mm512_abs_ps(__m512 a) { return {absolute(a.lo), absolute(a.hi)}; }
inline __m512 _mm512_mask_abs_ps(__m512 src, __mmask16 k, __m512 a) { return select<float>(k, _mm512_abs_ps(a), src); }
inline __m512d _mm512_abs_pd(__m512d a) { return _mm512_andnot_pd({_mm256_set1_pd(-0.0), _mm256_set1_pd(-0.0)}, a); }

// Rounds to a multiple of 2^-(control >> 4); what is too large to scale is already one.
inline __m256 round_to_multiple(__m256 a, int control) {
  const int digits = control >> 4 & 15;
  if (digits == 0) return round_half(a, control);
  const float scale = static_cast<float>(1 << digits);
  const __m256 scaled = rounded(_mm256_mul_ps(a, _mm256_set1_ps(scale)));
  const __m256 result = rounded(_mm256_mul_ps(round_half(scaled, control), _mm256_set1_ps(1 / scale)));
  const __m256 too_large = _mm256_cmp_ps(absolute(scaled), _mm256_set1_ps(__builtin_inff()), _CMP_EQ_OQ);
  return _mm256_blendv_ps(result, a, too_large);
}
#define EMU_ROUNDSCALE(P, V, T)                                                \
  inline V P##_mask_roundscale_ps(V src, EMU_MASK(V, T) k, V a, int control) { \
    return select<T>(k, P##_roundscale_ps(a, control), src);                   \
  }                                                                            \
  inline V P##_maskz_roundscale_ps(EMU_MASK(V, T) k, V a, int control) {       \
    return select<T>(k, P##_roundscale_ps(a, control), EMU_ZERO(V));           \
  }
inline __m512 _mm512_roundscale_ps(__m512 a, int control) {
  return {round_to_multiple(a.lo, control), round_to_multiple(a.hi, control)};
}
inline __m256 _mm256_roundscale_ps(__m256 a, int control) { return round_to_multiple(a, control); }
inline __m128 _mm_roundscale_ps(__m128 a, int control) {
  return _mm256_castps256_ps128(round_to_multiple(_mm256_zextps128_ps256(a), control));
}
EMU_WIDTHS(EMU_ROUNDSCALE, , float)
#undef EMU_ROUNDSCALE
inline __m512 _mm512_floor_ps(__m512 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF); }
inline __m512 _mm512_ceil_ps(__m512 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_POS_INF); }

inline float scale_by_power(float a, float b) {
  if (a != a || b != b) return a + b;
  if (__builtin_isinf(b)) return b > 0 ? a * __builtin_inff() : a * 0.0f;
  const float whole = __builtin_floorf(b);
  return __builtin_ldexpf(a, whole > 600 ? 600 : whole < -600 ? -600 : static_cast<int>(whole));
}
inline float exponent_of(float a) {
  if (a != a) return a;
  if (__builtin_isinf(a)) return __builtin_inff();
  return a == 0 ? -__builtin_inff() : static_cast<float>(__builtin_ilogbf(a));
}
// control & 3: min, max, smaller and larger magnitude. control >> 2 & 3: sign of a, of the result, plus, minus.
inline float range_of(float a, float b, int control) {
  float r;
  if (a != a) {
    r = b;
  } else if (b != b) {
    r = a;
  } else {
    const float x = control & 2 ? __builtin_fabsf(a) : a, y = control & 2 ? __builtin_fabsf(b) : b;
    const bool tie = x == y;
    const bool first = tie ? __builtin_signbit(a) != (control & 1 ? 1 : 0) : (control & 1) ? x > y : x < y;
    r = first ? a : b;
  }
  switch (control >> 2 & 3) {
    case 0:
      return r != r ? r : __builtin_copysignf(r, a);
    case 1:
      return r;
    case 2:
      return __builtin_fabsf(r);
    default:
      return -__builtin_fabsf(r);
  }
}
#define EMU_EXPONENTS(P, V, T)                                                                       \
  EMU_EACH_2(P, V, T, scalef_ps, scale_by_power(a, b))                                               \
  EMU_EACH_1(P, V, T, getexp_ps, exponent_of(a))                                                     \
  inline V P##_range_ps(V va, V vb, int control) {                                                   \
    auto x = EMU_LANES(T, va);                                                                       \
    const auto y = EMU_LANES(T, vb);                                                                 \
    for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i) x.v[i] = range_of(x.v[i], y.v[i], control); \
    return __builtin_bit_cast(V, x);                                                                 \
  }                                                                                                  \
  EMU_MASKED_IMMEDIATE_2(P, V, T, range_ps)
EMU_WIDTHS(EMU_EXPONENTS, , float)
#undef EMU_EXPONENTS

// For each predicate _CMP_* modulo 16, the relations it accepts: 1 less, 2 equal, 4 greater, 8 unordered.
constexpr unsigned char kAccepted[16] = {2, 1, 3, 8, 13, 14, 12, 7, 10, 9, 11, 0, 5, 6, 4, 15};
template <class T, class V>
inline std::uint64_t compare_floats(V a, V b, int predicate) {
  const auto x = EMU_LANES(T, a), y = EMU_LANES(T, b);
  std::uint64_t r = 0;
  for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i) {
    const int relation = x.v[i] < y.v[i] ? 1 : x.v[i] == y.v[i] ? 2 : x.v[i] > y.v[i] ? 4 : 8;
    r |= std::uint64_t{(kAccepted[predicate & 15] & relation) != 0} << i;
  }
  return r;
}
#define EMU_COMPARE_NAMED(P, V, T, type, name, predicate)                                \
  inline EMU_MASK(V, T) P##_cmp##name##_##type##_mask(V a, V b) {                        \
    return static_cast<EMU_MASK(V, T)>(compare_floats<T>(a, b, predicate));              \
  }                                                                                      \
  inline EMU_MASK(V, T) P##_mask_cmp##name##_##type##_mask(EMU_MASK(V, T) k, V a, V b) { \
    return static_cast<EMU_MASK(V, T)>(k & compare_floats<T>(a, b, predicate));          \
  }
#define EMU_COMPARE(P, V, T, type)                                                              \
  inline EMU_MASK(V, T) P##_cmp_##type##_mask(V a, V b, int predicate) {                        \
    return static_cast<EMU_MASK(V, T)>(compare_floats<T>(a, b, predicate));                     \
  }                                                                                             \
  inline EMU_MASK(V, T) P##_mask_cmp_##type##_mask(EMU_MASK(V, T) k, V a, V b, int predicate) { \
    return static_cast<EMU_MASK(V, T)>(k & compare_floats<T>(a, b, predicate));                 \
  }                                                                                             \
  EMU_COMPARE_NAMED(P, V, T, type, eq, _CMP_EQ_OQ)                                              \
  EMU_COMPARE_NAMED(P, V, T, type, lt, _CMP_LT_OS)                                              \
  EMU_COMPARE_NAMED(P, V, T, type, le, _CMP_LE_OS)                                              \
  EMU_COMPARE_NAMED(P, V, T, type, unord, _CMP_UNORD_Q)                                         \
  EMU_COMPARE_NAMED(P, V, T, type, neq, _CMP_NEQ_UQ)                                            \
  EMU_COMPARE_NAMED(P, V, T, type, nlt, _CMP_NLT_US)                                            \
  EMU_COMPARE_NAMED(P, V, T, type, nle, _CMP_NLE_US)                                            \
  EMU_COMPARE_NAMED(P, V, T, type, ord, _CMP_ORD_Q)
EMU_WIDTHS(EMU_COMPARE, , float, ps)
EMU_WIDTHS(EMU_COMPARE, d, double, pd)
#undef EMU_COMPARE
#undef EMU_COMPARE_NAMED

// 1 quiet NaN, 2 +0, 4 -0, 8 +inf, 16 -inf, 32 denormal, 64 negative and finite, 128 signaling NaN.
inline int float_class(std::uint32_t a) {
  const bool negative = a >> 31, quiet = a >> 22 & 1;
  const std::uint32_t exponent = a >> 23 & 255, fraction = a & 0x7FFFFF;
  if (exponent == 255) return fraction == 0 ? (negative ? 16 : 8) : quiet ? 1 : 128;
  if (exponent == 0 && fraction == 0) return negative ? 4 : 2;
  return (exponent == 0 ? 32 : 0) | (negative ? 64 : 0);
}
#define EMU_CLASS(P, V, T)                                                             \
  inline EMU_MASK(V, T) P##_fpclass_ps_mask(V a, int classes) {                        \
    const auto x = EMU_LANES(std::uint32_t, a);                                        \
    EMU_MASK(V, T) r = 0;                                                              \
    for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i)                               \
      if (float_class(x.v[i]) & classes) r |= static_cast<EMU_MASK(V, T)>(1u << i);    \
    return r;                                                                          \
  }                                                                                    \
  inline EMU_MASK(V, T) P##_mask_fpclass_ps_mask(EMU_MASK(V, T) k, V a, int classes) { \
    return k & P##_fpclass_ps_mask(a, classes);                                        \
  }
EMU_WIDTHS(EMU_CLASS, , float)
#undef EMU_CLASS

// Upper half onto lower half until one lane is left: the order of g++ and clang.
template <class T, class V, class Combine>
inline T reduce(V a, Combine combine) {
  auto x = EMU_LANES(T, a);
  for (unsigned half = sizeof(V) / sizeof(T) / 2; half > 0; half /= 2)
    for (unsigned i = 0; i < half; ++i) x.v[i] = combine(x.v[i], x.v[i + half]);
  return x.v[0];
}
#define EMU_REDUCE(op, V, T, R, identity, ...)                                      \
  inline R _mm512_reduce_##op(V v) {                                                \
    return static_cast<R>(reduce<T>(v, [](T a, T b) -> T { return __VA_ARGS__; })); \
  }                                                                                 \
  inline R _mm512_mask_reduce_##op(EMU_MASK(V, T) k, V v) {                         \
    Lanes<T, sizeof(V) / sizeof(T)> neutral;                                        \
    for (T & lane : neutral.v) lane = identity;                                     \
    return _mm512_reduce_##op(select<T>(k, v, __builtin_bit_cast(V, neutral)));     \
  }
#define EMU_REDUCE_INTEGER(bits, R)                                                                      \
  EMU_REDUCE(add_epi##bits, __m512i, std::uint##bits##_t, R, 0, a + b)                                   \
  EMU_REDUCE(mul_epi##bits, __m512i, std::uint##bits##_t, R, 1, a* b)                                    \
  EMU_REDUCE(and_epi##bits, __m512i, std::uint##bits##_t, R, static_cast<std::uint##bits##_t>(-1), a& b) \
  EMU_REDUCE(or_epi##bits, __m512i, std::uint##bits##_t, R, 0, a | b)                                    \
  EMU_REDUCE(max_epi##bits, __m512i, std::int##bits##_t, R, INT##bits##_MIN, a > b ? a : b)              \
  EMU_REDUCE(min_epi##bits, __m512i, std::int##bits##_t, R, INT##bits##_MAX, a < b ? a : b)              \
  EMU_REDUCE(max_epu##bits, __m512i, std::uint##bits##_t, unsigned R, 0, a > b ? a : b)                  \
  EMU_REDUCE(min_epu##bits, __m512i, std::uint##bits##_t, unsigned R, UINT##bits##_MAX, a < b ? a : b)
EMU_REDUCE_INTEGER(32, int)
EMU_REDUCE_INTEGER(64, long long)
#undef EMU_REDUCE_INTEGER
EMU_REDUCE(add_ps, __m512, float, float, 0, a + b)
EMU_REDUCE(mul_ps, __m512, float, float, 1, a* b)
EMU_REDUCE(max_ps, __m512, float, float, -__builtin_inff(), a > b ? a : b)
EMU_REDUCE(min_ps, __m512, float, float, __builtin_inff(), a < b ? a : b)
EMU_REDUCE(add_pd, __m512d, double, double, 0, a + b)
EMU_REDUCE(max_pd, __m512d, double, double, -__builtin_inf(), a > b ? a : b)
EMU_REDUCE(min_pd, __m512d, double, double, __builtin_inf(), a < b ? a : b)
#undef EMU_REDUCE

}  // namespace
}  // namespace scaledmm::emu
