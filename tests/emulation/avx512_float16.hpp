// AVX-512-FP16, where the compiler has _Float16. One rounding to nearest even; float16 denormals are always kept.
#pragma once

#include "avx512_float.hpp"

#ifdef __FLT16_MAX__
namespace scaledmm::emu {
namespace {

inline float from_half(std::uint16_t a) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(a))); }
inline std::uint16_t to_half(float a) {
  return static_cast<std::uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(a), _MM_FROUND_TO_NEAREST_INT), 0));
}

// The product is exact in f64. So is the sum, unless the operands are so far apart that the answer is c itself or an
// overflow. f32 takes it rounded to odd, so that the last rounding is the only one.
inline std::uint16_t fused_half(float a, float b, float c) {
  const double sum = double{a} * b + c;
  if (sum != sum || __builtin_isinf(sum)) return to_half(static_cast<float>(sum));
  auto bits = __builtin_bit_cast(std::uint64_t, sum);
  if (const std::uint64_t tail = bits % (1u << 29); tail != 0) bits = (bits - tail) | (1u << 29);
  return to_half(static_cast<float>(__builtin_bit_cast(double, bits)));
}

template <class V, class Operation>
inline V each_half(V va, V vb, V vc, Operation operation) {
  auto x = EMU_LANES(std::uint16_t, va);
  const auto y = EMU_LANES(std::uint16_t, vb), z = EMU_LANES(std::uint16_t, vc);
  for (unsigned i = 0; i < sizeof(V) / 2; ++i)
    x.v[i] = operation(from_half(x.v[i]), from_half(y.v[i]), from_half(z.v[i]));
  return __builtin_bit_cast(V, x);
}

// f32 has more than twice the digits of float16 and two to spare, so rounding there first changes nothing.
#define EMU_HALF_1(P, V, T, op, ...)                                                       \
  inline V P##_##op(V a) {                                                                 \
    return each_half(a, a, a, [](float x, float, float) { return to_half(__VA_ARGS__); }); \
  }                                                                                        \
  EMU_MASKED_1(P, V, T, op)
#define EMU_HALF_2(P, V, T, op, ...)                                                         \
  inline V P##_##op(V a, V b) {                                                              \
    return each_half(a, b, b, [](float x, float y, float) { return to_half(__VA_ARGS__); }); \
  }                                                                                          \
  EMU_MASKED_SAME_2(P, V, T, op)
#define EMU_HALF_3(P, V, T, op, ...)                                                              \
  inline V P##_##op(V a, V b, V c) {                                                              \
    return each_half(a, b, c, [](float x, float y, float z) { return fused_half(__VA_ARGS__); }); \
  }                                                                                               \
  EMU_MASKED_3(P, V, T, op)                                                                       \
  EMU_MASK3_3(P, V, T, op)
#define EMU_HALF_WIDTHS(FORM, ...) EMU_WIDTHS(FORM, h, std::int16_t, __VA_ARGS__)
EMU_HALF_WIDTHS(EMU_HALF_1, sqrt_ph, __builtin_sqrtf(x))
EMU_HALF_WIDTHS(EMU_HALF_2, add_ph, x + y)
EMU_HALF_WIDTHS(EMU_HALF_2, sub_ph, x - y)
EMU_HALF_WIDTHS(EMU_HALF_2, mul_ph, x* y)
EMU_HALF_WIDTHS(EMU_HALF_2, div_ph, x / y)
EMU_HALF_WIDTHS(EMU_HALF_2, max_ph, x > y ? x : y)
EMU_HALF_WIDTHS(EMU_HALF_2, min_ph, x < y ? x : y)
EMU_HALF_WIDTHS(EMU_HALF_3, fmadd_ph, x, y, z)
EMU_HALF_WIDTHS(EMU_HALF_3, fmsub_ph, x, y, -z)
EMU_HALF_WIDTHS(EMU_HALF_3, fnmadd_ph, -x, y, z)
EMU_HALF_WIDTHS(EMU_HALF_3, fnmsub_ph, -x, y, -z)
#undef EMU_HALF_1
#undef EMU_HALF_2
#undef EMU_HALF_3

#define EMU_HALF_MEMORY(P, V, T)                                                           \
  inline V P##_loadu_ph(const void* p) {                                                   \
    V r;                                                                                   \
    __builtin_memcpy(&r, p, sizeof(V));                                                    \
    return r;                                                                              \
  }                                                                                        \
  inline void P##_storeu_ph(void* p, V a) { __builtin_memcpy(p, &a, sizeof(V)); }          \
  inline V P##_setzero_ph() { return EMU_ZERO(V); }                                        \
  inline V P##_abs_ph(V va) {                                                              \
    auto x = EMU_LANES(std::uint16_t, va);                                                 \
    for (std::uint16_t & a : x.v) a &= 0x7FFF;                                             \
    return __builtin_bit_cast(V, x);                                                       \
  }                                                                                        \
  inline V P##_set1_ph(_Float16 value) {                                                   \
    Lanes<_Float16, sizeof(V) / 2> r;                                                      \
    for (_Float16& lane : r.v) lane = value;                                               \
    return __builtin_bit_cast(V, r);                                                       \
  }                                                                                        \
  inline EMU_MASK(V, T) P##_cmp_ph_mask(V va, V vb, int predicate) {                       \
    const auto x = EMU_LANES(std::uint16_t, va), y = EMU_LANES(std::uint16_t, vb);         \
    EMU_MASK(V, T) r = 0;                                                                  \
    for (unsigned i = 0; i < sizeof(V) / 2; ++i) {                                         \
      const float a = from_half(x.v[i]), b = from_half(y.v[i]);                            \
      const int relation = a < b ? 1 : a == b ? 2 : a > b ? 4 : 8;                         \
      if (kAccepted[predicate & 15] & relation) r |= static_cast<EMU_MASK(V, T)>(1u << i); \
    }                                                                                      \
    return r;                                                                              \
  }
EMU_WIDTHS(EMU_HALF_MEMORY, h, std::int16_t)
#undef EMU_HALF_MEMORY
#undef EMU_HALF_WIDTHS
inline __m256i _mm256_castph_si256(__m256h a) { return (__m256i)a; }
inline __m256h _mm256_castsi256_ph(__m256i a) { return (__m256h)a; }
inline __m128i _mm_castph_si128(__m128h a) { return (__m128i)a; }
inline __m128h _mm_castsi128_ph(__m128i a) { return (__m128h)a; }
inline __m256h _mm512_castph512_ph256(__m512h a) { return (__m256h)a.lo; }
inline __m512h _mm512_castph256_ph512(__m256h a) { return {(__m256i)a, EMU_UNDEFINED(__m256i)}; }
inline __m512h _mm512_load_ph(const void* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % 64 != 0) fault("misaligned address for an aligned load or store");
  return _mm512_loadu_ph(p);
}
inline void _mm512_store_ph(void* p, __m512h a) {
  if (reinterpret_cast<std::uintptr_t>(p) % 64 != 0) fault("misaligned address for an aligned load or store");
  _mm512_storeu_ph(p, a);
}

inline __m512 _mm512_cvtxph_ps(__m256h a) { return _mm512_cvtph_ps((__m256i)a); }
inline __m256 _mm256_cvtxph_ps(__m128h a) { return _mm256_cvtph_ps((__m128i)a); }
inline __m256h _mm512_cvtxps_ph(__m512 a) { return (__m256h)_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT); }
inline __m128h _mm256_cvtxps_ph(__m256 a) { return (__m128h)_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT); }
// In two exact halves: an int32 has more digits than f32, and rounding twice would show.
inline __m256h _mm512_cvtepi32_ph(__m512i a) {
  return convert_lanes<__m256h, std::uint16_t, std::int32_t>(a, [](std::int32_t x) {
    return fused_half(1.0f, static_cast<float>(x & ~0xFFFF), static_cast<float>(x & 0xFFFF));
  });
}
inline __m512h _mm512_cvtepi16_ph(__m512i a) {
  return convert_lanes<__m512h, std::uint16_t, std::int16_t>(a, [](std::int16_t x) { return to_half(x); });
}
inline __m512i _mm512_cvtph_epi32(__m256h a) { return _mm512_cvtps_epi32(_mm512_cvtxph_ps(a)); }
inline __m512i _mm512_cvttph_epi32(__m256h a) { return _mm512_cvttps_epi32(_mm512_cvtxph_ps(a)); }
inline std::int16_t to_int16(float a) {
  return a >= -32768.0f && a < 32768.0f ? static_cast<std::int16_t>(a) : INT16_MIN;
}
inline __m512i _mm512_cvtph_epi16(__m512h a) {
  return convert_lanes<__m512i, std::int16_t, std::uint16_t>(
      a, [](std::uint16_t x) { return to_int16(__builtin_rintf(from_half(x))); });
}
inline __m512i _mm512_cvttph_epi16(__m512h a) {
  return convert_lanes<__m512i, std::int16_t, std::uint16_t>(a, [](std::uint16_t x) { return to_int16(from_half(x)); });
}

#define EMU_HALF_REDUCE(op, expression)                                                                 \
  inline _Float16 _mm512_reduce_##op##_ph(__m512h v) {                                                  \
    return __builtin_bit_cast(_Float16, reduce<std::uint16_t>(v, [](std::uint16_t x, std::uint16_t y) { \
                                const float a = from_half(x), b = from_half(y);                         \
                                return to_half(expression);                                             \
                              }));                                                                      \
  }
EMU_HALF_REDUCE(add, a + b)
EMU_HALF_REDUCE(max, a > b ? a : b)
EMU_HALF_REDUCE(min, a < b ? a : b)
#undef EMU_HALF_REDUCE

}  // namespace
}  // namespace scaledmm::emu
#endif
