// Loads, stores, gathers, scatters, compress and expand. Masked forms touch only the lanes in the mask, one by one, so
// that AddressSanitizer and guard pages see exactly the bytes that the hardware may touch. Aligned forms abort where it
// would fault.
#pragma once

#include "avx512_types.hpp"

namespace scaledmm::emu {
namespace {

template <class V>
inline void check_alignment(const void* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % sizeof(V) != 0) fault("misaligned address for an aligned load or store");
}

template <class V>
inline V load_all(const void* p) {
  V r;
  __builtin_memcpy(&r, p, sizeof(V));
  return r;
}

template <class T, class V>
inline V load_lanes(V src, std::uint64_t mask, const void* p) {
  auto r = EMU_LANES(T, src);
  for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i)
    if (bit(mask, i)) __builtin_memcpy(&r.v[i], static_cast<const char*>(p) + i * sizeof(T), sizeof(T));
  return __builtin_bit_cast(V, r);
}

template <class T, class V>
inline void store_lanes(void* p, std::uint64_t mask, V a) {
  const auto x = EMU_LANES(T, a);
  for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i)
    if (bit(mask, i)) __builtin_memcpy(static_cast<char*>(p) + i * sizeof(T), &x.v[i], sizeof(T));
}

#define EMU_PLAIN_MEMORY(P, V, type)                                  \
  inline V P##_loadu_##type(const void* p) { return load_all<V>(p); } \
  inline void P##_storeu_##type(void* p, V a) { __builtin_memcpy(p, &a, sizeof(V)); }
#define EMU_ALIGNED_MEMORY(P, V, type)         \
  inline V P##_load_##type(const void* p) {    \
    check_alignment<V>(p);                     \
    return load_all<V>(p);                     \
  }                                            \
  inline void P##_store_##type(void* p, V a) { \
    check_alignment<V>(p);                     \
    __builtin_memcpy(p, &a, sizeof(V));        \
  }
EMU_WIDTHS(EMU_PLAIN_MEMORY, i, epi8)
EMU_WIDTHS(EMU_PLAIN_MEMORY, i, epi16)
EMU_WIDTHS(EMU_PLAIN_MEMORY, i, epi32)
EMU_WIDTHS(EMU_PLAIN_MEMORY, i, epi64)
EMU_WIDTHS(EMU_ALIGNED_MEMORY, i, epi32)
EMU_WIDTHS(EMU_ALIGNED_MEMORY, i, epi64)
EMU_PLAIN_MEMORY(_mm512, __m512i, si512)
EMU_ALIGNED_MEMORY(_mm512, __m512i, si512)
EMU_PLAIN_MEMORY(_mm512, __m512, ps)
EMU_ALIGNED_MEMORY(_mm512, __m512, ps)
EMU_PLAIN_MEMORY(_mm512, __m512d, pd)
EMU_ALIGNED_MEMORY(_mm512, __m512d, pd)
#undef EMU_PLAIN_MEMORY
#undef EMU_ALIGNED_MEMORY

#define EMU_MASKED_MEMORY(P, V, T, type)                                                                        \
  inline V P##_mask_loadu_##type(V src, EMU_MASK(V, T) k, const void* p) { return load_lanes<T>(src, k, p); }   \
  inline V P##_maskz_loadu_##type(EMU_MASK(V, T) k, const void* p) { return load_lanes<T>(EMU_ZERO(V), k, p); } \
  inline void P##_mask_storeu_##type(void* p, EMU_MASK(V, T) k, V a) { store_lanes<T>(p, k, a); }
#define EMU_MASKED_ALIGNED_MEMORY(P, V, T, type)                                                                      \
  EMU_MASKED_MEMORY(P, V, T, type)                                                                                    \
  inline V P##_mask_load_##type(V src, EMU_MASK(V, T) k, const void* p) {                                             \
    check_alignment<V>(p);                                                                                            \
    return load_lanes<T>(src, k, p);                                                                                  \
  }                                                                                                                   \
  inline V P##_maskz_load_##type(EMU_MASK(V, T) k, const void* p) { return P##_mask_load_##type(EMU_ZERO(V), k, p); } \
  inline void P##_mask_store_##type(void* p, EMU_MASK(V, T) k, V a) {                                                 \
    check_alignment<V>(p);                                                                                            \
    store_lanes<T>(p, k, a);                                                                                          \
  }
EMU_WIDTHS(EMU_MASKED_MEMORY, i, std::int8_t, epi8)
EMU_WIDTHS(EMU_MASKED_MEMORY, i, std::int16_t, epi16)
EMU_WIDTHS(EMU_MASKED_ALIGNED_MEMORY, i, std::int32_t, epi32)
EMU_WIDTHS(EMU_MASKED_ALIGNED_MEMORY, i, std::int64_t, epi64)
EMU_WIDTHS(EMU_MASKED_ALIGNED_MEMORY, , float, ps)
EMU_WIDTHS(EMU_MASKED_ALIGNED_MEMORY, d, double, pd)
#undef EMU_MASKED_MEMORY
#undef EMU_MASKED_ALIGNED_MEMORY

inline __m512i _mm512_stream_load_si512(const void* p) { return _mm512_load_si512(p); }
inline void _mm512_stream_si512(void* p, __m512i a) { _mm512_store_si512(p, a); }
inline void _mm512_stream_ps(void* p, __m512 a) { _mm512_store_ps(p, a); }
inline void _mm512_stream_pd(void* p, __m512d a) { _mm512_store_pd(p, a); }

// Offset is the lane type of the index vector; its low sizeof(V) / sizeof(T) lanes count.
template <class T, class Offset, class V, class Index>
inline V gather(V src, std::uint64_t mask, Index index, const void* base, int scale) {
  auto r = EMU_LANES(T, src);
  const auto offset = EMU_LANES(Offset, index);
  for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i)
    if (bit(mask, i))
      __builtin_memcpy(&r.v[i], static_cast<const char*>(base) + std::int64_t{offset.v[i]} * scale, sizeof(T));
  return __builtin_bit_cast(V, r);
}

template <class T, class Offset, class V, class Index>
inline void scatter(void* base, std::uint64_t mask, Index index, V a, int scale) {
  const auto x = EMU_LANES(T, a);
  const auto offset = EMU_LANES(Offset, index);
  for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i)
    if (bit(mask, i))
      __builtin_memcpy(static_cast<char*>(base) + std::int64_t{offset.v[i]} * scale, &x.v[i], sizeof(T));
}

#define EMU_GATHER(name, V, T, Index, Offset)                                                       \
  inline V _mm512_i##name(Index index, const void* base, int scale) {                               \
    return gather<T, Offset>(EMU_ZERO(V), ~0ull, index, base, scale);                               \
  }                                                                                                 \
  inline V _mm512_mask_i##name(V src, EMU_MASK(V, T) k, Index index, const void* base, int scale) { \
    return gather<T, Offset>(src, k, index, base, scale);                                           \
  }
EMU_GATHER(32gather_epi32, __m512i, std::int32_t, __m512i, std::int32_t)
EMU_GATHER(32gather_ps, __m512, float, __m512i, std::int32_t)
EMU_GATHER(32gather_epi64, __m512i, std::int64_t, __m256i, std::int32_t)
EMU_GATHER(32gather_pd, __m512d, double, __m256i, std::int32_t)
EMU_GATHER(64gather_epi64, __m512i, std::int64_t, __m512i, std::int64_t)
EMU_GATHER(64gather_pd, __m512d, double, __m512i, std::int64_t)
EMU_GATHER(64gather_epi32, __m256i, std::int32_t, __m512i, std::int64_t)
EMU_GATHER(64gather_ps, __m256, float, __m512i, std::int64_t)
#undef EMU_GATHER
#define EMU_MASKED_GATHER(P, V, T, Index, type)                                                      \
  inline V P##_mmask_i32gather_##type(V src, __mmask8 k, Index index, const void* base, int scale) { \
    return gather<T, std::int32_t>(src, k, index, base, scale);                                      \
  }
EMU_MASKED_GATHER(_mm256, __m256i, std::int32_t, __m256i, epi32)
EMU_MASKED_GATHER(_mm256, __m256, float, __m256i, ps)
EMU_MASKED_GATHER(_mm, __m128i, std::int32_t, __m128i, epi32)
EMU_MASKED_GATHER(_mm, __m128, float, __m128i, ps)
#undef EMU_MASKED_GATHER

#define EMU_SCATTER(type, V, T)                                                                       \
  inline void _mm512_i32scatter_##type(void* base, __m512i index, V a, int scale) {                   \
    scatter<T, std::int32_t>(base, ~0ull, index, a, scale);                                           \
  }                                                                                                   \
  inline void _mm512_mask_i32scatter_##type(void* base, __mmask16 k, __m512i index, V a, int scale) { \
    scatter<T, std::int32_t>(base, k, index, a, scale);                                               \
  }
EMU_SCATTER(epi32, __m512i, std::int32_t)
EMU_SCATTER(ps, __m512, float)
#undef EMU_SCATTER

template <class T, class V>
inline V compress(V src, std::uint64_t mask, V a) {
  auto r = EMU_LANES(T, src);
  const auto x = EMU_LANES(T, a);
  unsigned used = 0;
  for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i)
    if (bit(mask, i)) r.v[used++] = x.v[i];
  return __builtin_bit_cast(V, r);
}

template <class T, class V>
inline V expand(V src, std::uint64_t mask, V a) {
  auto r = EMU_LANES(T, src);
  const auto x = EMU_LANES(T, a);
  unsigned used = 0;
  for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i)
    if (bit(mask, i)) r.v[i] = x.v[used++];
  return __builtin_bit_cast(V, r);
}

template <class V, class T>
inline std::uint64_t lowest_of(std::uint64_t mask) {
  constexpr int kLanes = sizeof(V) / sizeof(T);
  const int count = __builtin_popcountll(kLanes == 64 ? mask : mask & ((std::uint64_t{1} << (kLanes % 64)) - 1));
  return count == 64 ? ~0ull : (std::uint64_t{1} << count) - 1;
}

#define EMU_COMPRESS(P, V, T, type)                                                                    \
  inline V P##_mask_compress_##type(V src, EMU_MASK(V, T) k, V a) { return compress<T>(src, k, a); }   \
  inline V P##_maskz_compress_##type(EMU_MASK(V, T) k, V a) { return compress<T>(EMU_ZERO(V), k, a); } \
  inline V P##_mask_expand_##type(V src, EMU_MASK(V, T) k, V a) { return expand<T>(src, k, a); }       \
  inline V P##_maskz_expand_##type(EMU_MASK(V, T) k, V a) { return expand<T>(EMU_ZERO(V), k, a); }     \
  inline void P##_mask_compressstoreu_##type(void* p, EMU_MASK(V, T) k, V a) {                         \
    store_lanes<T>(p, lowest_of<V, T>(k), compress<T>(a, k, a));                                       \
  }                                                                                                    \
  inline V P##_mask_expandloadu_##type(V src, EMU_MASK(V, T) k, const void* p) {                       \
    return expand<T>(src, k, load_lanes<T>(EMU_ZERO(V), lowest_of<V, T>(k), p));                       \
  }                                                                                                    \
  inline V P##_maskz_expandloadu_##type(EMU_MASK(V, T) k, const void* p) {                             \
    return P##_mask_expandloadu_##type(EMU_ZERO(V), k, p);                                             \
  }
EMU_WIDTHS(EMU_COMPRESS, i, std::int8_t, epi8)
EMU_WIDTHS(EMU_COMPRESS, i, std::int16_t, epi16)
EMU_WIDTHS(EMU_COMPRESS, i, std::int32_t, epi32)
EMU_WIDTHS(EMU_COMPRESS, i, std::int64_t, epi64)
EMU_WIDTHS(EMU_COMPRESS, , float, ps)
EMU_WIDTHS(EMU_COMPRESS, d, double, pd)
#undef EMU_COMPRESS

}  // namespace
}  // namespace scaledmm::emu
