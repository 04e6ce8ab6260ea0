// Integer comparisons and tests into masks, masks to and from vectors, and mask arithmetic.
#pragma once

#include "avx512_types.hpp"

namespace scaledmm::emu {
namespace {

template <int kSize>
struct SignedLane {
  using type = std::int64_t;
};
template <>
struct SignedLane<1> {
  using type = std::int8_t;
};
template <>
struct SignedLane<2> {
  using type = std::int16_t;
};
template <>
struct SignedLane<4> {
  using type = std::int32_t;
};

// Compares two 256-bit halves lane by lane: all ones where a > b.
template <class T>
inline __m256i greater(__m256i a, __m256i b) {
  if constexpr (T(-1) > T(0)) {
    const __m256i signs = sizeof(T) == 1   ? _mm256_set1_epi8(-128)
                          : sizeof(T) == 2 ? _mm256_set1_epi16(-32768)
                          : sizeof(T) == 4 ? _mm256_set1_epi32(INT32_MIN)
                                           : _mm256_set1_epi64x(INT64_MIN);
    return greater<typename SignedLane<sizeof(T)>::type>(_mm256_xor_si256(a, signs), _mm256_xor_si256(b, signs));
  } else if constexpr (sizeof(T) == 1) {
    return _mm256_cmpgt_epi8(a, b);
  } else if constexpr (sizeof(T) == 2) {
    return _mm256_cmpgt_epi16(a, b);
  } else if constexpr (sizeof(T) == 4) {
    return _mm256_cmpgt_epi32(a, b);
  } else {
    return _mm256_cmpgt_epi64(a, b);
  }
}
template <class T>
inline __m256i equal(__m256i a, __m256i b) {
  if constexpr (sizeof(T) == 1)
    return _mm256_cmpeq_epi8(a, b);
  else if constexpr (sizeof(T) == 2)
    return _mm256_cmpeq_epi16(a, b);
  else if constexpr (sizeof(T) == 4)
    return _mm256_cmpeq_epi32(a, b);
  else
    return _mm256_cmpeq_epi64(a, b);
}

// The predicates of _MM_CMPINT_ENUM; the upper four are the lower four negated.
template <class T>
inline std::uint32_t compare_half(__m256i a, __m256i b, int predicate) {
  constexpr std::uint32_t kAll = ~0u >> (32 - 32 / sizeof(T));
  std::uint32_t r = 0;
  switch (predicate & 3) {
    case _MM_CMPINT_EQ:
      r = gather_signs<sizeof(T)>(equal<T>(a, b));
      break;
    case _MM_CMPINT_LT:
      r = gather_signs<sizeof(T)>(greater<T>(b, a));
      break;
    case _MM_CMPINT_LE:
      r = kAll & ~gather_signs<sizeof(T)>(greater<T>(a, b));
      break;
  }
  return predicate & 4 ? kAll & ~r : r;
}
template <class T, class V>
inline std::uint64_t compare(V a, V b, int predicate) {
  if constexpr (sizeof(V) == 64) {
    return compare_half<T>(a.lo, b.lo, predicate) | std::uint64_t{compare_half<T>(a.hi, b.hi, predicate)}
                                                        << (32 / sizeof(T));
  } else if constexpr (sizeof(V) == 32) {
    return compare_half<T>(a, b, predicate);
  } else {
    constexpr std::uint32_t kAll = (1u << (16 / sizeof(T))) - 1;
    return kAll & compare_half<T>(_mm256_castsi128_si256(a), _mm256_castsi128_si256(b), predicate);
  }
}
template <class T, class V>
inline std::uint64_t signs(V a) {
  if constexpr (sizeof(V) == 64) {
    return gather_signs<sizeof(T)>(a.lo) | std::uint64_t{gather_signs<sizeof(T)>(a.hi)} << (32 / sizeof(T));
  } else if constexpr (sizeof(V) == 32) {
    return gather_signs<sizeof(T)>(a);
  } else {
    return gather_signs<sizeof(T)>(_mm256_zextsi128_si256(a));
  }
}

#define EMU_COMPARE_NAMED(P, V, T, type, name, predicate)                                \
  inline EMU_MASK(V, T) P##_cmp##name##_##type##_mask(V a, V b) {                        \
    return static_cast<EMU_MASK(V, T)>(compare<T>(a, b, predicate));                     \
  }                                                                                      \
  inline EMU_MASK(V, T) P##_mask_cmp##name##_##type##_mask(EMU_MASK(V, T) k, V a, V b) { \
    return static_cast<EMU_MASK(V, T)>(k & compare<T>(a, b, predicate));                 \
  }
#define EMU_COMPARE(P, V, T, type)                                                              \
  inline EMU_MASK(V, T) P##_cmp_##type##_mask(V a, V b, int predicate) {                        \
    return static_cast<EMU_MASK(V, T)>(compare<T>(a, b, predicate));                            \
  }                                                                                             \
  inline EMU_MASK(V, T) P##_mask_cmp_##type##_mask(EMU_MASK(V, T) k, V a, V b, int predicate) { \
    return static_cast<EMU_MASK(V, T)>(k & compare<T>(a, b, predicate));                        \
  }                                                                                             \
  EMU_COMPARE_NAMED(P, V, T, type, eq, _MM_CMPINT_EQ)                                           \
  EMU_COMPARE_NAMED(P, V, T, type, lt, _MM_CMPINT_LT)                                           \
  EMU_COMPARE_NAMED(P, V, T, type, le, _MM_CMPINT_LE)                                           \
  EMU_COMPARE_NAMED(P, V, T, type, neq, _MM_CMPINT_NE)                                          \
  EMU_COMPARE_NAMED(P, V, T, type, ge, _MM_CMPINT_NLT)                                          \
  EMU_COMPARE_NAMED(P, V, T, type, gt, _MM_CMPINT_NLE)
EMU_WIDTHS(EMU_COMPARE, i, std::int8_t, epi8)
EMU_WIDTHS(EMU_COMPARE, i, std::int16_t, epi16)
EMU_WIDTHS(EMU_COMPARE, i, std::int32_t, epi32)
EMU_WIDTHS(EMU_COMPARE, i, std::int64_t, epi64)
EMU_WIDTHS(EMU_COMPARE, i, std::uint8_t, epu8)
EMU_WIDTHS(EMU_COMPARE, i, std::uint16_t, epu16)
EMU_WIDTHS(EMU_COMPARE, i, std::uint32_t, epu32)
EMU_WIDTHS(EMU_COMPARE, i, std::uint64_t, epu64)
#undef EMU_COMPARE
#undef EMU_COMPARE_NAMED

template <class V>
inline V both(V a, V b) {
  if constexpr (sizeof(V) == 64)
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
  else if constexpr (sizeof(V) == 32)
    return _mm256_and_si256(a, b);
  else
    return _mm_and_si128(a, b);
}
template <class V>
inline V all_ones() {
  Lanes<unsigned char, sizeof(V)> r;
  __builtin_memset(&r, 255, sizeof(V));
  return __builtin_bit_cast(V, r);
}
#define EMU_TEST(P, V, T, size)                                                                           \
  inline EMU_MASK(V, T) P##_test_epi##size##_mask(V a, V b) {                                             \
    return static_cast<EMU_MASK(V, T)>(compare<T>(both(a, b), EMU_ZERO(V), _MM_CMPINT_NE));               \
  }                                                                                                       \
  inline EMU_MASK(V, T) P##_mask_test_epi##size##_mask(EMU_MASK(V, T) k, V a, V b) {                      \
    return k & P##_test_epi##size##_mask(a, b);                                                           \
  }                                                                                                       \
  inline EMU_MASK(V, T) P##_testn_epi##size##_mask(V a, V b) {                                            \
    return static_cast<EMU_MASK(V, T)>(compare<T>(both(a, b), EMU_ZERO(V), _MM_CMPINT_EQ));               \
  }                                                                                                       \
  inline EMU_MASK(V, T) P##_mask_testn_epi##size##_mask(EMU_MASK(V, T) k, V a, V b) {                     \
    return k & P##_testn_epi##size##_mask(a, b);                                                          \
  }                                                                                                       \
  inline EMU_MASK(V, T) P##_movepi##size##_mask(V a) { return static_cast<EMU_MASK(V, T)>(signs<T>(a)); } \
  inline V P##_movm_epi##size(EMU_MASK(V, T) k) { return select<T>(k, all_ones<V>(), EMU_ZERO(V)); }
EMU_WIDTHS(EMU_TEST, i, std::int8_t, 8)
EMU_WIDTHS(EMU_TEST, i, std::int16_t, 16)
EMU_WIDTHS(EMU_TEST, i, std::int32_t, 32)
EMU_WIDTHS(EMU_TEST, i, std::int64_t, 64)
#undef EMU_TEST

#define EMU_MASK_ARITHMETIC(bits)                                                                           \
  inline __mmask##bits _kand_mask##bits(__mmask##bits a, __mmask##bits b) { return a & b; }                 \
  inline __mmask##bits _kandn_mask##bits(__mmask##bits a, __mmask##bits b) {                                \
    return static_cast<__mmask##bits>(~a & b);                                                              \
  }                                                                                                         \
  inline __mmask##bits _kor_mask##bits(__mmask##bits a, __mmask##bits b) { return a | b; }                  \
  inline __mmask##bits _kxor_mask##bits(__mmask##bits a, __mmask##bits b) { return a ^ b; }                 \
  inline __mmask##bits _kxnor_mask##bits(__mmask##bits a, __mmask##bits b) {                                \
    return static_cast<__mmask##bits>(~(a ^ b));                                                            \
  }                                                                                                         \
  inline __mmask##bits _knot_mask##bits(__mmask##bits a) { return static_cast<__mmask##bits>(~a); }         \
  inline __mmask##bits _kadd_mask##bits(__mmask##bits a, __mmask##bits b) {                                 \
    return static_cast<__mmask##bits>(a + b);                                                               \
  }                                                                                                         \
  inline __mmask##bits _kshiftli_mask##bits(__mmask##bits a, unsigned n) {                                  \
    return static_cast<__mmask##bits>(n < bits ? std::uint64_t{a} << n : 0);                                \
  }                                                                                                         \
  inline __mmask##bits _kshiftri_mask##bits(__mmask##bits a, unsigned n) {                                  \
    return static_cast<__mmask##bits>(n < bits ? a >> n : 0);                                               \
  }                                                                                                         \
  inline unsigned char _kortestz_mask##bits##_u8(__mmask##bits a, __mmask##bits b) { return (a | b) == 0; } \
  inline unsigned char _kortestc_mask##bits##_u8(__mmask##bits a, __mmask##bits b) {                        \
    return static_cast<__mmask##bits>(~(a | b)) == 0;                                                       \
  }                                                                                                         \
  inline unsigned char _ktestz_mask##bits##_u8(__mmask##bits a, __mmask##bits b) { return (a & b) == 0; }   \
  inline unsigned char _ktestc_mask##bits##_u8(__mmask##bits a, __mmask##bits b) { return (~a & b) == 0; }  \
  inline __mmask##bits _load_mask##bits(__mmask##bits* p) { return *p; }                                    \
  inline void _store_mask##bits(__mmask##bits* p, __mmask##bits a) { *p = a; }
EMU_MASK_ARITHMETIC(8)
EMU_MASK_ARITHMETIC(16)
EMU_MASK_ARITHMETIC(32)
EMU_MASK_ARITHMETIC(64)
#undef EMU_MASK_ARITHMETIC
inline std::uint32_t _cvtmask8_u32(__mmask8 a) { return a; }
inline std::uint32_t _cvtmask16_u32(__mmask16 a) { return a; }
inline std::uint32_t _cvtmask32_u32(__mmask32 a) { return a; }
inline unsigned long long _cvtmask64_u64(__mmask64 a) { return a; }
inline __mmask8 _cvtu32_mask8(std::uint32_t a) { return static_cast<__mmask8>(a); }
inline __mmask16 _cvtu32_mask16(std::uint32_t a) { return static_cast<__mmask16>(a); }
inline __mmask32 _cvtu32_mask32(std::uint32_t a) { return a; }
inline __mmask64 _cvtu64_mask64(unsigned long long a) { return a; }
inline __mmask16 _mm512_int2mask(int a) { return static_cast<__mmask16>(a); }
inline int _mm512_mask2int(__mmask16 a) { return a; }
inline __mmask16 _mm512_kmov(__mmask16 a) { return a; }
inline __mmask16 _mm512_kand(__mmask16 a, __mmask16 b) { return a & b; }
inline __mmask16 _mm512_kandn(__mmask16 a, __mmask16 b) { return _kandn_mask16(a, b); }
inline __mmask16 _mm512_kor(__mmask16 a, __mmask16 b) { return a | b; }
inline __mmask16 _mm512_kxor(__mmask16 a, __mmask16 b) { return a ^ b; }
inline __mmask16 _mm512_kxnor(__mmask16 a, __mmask16 b) { return _kxnor_mask16(a, b); }
inline __mmask16 _mm512_knot(__mmask16 a) { return _knot_mask16(a); }
inline int _mm512_kortestz(__mmask16 a, __mmask16 b) { return _kortestz_mask16_u8(a, b); }
inline int _mm512_kortestc(__mmask16 a, __mmask16 b) { return _kortestc_mask16_u8(a, b); }
// The first operand becomes the upper half.
inline __mmask16 _mm512_kunpackb(__mmask16 a, __mmask16 b) { return static_cast<__mmask16>(a << 8 | (b & 255)); }
inline __mmask32 _mm512_kunpackw(__mmask32 a, __mmask32 b) { return a << 16 | (b & 0xFFFF); }
inline __mmask64 _mm512_kunpackd(__mmask64 a, __mmask64 b) { return a << 32 | (b & 0xFFFFFFFF); }

// BMI and LZCNT scalars that kernels pair with masks; they come with every AVX-512 machine but not with -mavx2.
inline std::uint32_t _bzhi_u32(std::uint32_t a, std::uint32_t n) {
  return (n & 255) < 32 ? a & ((1u << (n & 255)) - 1) : a;
}
inline unsigned long long _bzhi_u64(unsigned long long a, std::uint32_t n) {
  return (n & 255) < 64 ? a & ((1ull << (n & 255)) - 1) : a;
}
inline std::uint32_t _tzcnt_u32(std::uint32_t a) { return a == 0 ? 32 : static_cast<std::uint32_t>(__builtin_ctz(a)); }
inline unsigned long long _tzcnt_u64(unsigned long long a) {
  return a == 0 ? 64 : static_cast<unsigned long long>(__builtin_ctzll(a));
}
inline std::uint32_t _lzcnt_u32(std::uint32_t a) { return a == 0 ? 32 : static_cast<std::uint32_t>(__builtin_clz(a)); }
inline unsigned long long _lzcnt_u64(unsigned long long a) {
  return a == 0 ? 64 : static_cast<unsigned long long>(__builtin_clzll(a));
}

}  // namespace
}  // namespace scaledmm::emu
