// The 512-bit vector types as pairs of 256-bit ones, lane access, selection by mask, and the generator macros for the
// masked forms. Everything lives in an anonymous namespace and calls no std:: inline function: an object file compiled
// with -mavx2 must not offer the linker a weak copy of anything.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>

#include "undef_intrinsics.inc"

namespace scaledmm::emu {
namespace {

[[noreturn, gnu::noinline, gnu::cold]] inline void fault(const char* reason) {
  std::fputs("x86 emulation: ", stderr);
  std::fputs(reason, stderr);
  std::fputs("\n", stderr);
  __builtin_abort();
}

struct IntegerTag {
  using Half = __m256i;
};
struct FloatTag {
  using Half = __m256;
};
struct DoubleTag {
  using Half = __m256d;
};
struct Bfloat16Tag {
  using Half = __m256i;
};
struct Float16Tag {
  using Half = __m256i;
};

// The constructor from another 512-bit type is explicit so that `(__m512i)x` compiles, as with the real types, and
// mixing does not.
template <class Tag>
struct alignas(64) Z {
  using Half = typename Tag::Half;
  Half lo, hi;
  Z() = default;
  Z(Half low, Half high) : lo(low), hi(high) {}
  template <class Other>
  explicit Z(const Z<Other>& other) : lo(__builtin_bit_cast(Half, other.lo)), hi(__builtin_bit_cast(Half, other.hi)) {}
};
using __m512i = Z<IntegerTag>;
using __m512 = Z<FloatTag>;
using __m512d = Z<DoubleTag>;
using __m512bh = Z<Bfloat16Tag>;
using __m512h = Z<Float16Tag>;

// N lanes of T, without the alignment and aliasing rules of vector types.
template <class T, int N>
struct Lanes {
  T v[N];
};
#define EMU_LANES(T, vector) __builtin_bit_cast(Lanes<T, sizeof(vector) / sizeof(T)>, vector)

template <int N>
struct MaskType {
  using type = __mmask8;
};
template <>
struct MaskType<16> {
  using type = __mmask16;
};
template <>
struct MaskType<32> {
  using type = __mmask32;
};
template <>
struct MaskType<64> {
  using type = __mmask64;
};
#define EMU_MASK(V, T) MaskType<sizeof(V) / sizeof(T)>::type

inline bool bit(std::uint64_t mask, int i) { return (mask >> i) & 1; }

// All ones in the lanes of the given size whose bit is set.
template <int kSize>
inline __m256i spread(std::uint64_t mask) {
  if constexpr (kSize == 1) {
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bits = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    return _mm256_cmpeq_epi8(
        _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(mask)), which), bits), bits);
  } else if constexpr (kSize == 2) {
    const __m256i bits =
        _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768);
    return _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(static_cast<short>(mask)), bits), bits);
  } else if constexpr (kSize == 4) {
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bits), bits);
  } else {
    const __m256i bits = _mm256_setr_epi64x(1, 2, 4, 8);
    return _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(static_cast<long long>(mask)), bits), bits);
  }
}

// One bit a lane: the sign bits of 256 bits of lanes.
template <int kSize>
inline std::uint32_t gather_signs(__m256i a) {
  if constexpr (kSize == 1) {
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(a));
  } else if constexpr (kSize == 2) {
    const __m128i low = _mm256_castsi256_si128(a), high = _mm256_castsi256_si128(_mm256_permute2x128_si256(a, a, 0x11));
    return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
  } else if constexpr (kSize == 4) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(a)));
  } else {
    return static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(a)));
  }
}

template <class T, class V>
inline V select(std::uint64_t mask, V yes, V no) {
  constexpr int kSize = sizeof(T);
  if constexpr (sizeof(V) == 64) {
    using Half = typename V::Half;
    return {select<T, Half>(mask, yes.lo, no.lo), select<T, Half>(mask >> (32 / kSize), yes.hi, no.hi)};
  } else if constexpr (sizeof(V) == 32) {
    return __builtin_bit_cast(
        V, _mm256_blendv_epi8(__builtin_bit_cast(__m256i, no), __builtin_bit_cast(__m256i, yes), spread<kSize>(mask)));
  } else {
    const __m128i lanes = _mm256_castsi256_si128(spread<kSize>(mask));
    return __builtin_bit_cast(
        V, _mm_blendv_epi8(__builtin_bit_cast(__m128i, no), __builtin_bit_cast(__m128i, yes), lanes));
  }
}
#define EMU_ZERO(V) __builtin_bit_cast(V, Lanes<unsigned char, sizeof(V)>{})
// What the manuals call undefined, so that code which hopes for zero fails.
#define EMU_UNDEFINED(V) __builtin_bit_cast(V, undefined_bytes<sizeof(V)>())
template <int N>
inline Lanes<unsigned char, N> undefined_bytes() {
  Lanes<unsigned char, N> r;
  __builtin_memset(&r, 0xA5, N);
  return r;
}

// Generators. P is the prefix _mm, _mm256 or _mm512, V the vector type, T the lane type, S the type suffix: i, d or
// nothing.
#define EMU_WIDTHS(FORM, S, ...)       \
  FORM(_mm, __m128##S, __VA_ARGS__)    \
  FORM(_mm256, __m256##S, __VA_ARGS__) \
  FORM(_mm512, __m512##S, __VA_ARGS__)
#define EMU_MASKED_1(P, V, T, op)                                                                 \
  inline V P##_mask_##op(V src, EMU_MASK(V, T) k, V a) { return select<T>(k, P##_##op(a), src); } \
  inline V P##_maskz_##op(EMU_MASK(V, T) k, V a) { return select<T>(k, P##_##op(a), EMU_ZERO(V)); }
#define EMU_MASKED_2(P, V, T, op, B)                                                                      \
  inline V P##_mask_##op(V src, EMU_MASK(V, T) k, V a, B b) { return select<T>(k, P##_##op(a, b), src); } \
  inline V P##_maskz_##op(EMU_MASK(V, T) k, V a, B b) { return select<T>(k, P##_##op(a, b), EMU_ZERO(V)); }
#define EMU_MASKED_SAME_2(P, V, T, op) EMU_MASKED_2(P, V, T, op, V)
#define EMU_MASKED_IMMEDIATE_2(P, V, T, op)                                                                         \
  inline V P##_mask_##op(V src, EMU_MASK(V, T) k, V a, V b, int n) { return select<T>(k, P##_##op(a, b, n), src); } \
  inline V P##_maskz_##op(EMU_MASK(V, T) k, V a, V b, int n) { return select<T>(k, P##_##op(a, b, n), EMU_ZERO(V)); }
// The first operand is also the one that masked-off lanes keep.
#define EMU_MASKED_3(P, V, T, op)                                                                        \
  inline V P##_mask_##op(V a, EMU_MASK(V, T) k, V b, V c) { return select<T>(k, P##_##op(a, b, c), a); } \
  inline V P##_maskz_##op(EMU_MASK(V, T) k, V a, V b, V c) { return select<T>(k, P##_##op(a, b, c), EMU_ZERO(V)); }
#define EMU_MASK3_3(P, V, T, op) \
  inline V P##_mask3_##op(V a, V b, V c, EMU_MASK(V, T) k) { return select<T>(k, P##_##op(a, b, c), c); }

// 512 bits from two real 256-bit instructions, masked forms in all widths.
#define EMU_NATIVE_1(op, T, S)                                                                 \
  inline __m512##S _mm512_##op(__m512##S a) { return {_mm256_##op(a.lo), _mm256_##op(a.hi)}; } \
  EMU_WIDTHS(EMU_MASKED_1, S, T, op)
#define EMU_PLAIN_2(op, S) \
  inline __m512##S _mm512_##op(__m512##S a, __m512##S b) { return {_mm256_##op(a.lo, b.lo), _mm256_##op(a.hi, b.hi)}; }
#define EMU_NATIVE_2(op, T, S) EMU_PLAIN_2(op, S) EMU_WIDTHS(EMU_MASKED_SAME_2, S, T, op)

// All widths from one expression of the lanes a and b, computed in T.
#define EMU_EACH_1(P, V, T, op, ...)                   \
  inline V P##_##op(V va) {                            \
    auto x = EMU_LANES(T, va);                         \
    for (T & a : x.v) a = static_cast<T>(__VA_ARGS__); \
    return __builtin_bit_cast(V, x);                   \
  }                                                    \
  EMU_MASKED_1(P, V, T, op)
#define EMU_EACH_2(P, V, T, op, ...)                       \
  inline V P##_##op(V va, V vb) {                          \
    auto x = EMU_LANES(T, va);                             \
    const auto y = EMU_LANES(T, vb);                       \
    for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i) { \
      const T a = x.v[i], b = y.v[i];                      \
      x.v[i] = static_cast<T>(__VA_ARGS__);                \
    }                                                      \
    return __builtin_bit_cast(V, x);                       \
  }                                                        \
  EMU_MASKED_SAME_2(P, V, T, op)
#define EMU_LOOP_1(op, T, ...) EMU_WIDTHS(EMU_EACH_1, i, T, op, __VA_ARGS__)
#define EMU_LOOP_2(op, T, ...) EMU_WIDTHS(EMU_EACH_2, i, T, op, __VA_ARGS__)

}  // namespace
}  // namespace scaledmm::emu
