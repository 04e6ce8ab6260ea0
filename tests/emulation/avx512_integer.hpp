// Integer arithmetic, shifts and bit logic, lane by lane.
#pragma once

#include "avx512_set.hpp"

namespace scaledmm::emu {
namespace {

#define EMU_ALL_SIZES(op)                   \
  EMU_NATIVE_2(op##_epi8, std::int8_t, i)   \
  EMU_NATIVE_2(op##_epi16, std::int16_t, i) \
  EMU_NATIVE_2(op##_epi32, std::int32_t, i) EMU_NATIVE_2(op##_epi64, std::int64_t, i)
EMU_ALL_SIZES(add)
EMU_ALL_SIZES(sub)
EMU_ALL_SIZES(unpacklo)
EMU_ALL_SIZES(unpackhi)
#undef EMU_ALL_SIZES
#define EMU_SATURATING(type, T) EMU_NATIVE_2(adds_##type, T, i) EMU_NATIVE_2(subs_##type, T, i)
EMU_SATURATING(epi8, std::int8_t)
EMU_SATURATING(epu8, std::int8_t)
EMU_SATURATING(epi16, std::int16_t)
EMU_SATURATING(epu16, std::int16_t)
#undef EMU_SATURATING
#define EMU_MIN_MAX(type, T) EMU_NATIVE_2(min_##type, T, i) EMU_NATIVE_2(max_##type, T, i)
EMU_MIN_MAX(epi8, std::int8_t)
EMU_MIN_MAX(epu8, std::int8_t)
EMU_MIN_MAX(epi16, std::int16_t)
EMU_MIN_MAX(epu16, std::int16_t)
EMU_MIN_MAX(epi32, std::int32_t)
EMU_MIN_MAX(epu32, std::int32_t)
#undef EMU_MIN_MAX
EMU_LOOP_2(min_epi64, std::int64_t, a < b ? a : b)
EMU_LOOP_2(max_epi64, std::int64_t, a > b ? a : b)
EMU_LOOP_2(min_epu64, std::uint64_t, a < b ? a : b)
EMU_LOOP_2(max_epu64, std::uint64_t, a > b ? a : b)
EMU_NATIVE_2(mullo_epi16, std::int16_t, i)
EMU_NATIVE_2(mullo_epi32, std::int32_t, i)
EMU_LOOP_2(mullo_epi64, std::uint64_t, a* b)
EMU_NATIVE_2(mulhi_epi16, std::int16_t, i)
EMU_NATIVE_2(mulhi_epu16, std::int16_t, i)
EMU_NATIVE_2(mulhrs_epi16, std::int16_t, i)
EMU_NATIVE_2(mul_epi32, std::int64_t, i)
EMU_NATIVE_2(mul_epu32, std::int64_t, i)
EMU_NATIVE_2(madd_epi16, std::int32_t, i)
EMU_NATIVE_2(maddubs_epi16, std::int16_t, i)
EMU_NATIVE_2(avg_epu8, std::int8_t, i)
EMU_NATIVE_2(avg_epu16, std::int16_t, i)
EMU_NATIVE_2(packs_epi16, std::int8_t, i)
EMU_NATIVE_2(packus_epi16, std::int8_t, i)
EMU_NATIVE_2(packs_epi32, std::int16_t, i)
EMU_NATIVE_2(packus_epi32, std::int16_t, i)
EMU_NATIVE_2(shuffle_epi8, std::int8_t, i)
EMU_PLAIN_2(sad_epu8, i)
EMU_NATIVE_1(abs_epi8, std::int8_t, i)
EMU_NATIVE_1(abs_epi16, std::int16_t, i)
EMU_NATIVE_1(abs_epi32, std::int32_t, i)
EMU_LOOP_1(abs_epi64, std::uint64_t, a >> 63 ? 0 - a : a)
EMU_LOOP_1(popcnt_epi8, std::uint8_t, __builtin_popcount(a))
EMU_LOOP_1(popcnt_epi16, std::uint16_t, __builtin_popcount(a))
EMU_LOOP_1(popcnt_epi32, std::uint32_t, __builtin_popcount(a))
EMU_LOOP_1(popcnt_epi64, std::uint64_t, __builtin_popcountll(a))
EMU_LOOP_1(lzcnt_epi32, std::uint32_t, a == 0 ? 32 : __builtin_clz(a))
EMU_LOOP_1(lzcnt_epi64, std::uint64_t, a == 0 ? 64 : __builtin_clzll(a))

// A count of the lane width or more gives zero, or the sign in every bit.
EMU_NATIVE_2(sllv_epi32, std::int32_t, i)
EMU_NATIVE_2(sllv_epi64, std::int64_t, i)
EMU_NATIVE_2(srlv_epi32, std::int32_t, i)
EMU_NATIVE_2(srlv_epi64, std::int64_t, i)
EMU_NATIVE_2(srav_epi32, std::int32_t, i)
EMU_LOOP_2(sllv_epi16, std::uint16_t, b < 16 ? std::uint32_t{a} << b : 0)
EMU_LOOP_2(srlv_epi16, std::uint16_t, b < 16 ? a >> b : 0)
EMU_LOOP_2(srav_epi16, std::int16_t, a >> (static_cast<std::uint16_t>(b) < 16 ? b : 15))
EMU_LOOP_2(srav_epi64, std::int64_t, a >> (static_cast<std::uint64_t>(b) < 64 ? b : 63))
EMU_LOOP_2(rolv_epi32, std::uint32_t, a << (b % 32) | a >> ((32 - b % 32) % 32))
EMU_LOOP_2(rorv_epi32, std::uint32_t, a >> (b % 32) | a << ((32 - b % 32) % 32))
EMU_LOOP_2(rolv_epi64, std::uint64_t, a << (b % 64) | a >> ((64 - b % 64) % 64))
EMU_LOOP_2(rorv_epi64, std::uint64_t, a >> (b % 64) | a << ((64 - b % 64) % 64))
#define EMU_ROTATE(P, V, T, op, variable, set1)                              \
  inline V P##_##op(V a, int n) { return P##_##variable(a, P##_##set1(n)); } \
  EMU_MASKED_2(P, V, T, op, int)
EMU_WIDTHS(EMU_ROTATE, i, std::int32_t, rol_epi32, rolv_epi32, set1_epi32)
EMU_WIDTHS(EMU_ROTATE, i, std::int32_t, ror_epi32, rorv_epi32, set1_epi32)
#undef EMU_ROTATE

#define EMU_SHIFT(op, T)                                                                     \
  inline __m512i _mm512_##op(__m512i a, unsigned n) {                                        \
    return {_mm256_##op(a.lo, static_cast<int>(n)), _mm256_##op(a.hi, static_cast<int>(n))}; \
  }                                                                                          \
  EMU_WIDTHS(EMU_MASKED_2, i, T, op, unsigned)
EMU_SHIFT(slli_epi16, std::int16_t)
EMU_SHIFT(slli_epi32, std::int32_t)
EMU_SHIFT(slli_epi64, std::int64_t)
EMU_SHIFT(srli_epi16, std::int16_t)
EMU_SHIFT(srli_epi32, std::int32_t)
EMU_SHIFT(srli_epi64, std::int64_t)
EMU_SHIFT(srai_epi16, std::int16_t)
EMU_SHIFT(srai_epi32, std::int32_t)
#undef EMU_SHIFT
#define EMU_SHIFT_BY_LOW_LANE(op, T)                                                                        \
  inline __m512i _mm512_##op(__m512i a, __m128i n) { return {_mm256_##op(a.lo, n), _mm256_##op(a.hi, n)}; } \
  EMU_WIDTHS(EMU_MASKED_2, i, T, op, __m128i)
EMU_SHIFT_BY_LOW_LANE(sll_epi16, std::int16_t)
EMU_SHIFT_BY_LOW_LANE(sll_epi32, std::int32_t)
EMU_SHIFT_BY_LOW_LANE(sll_epi64, std::int64_t)
EMU_SHIFT_BY_LOW_LANE(srl_epi16, std::int16_t)
EMU_SHIFT_BY_LOW_LANE(srl_epi32, std::int32_t)
EMU_SHIFT_BY_LOW_LANE(srl_epi64, std::int64_t)
EMU_SHIFT_BY_LOW_LANE(sra_epi16, std::int16_t)
EMU_SHIFT_BY_LOW_LANE(sra_epi32, std::int32_t)
#undef EMU_SHIFT_BY_LOW_LANE
#define EMU_SHIFT_RIGHT_64(P, V, T, set1)                                               \
  inline V P##_srai_epi64(V a, unsigned n) { return P##_srav_epi64(a, P##_##set1(n)); } \
  EMU_MASKED_2(P, V, T, srai_epi64, unsigned)
EMU_SHIFT_RIGHT_64(_mm, __m128i, std::int64_t, set1_epi64x)
EMU_SHIFT_RIGHT_64(_mm256, __m256i, std::int64_t, set1_epi64x)
#undef EMU_SHIFT_RIGHT_64
inline __m512i _mm512_srai_epi64(__m512i a, unsigned n) {
  return {_mm256_srai_epi64(a.lo, n), _mm256_srai_epi64(a.hi, n)};
}
EMU_MASKED_2(_mm512, __m512i, std::int64_t, srai_epi64, unsigned)

// Bytes of each 128-bit lane, moved up by n (negative: down), zeros shifted in.
inline __m512i shift_bytes(__m512i a, int n) {
  const auto x = EMU_LANES(std::uint8_t, a);
  Lanes<std::uint8_t, 64> r{};
  for (int i = 0; i < 64; ++i)
    if (const int from = i % 16 - n; from >= 0 && from < 16) r.v[i] = x.v[i - n];
  return __builtin_bit_cast(__m512i, r);
}
inline __m512i _mm512_bslli_epi128(__m512i a, int n) { return shift_bytes(a, n & 255); }
inline __m512i _mm512_bsrli_epi128(__m512i a, int n) { return shift_bytes(a, -(n & 255)); }

#define EMU_LOGIC_WIDTH(P, V, name, whole)                                     \
  inline V P##_##name##_epi32(V a, V b) { return P##_##name##_##whole(a, b); } \
  inline V P##_##name##_epi64(V a, V b) { return P##_##name##_##whole(a, b); } \
  EMU_MASKED_SAME_2(P, V, std::int32_t, name##_epi32)                          \
  EMU_MASKED_SAME_2(P, V, std::int64_t, name##_epi64)
#define EMU_LOGIC(name)                                                            \
  inline __m512i _mm512_##name##_si512(__m512i a, __m512i b) {                     \
    return {_mm256_##name##_si256(a.lo, b.lo), _mm256_##name##_si256(a.hi, b.hi)}; \
  }                                                                                \
  EMU_LOGIC_WIDTH(_mm, __m128i, name, si128)                                       \
  EMU_LOGIC_WIDTH(_mm256, __m256i, name, si256)                                    \
  EMU_LOGIC_WIDTH(_mm512, __m512i, name, si512)
EMU_LOGIC(and)
EMU_LOGIC(andnot)
EMU_LOGIC(or)
EMU_LOGIC(xor)
#undef EMU_LOGIC
#undef EMU_LOGIC_WIDTH

// Bit (a << 2 | b << 1 | c) of the table is the result.
template <class V>
inline V ternary(V va, V vb, V vc, int table) {
  auto x = EMU_LANES(std::uint64_t, va);
  const auto y = EMU_LANES(std::uint64_t, vb), z = EMU_LANES(std::uint64_t, vc);
  for (unsigned i = 0; i < sizeof(V) / 8; ++i) {
    const std::uint64_t a = x.v[i], b = y.v[i], c = z.v[i];
    x.v[i] = 0;
    for (int row = 0; row < 8; ++row)
      if (table >> row & 1) x.v[i] |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
  }
  return __builtin_bit_cast(V, x);
}
#define EMU_TERNARY(P, V, T, op)                                                  \
  inline V P##_##op(V a, V b, V c, int table) { return ternary(a, b, c, table); } \
  inline V P##_mask_##op(V a, EMU_MASK(V, T) k, V b, V c, int table) {            \
    return select<T>(k, ternary(a, b, c, table), a);                              \
  }                                                                               \
  inline V P##_maskz_##op(EMU_MASK(V, T) k, V a, V b, V c, int table) {           \
    return select<T>(k, ternary(a, b, c, table), EMU_ZERO(V));                    \
  }
EMU_WIDTHS(EMU_TERNARY, i, std::int32_t, ternarylogic_epi32)
EMU_WIDTHS(EMU_TERNARY, i, std::int64_t, ternarylogic_epi64)
#undef EMU_TERNARY

inline std::uint8_t affine(std::uint64_t rows, std::uint8_t x, int constant) {
  std::uint8_t r = static_cast<std::uint8_t>(constant);
  for (int i = 0; i < 8; ++i) r ^= static_cast<std::uint8_t>(__builtin_parityll(rows >> (8 * (7 - i)) & x) << i);
  return r;
}
template <class V>
inline V affine_bytes(V bytes, V matrices, int constant) {
  auto r = EMU_LANES(std::uint8_t, bytes);
  const auto rows = EMU_LANES(std::uint64_t, matrices);
  for (unsigned i = 0; i < sizeof(V); ++i) r.v[i] = affine(rows.v[i / 8], r.v[i], constant);
  return __builtin_bit_cast(V, r);
}
template <class V>
inline V multishift(V control, V data) {
  auto r = EMU_LANES(std::uint8_t, control);
  const auto x = EMU_LANES(std::uint64_t, data);
  for (unsigned i = 0; i < sizeof(V); ++i) {
    const unsigned n = r.v[i] % 64;
    r.v[i] = static_cast<std::uint8_t>(x.v[i / 8] >> n | x.v[i / 8] << ((64 - n) % 64));
  }
  return __builtin_bit_cast(V, r);
}
#define EMU_BYTE_FIELDS(P, V, T)                                                                       \
  inline V P##_gf2p8affine_epi64_epi8(V a, V m, int constant) { return affine_bytes(a, m, constant); } \
  EMU_MASKED_IMMEDIATE_2(P, V, T, gf2p8affine_epi64_epi8)                                              \
  inline V P##_multishift_epi64_epi8(V control, V data) { return multishift(control, data); }          \
  EMU_MASKED_SAME_2(P, V, T, multishift_epi64_epi8)
EMU_WIDTHS(EMU_BYTE_FIELDS, i, std::int8_t)
#undef EMU_BYTE_FIELDS

}  // namespace
}  // namespace scaledmm::emu
