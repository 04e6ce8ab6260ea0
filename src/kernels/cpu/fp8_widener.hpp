// FP8 weights to bf16 in AVX-512 registers, exactly: 64 numbers (fp8_numbering.hpp) by 6 instructions, 4 of them
// shuffles.
#pragma once

#include <cstdint>

#include "device/target.hpp"
#include "kernels/cpu/fp8_numbering.hpp"
#include "kernels/cpu/fp8_product.hpp"

// clang-format off
SCALEDMM_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")
// clang-format on
namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

// The tables in registers.
class Widener {
 public:
  explicit Widener(const fp8::Fp8Numbering& numbering)
      : low_(_mm512_load_si512(numbering.low.data())),
        high_(_mm512_load_si512(numbering.high.data())),
        keeps_top_(_mm512_set1_epi8(static_cast<char>(0xbf))),
        sign_and_top_(_mm512_set1_epi8(static_cast<char>(0xc0))) {}

  // 64 numbers in the order kPairs to two rows of pairs.
  SCALEDMM_INLINE void widen(const std::uint8_t* numbers, __m512i& first, __m512i& second) const {
    constexpr int kAAndBOrC = 0xe0;
    constexpr int kAOrBAndC = 0xf8;
    const __m512i group = _mm512_load_si512(numbers);
    const __m512i low = _mm512_permutexvar_epi8(group, low_);
    const __m512i high = _mm512_permutexvar_epi8(group, high_);
    const __m512i low_bytes = _mm512_ternarylogic_epi32(low, group, keeps_top_, kAAndBOrC);
    const __m512i high_bytes = _mm512_ternarylogic_epi32(high, group, sign_and_top_, kAOrBAndC);
    first = _mm512_unpacklo_epi8(low_bytes, high_bytes);
    second = _mm512_unpackhi_epi8(low_bytes, high_bytes);
  }

 private:
  __m512i low_;
  __m512i high_;
  __m512i keeps_top_;
  __m512i sign_and_top_;
};

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
SCALEDMM_TARGET_END
