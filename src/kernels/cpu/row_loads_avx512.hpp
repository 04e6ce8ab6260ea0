// Loads of 16 values as f32; with a mask zeros for the rest.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "device/target.hpp"

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
// clang-format on
namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

struct LoadF32 {
  using Element = float;
  static __m512 load(const float* x) { return _mm512_loadu_ps(x); }
  static __m512 load(const float* x, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, x); }
};
inline __m512 bf16_to_f32(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
struct LoadBF16 {
  using Element = std::uint16_t;
  static __m512 load(const std::uint16_t* x) {
    return bf16_to_f32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
  static __m512 load(const std::uint16_t* x, __mmask16 mask) { return bf16_to_f32(_mm256_maskz_loadu_epi16(mask, x)); }
};
struct LoadF16 {
  using Element = std::uint16_t;
  static __m512 load(const std::uint16_t* x) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
  static __m512 load(const std::uint16_t* x, __mmask16 mask) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, x));
  }
};

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
SCALEDMM_TARGET_END
