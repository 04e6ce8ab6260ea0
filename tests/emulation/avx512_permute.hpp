// Permutes, table look-ups, inserts, extracts, broadcasts and alignments.
#pragma once

#include "avx512_types.hpp"

namespace scaledmm::emu {
namespace {

template <int kSize>
struct IndexLane {
  using type = std::uint64_t;
};
template <>
struct IndexLane<1> {
  using type = std::uint8_t;
};
template <>
struct IndexLane<2> {
  using type = std::uint16_t;
};
template <>
struct IndexLane<4> {
  using type = std::uint32_t;
};

template <class T, class V, class Index>
inline V permute(Index index, V a) {
  const auto at = EMU_LANES(typename IndexLane<sizeof(T)>::type, index);
  const auto x = EMU_LANES(T, a);
  auto r = x;
  constexpr unsigned kLanes = sizeof(V) / sizeof(T);
  for (unsigned i = 0; i < kLanes; ++i) r.v[i] = x.v[at.v[i] % kLanes];
  return __builtin_bit_cast(V, r);
}

// The table is a, then b.
template <class T, class V, class Index>
inline V permute_pair(V a, Index index, V b) {
  const auto at = EMU_LANES(typename IndexLane<sizeof(T)>::type, index);
  constexpr unsigned kLanes = sizeof(V) / sizeof(T);
  const struct { V first, second; } pair = {a, b};
  const auto table = EMU_LANES(T, pair);
  auto r = EMU_LANES(T, a);
  for (unsigned i = 0; i < kLanes; ++i) r.v[i] = table.v[at.v[i] % (2 * kLanes)];
  return __builtin_bit_cast(V, r);
}

#define EMU_PERMUTE(P, V, T, Index, type)                                                          \
  inline V P##_permutex2var_##type(V a, Index index, V b) { return permute_pair<T>(a, index, b); } \
  inline V P##_mask_permutex2var_##type(V a, EMU_MASK(V, T) k, Index index, V b) {                 \
    return select<T>(k, permute_pair<T>(a, index, b), a);                                          \
  }                                                                                                \
  inline V P##_mask2_permutex2var_##type(V a, Index index, EMU_MASK(V, T) k, V b) {                \
    return select<T>(k, permute_pair<T>(a, index, b), __builtin_bit_cast(V, index));               \
  }                                                                                                \
  inline V P##_maskz_permutex2var_##type(EMU_MASK(V, T) k, V a, Index index, V b) {                \
    return select<T>(k, permute_pair<T>(a, index, b), EMU_ZERO(V));                                \
  }
#define EMU_PERMUTE_1(P, V, T, Index, type)                                          \
  inline V P##_permutexvar_##type(Index index, V a) { return permute<T>(index, a); } \
  inline V P##_mask_permutexvar_##type(V src, EMU_MASK(V, T) k, Index index, V a) {  \
    return select<T>(k, permute<T>(index, a), src);                                  \
  }                                                                                  \
  inline V P##_maskz_permutexvar_##type(EMU_MASK(V, T) k, Index index, V a) {        \
    return select<T>(k, permute<T>(index, a), EMU_ZERO(V));                          \
  }
#define EMU_PERMUTE_INTEGER(P, V, T, type) EMU_PERMUTE(P, V, T, V, type)
EMU_WIDTHS(EMU_PERMUTE_INTEGER, i, std::int8_t, epi8)
EMU_WIDTHS(EMU_PERMUTE_INTEGER, i, std::int16_t, epi16)
EMU_WIDTHS(EMU_PERMUTE_INTEGER, i, std::int32_t, epi32)
EMU_WIDTHS(EMU_PERMUTE_INTEGER, i, std::int64_t, epi64)
EMU_PERMUTE(_mm, __m128, float, __m128i, ps)
EMU_PERMUTE(_mm256, __m256, float, __m256i, ps)
EMU_PERMUTE(_mm512, __m512, float, __m512i, ps)
EMU_PERMUTE(_mm512, __m512d, double, __m512i, pd)
EMU_PERMUTE_1(_mm, __m128i, std::int8_t, __m128i, epi8)
EMU_PERMUTE_1(_mm256, __m256i, std::int8_t, __m256i, epi8)
EMU_PERMUTE_1(_mm512, __m512i, std::int8_t, __m512i, epi8)
EMU_PERMUTE_1(_mm, __m128i, std::int16_t, __m128i, epi16)
EMU_PERMUTE_1(_mm256, __m256i, std::int16_t, __m256i, epi16)
EMU_PERMUTE_1(_mm512, __m512i, std::int16_t, __m512i, epi16)
EMU_PERMUTE_1(_mm256, __m256i, std::int32_t, __m256i, epi32)
EMU_PERMUTE_1(_mm512, __m512i, std::int32_t, __m512i, epi32)
EMU_PERMUTE_1(_mm256, __m256i, std::int64_t, __m256i, epi64)
EMU_PERMUTE_1(_mm512, __m512i, std::int64_t, __m512i, epi64)
EMU_PERMUTE_1(_mm256, __m256, float, __m256i, ps)
EMU_PERMUTE_1(_mm512, __m512, float, __m512i, ps)
EMU_PERMUTE_1(_mm512, __m512d, double, __m512i, pd)
#undef EMU_PERMUTE
#undef EMU_PERMUTE_1
#undef EMU_PERMUTE_INTEGER

// Rearranges lanes of T within each 128-bit lane: `from` gives the source lane of lane i.
template <class T, class V, class From>
inline V within_128(V a, From from) {
  constexpr unsigned kPerLane = 16 / sizeof(T);
  const auto x = EMU_LANES(T, a);
  auto r = x;
  for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i) r.v[i] = x.v[i / kPerLane * kPerLane + from(i % kPerLane)];
  return __builtin_bit_cast(V, r);
}
inline unsigned two_bits(int control, unsigned i) { return static_cast<unsigned>(control) >> (2 * i) & 3; }
inline __m512i _mm512_shuffle_epi32(__m512i a, int control) {
  return within_128<std::int32_t>(a, [=](unsigned i) { return two_bits(control, i); });
}
inline __m512i _mm512_shufflelo_epi16(__m512i a, int control) {
  return within_128<std::int16_t>(a, [=](unsigned i) { return i < 4 ? two_bits(control, i) : i; });
}
inline __m512i _mm512_shufflehi_epi16(__m512i a, int control) {
  return within_128<std::int16_t>(a, [=](unsigned i) { return i < 4 ? i : 4 + two_bits(control, i - 4); });
}
inline __m512 _mm512_permute_ps(__m512 a, int control) {
  return within_128<float>(a, [=](unsigned i) { return two_bits(control, i); });
}
inline __m512 _mm512_movehdup_ps(__m512 a) { return {_mm256_movehdup_ps(a.lo), _mm256_movehdup_ps(a.hi)}; }
inline __m512 _mm512_moveldup_ps(__m512 a) { return {_mm256_moveldup_ps(a.lo), _mm256_moveldup_ps(a.hi)}; }
inline __m512 _mm512_permutevar_ps(__m512 a, __m512i control) {
  return {_mm256_permutevar_ps(a.lo, control.lo), _mm256_permutevar_ps(a.hi, control.hi)};
}
EMU_NATIVE_2(unpacklo_ps, float, )
EMU_NATIVE_2(unpackhi_ps, float, )
EMU_NATIVE_2(unpacklo_pd, double, d)
EMU_NATIVE_2(unpackhi_pd, double, d)
EMU_MASKED_2(_mm512, __m512i, std::int32_t, shuffle_epi32, int)
EMU_MASKED_2(_mm512, __m512i, std::int16_t, shufflelo_epi16, int)
EMU_MASKED_2(_mm512, __m512i, std::int16_t, shufflehi_epi16, int)
EMU_MASKED_2(_mm512, __m512, float, permute_ps, int)
inline __m512 _mm512_shuffle_ps(__m512 a, __m512 b, int control) {
  const auto x = EMU_LANES(float, a), y = EMU_LANES(float, b);
  auto r = x;
  for (unsigned i = 0; i < 16; ++i) r.v[i] = (i % 4 < 2 ? x : y).v[i / 4 * 4 + two_bits(control, i % 4)];
  return __builtin_bit_cast(__m512, r);
}
EMU_MASKED_IMMEDIATE_2(_mm512, __m512, float, shuffle_ps)

inline __m256i _mm256_permutex_epi64(__m256i a, int control) {
  const auto x = EMU_LANES(std::int64_t, a);
  auto r = x;
  for (unsigned i = 0; i < 4; ++i) r.v[i] = x.v[two_bits(control, i)];
  return __builtin_bit_cast(__m256i, r);
}
inline __m512i _mm512_permutex_epi64(__m512i a, int control) {
  return {_mm256_permutex_epi64(a.lo, control), _mm256_permutex_epi64(a.hi, control)};
}
EMU_MASKED_2(_mm256, __m256i, std::int64_t, permutex_epi64, int)
EMU_MASKED_2(_mm512, __m512i, std::int64_t, permutex_epi64, int)

// Two 128-bit lanes of a, then two of b.
template <class V>
inline V shuffle_quarters(V a, V b, int control) {
  const auto x = EMU_LANES(__int128, a), y = EMU_LANES(__int128, b);
  Lanes<__int128, 4> r;
  for (unsigned i = 0; i < 4; ++i) r.v[i] = (i < 2 ? x : y).v[two_bits(control, i)];
  return __builtin_bit_cast(V, r);
}
#define EMU_SHUFFLE_QUARTERS(V, T, op)                                                    \
  inline V _mm512_##op(V a, V b, int control) { return shuffle_quarters(a, b, control); } \
  EMU_MASKED_IMMEDIATE_2(_mm512, V, T, op)
EMU_SHUFFLE_QUARTERS(__m512i, std::int32_t, shuffle_i32x4)
EMU_SHUFFLE_QUARTERS(__m512i, std::int64_t, shuffle_i64x2)
EMU_SHUFFLE_QUARTERS(__m512, float, shuffle_f32x4)
EMU_SHUFFLE_QUARTERS(__m512d, double, shuffle_f64x2)
#undef EMU_SHUFFLE_QUARTERS

template <class Part, class V>
inline Part extract(V a, int n) {
  Part r;
  __builtin_memcpy(
      &r, reinterpret_cast<const char*>(&a) + static_cast<unsigned>(n) % (sizeof(V) / sizeof(Part)) * sizeof(Part),
      sizeof(Part));
  return r;
}
template <class V, class Part>
inline V insert(V a, Part part, int n) {
  __builtin_memcpy(reinterpret_cast<char*>(&a) + static_cast<unsigned>(n) % (sizeof(V) / sizeof(Part)) * sizeof(Part),
                   &part, sizeof(Part));
  return a;
}
#define EMU_PARTS(P, V, T, Part, extracted, inserted)                            \
  inline Part P##_##extracted(V a, int n) { return extract<Part>(a, n); }        \
  inline Part P##_mask_##extracted(Part src, __mmask8 k, V a, int n) {           \
    return select<T>(k, extract<Part>(a, n), src);                               \
  }                                                                              \
  inline Part P##_maskz_##extracted(__mmask8 k, V a, int n) {                    \
    return select<T>(k, extract<Part>(a, n), EMU_ZERO(Part));                    \
  }                                                                              \
  inline V P##_##inserted(V a, Part part, int n) { return insert(a, part, n); }  \
  inline V P##_mask_##inserted(V src, EMU_MASK(V, T) k, V a, Part part, int n) { \
    return select<T>(k, insert(a, part, n), src);                                \
  }                                                                              \
  inline V P##_maskz_##inserted(EMU_MASK(V, T) k, V a, Part part, int n) {       \
    return select<T>(k, insert(a, part, n), EMU_ZERO(V));                        \
  }
EMU_PARTS(_mm512, __m512i, std::int32_t, __m128i, extracti32x4_epi32, inserti32x4)
EMU_PARTS(_mm512, __m512i, std::int64_t, __m128i, extracti64x2_epi64, inserti64x2)
EMU_PARTS(_mm512, __m512i, std::int32_t, __m256i, extracti32x8_epi32, inserti32x8)
EMU_PARTS(_mm512, __m512i, std::int64_t, __m256i, extracti64x4_epi64, inserti64x4)
EMU_PARTS(_mm512, __m512, float, __m128, extractf32x4_ps, insertf32x4)
EMU_PARTS(_mm512, __m512, float, __m256, extractf32x8_ps, insertf32x8)
EMU_PARTS(_mm512, __m512d, double, __m128d, extractf64x2_pd, insertf64x2)
EMU_PARTS(_mm512, __m512d, double, __m256d, extractf64x4_pd, insertf64x4)
EMU_PARTS(_mm256, __m256i, std::int32_t, __m128i, extracti32x4_epi32, inserti32x4)
EMU_PARTS(_mm256, __m256i, std::int64_t, __m128i, extracti64x2_epi64, inserti64x2)
EMU_PARTS(_mm256, __m256, float, __m128, extractf32x4_ps, insertf32x4)
#undef EMU_PARTS

// The first bytes of a, over and over.
template <class V, class Part>
inline V repeat(Part part, unsigned bytes) {
  V r;
  for (unsigned i = 0; i < sizeof(V); i += bytes) __builtin_memcpy(reinterpret_cast<char*>(&r) + i, &part, bytes);
  return r;
}
#define EMU_BROADCAST(P, V, T, Part, bytes, op)             \
  inline V P##_##op(Part a) { return repeat<V>(a, bytes); } \
  EMU_MASKED_BROADCAST(P, V, T, Part, bytes, op)
#define EMU_MASKED_BROADCAST(P, V, T, Part, bytes, op)                                                       \
  inline V P##_mask_##op(V src, EMU_MASK(V, T) k, Part a) { return select<T>(k, repeat<V>(a, bytes), src); } \
  inline V P##_maskz_##op(EMU_MASK(V, T) k, Part a) { return select<T>(k, repeat<V>(a, bytes), EMU_ZERO(V)); }
EMU_BROADCAST(_mm512, __m512i, std::int8_t, __m128i, 1, broadcastb_epi8)
EMU_BROADCAST(_mm512, __m512i, std::int16_t, __m128i, 2, broadcastw_epi16)
EMU_BROADCAST(_mm512, __m512i, std::int32_t, __m128i, 4, broadcastd_epi32)
EMU_BROADCAST(_mm512, __m512i, std::int64_t, __m128i, 8, broadcastq_epi64)
EMU_BROADCAST(_mm512, __m512, float, __m128, 4, broadcastss_ps)
EMU_BROADCAST(_mm512, __m512d, double, __m128d, 8, broadcastsd_pd)
EMU_BROADCAST(_mm512, __m512i, std::int32_t, __m128i, 8, broadcast_i32x2)
EMU_BROADCAST(_mm512, __m512i, std::int32_t, __m128i, 16, broadcast_i32x4)
EMU_BROADCAST(_mm512, __m512i, std::int64_t, __m128i, 16, broadcast_i64x2)
EMU_BROADCAST(_mm512, __m512i, std::int32_t, __m256i, 32, broadcast_i32x8)
EMU_BROADCAST(_mm512, __m512i, std::int64_t, __m256i, 32, broadcast_i64x4)
EMU_BROADCAST(_mm512, __m512, float, __m128, 8, broadcast_f32x2)
EMU_BROADCAST(_mm512, __m512, float, __m128, 16, broadcast_f32x4)
EMU_BROADCAST(_mm512, __m512, float, __m256, 32, broadcast_f32x8)
EMU_BROADCAST(_mm512, __m512d, double, __m128d, 16, broadcast_f64x2)
EMU_BROADCAST(_mm512, __m512d, double, __m256d, 32, broadcast_f64x4)
EMU_BROADCAST(_mm256, __m256i, std::int32_t, __m128i, 16, broadcast_i32x4)
EMU_BROADCAST(_mm256, __m256i, std::int64_t, __m128i, 16, broadcast_i64x2)
EMU_BROADCAST(_mm256, __m256, float, __m128, 16, broadcast_f32x4)
EMU_MASKED_BROADCAST(_mm256, __m256i, std::int8_t, __m128i, 1, broadcastb_epi8)
EMU_MASKED_BROADCAST(_mm256, __m256i, std::int16_t, __m128i, 2, broadcastw_epi16)
EMU_MASKED_BROADCAST(_mm256, __m256i, std::int32_t, __m128i, 4, broadcastd_epi32)
EMU_MASKED_BROADCAST(_mm256, __m256i, std::int64_t, __m128i, 8, broadcastq_epi64)
EMU_MASKED_BROADCAST(_mm256, __m256, float, __m128, 4, broadcastss_ps)
#undef EMU_BROADCAST
#undef EMU_MASKED_BROADCAST

// The lanes of high:low from lane n on.
template <class T, class V>
inline V align_lanes(V high, V low, unsigned n) {
  constexpr unsigned kLanes = sizeof(V) / sizeof(T);
  const struct { V first, second; } pair = {low, high};
  const auto x = EMU_LANES(T, pair);
  auto r = EMU_LANES(T, low);
  for (unsigned i = 0; i < kLanes; ++i) r.v[i] = x.v[n % kLanes + i];
  return __builtin_bit_cast(V, r);
}
#define EMU_ALIGN(P, V, T, op)                                                                            \
  inline V P##_##op(V high, V low, int n) { return align_lanes<T>(high, low, static_cast<unsigned>(n)); } \
  EMU_MASKED_IMMEDIATE_2(P, V, T, op)
EMU_WIDTHS(EMU_ALIGN, i, std::int32_t, alignr_epi32)
EMU_WIDTHS(EMU_ALIGN, i, std::int64_t, alignr_epi64)
#undef EMU_ALIGN
// Bytes n and on of each 128-bit lane of high:low; zeros past the end.
inline __m512i _mm512_alignr_epi8(__m512i high, __m512i low, int n) {
  const auto x = EMU_LANES(std::uint8_t, low), y = EMU_LANES(std::uint8_t, high);
  auto r = x;
  for (int i = 0; i < 64; ++i) {
    const int from = i % 16 + (n & 255), base = i / 16 * 16;
    r.v[i] = from < 16 ? x.v[base + from] : from < 32 ? y.v[base + from - 16] : 0;
  }
  return __builtin_bit_cast(__m512i, r);
}
EMU_MASKED_IMMEDIATE_2(_mm512, __m512i, std::int8_t, alignr_epi8)

}  // namespace
}  // namespace scaledmm::emu
