// The numbers that stand for FP8 codes in the panels of the kernels that widen to bf16.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/cpu/fp8_numbering.hpp"
#include "numerics/formats.hpp"

namespace scaledmm {
namespace {

constexpr DType kFp8Types[] = {DType::kE4M3FN, DType::kE4M3FNUZ, DType::kE5M2};

TEST(Fp8Numbering, GivesEveryCodeANumberOfItsOwn) {
  for (const DType dtype : kFp8Types) {
    const fp8::Fp8Numbering& numbering = fp8::fp8_numbering(dtype);
    for (int code = 0; code < 256; ++code) {
      ASSERT_EQ(numbering.code_of[numbering.number_of[static_cast<std::size_t>(code)]], code) << name(dtype);
    }
  }
}

TEST(Fp8Numbering, WidensEveryCodeExactlyUpToThePower) {
  for (const DType dtype : kFp8Types) {
    const fp8::Fp8Numbering& numbering = fp8::fp8_numbering(dtype);
    int exponent = 0;
    ASSERT_EQ(std::frexp(numbering.power, &exponent), 0.5f) << name(dtype) << " is multiplied by no power of two";
    for (int code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      const float value = fp8_to_f32(byte, dtype);
      if (std::isnan(value)) continue;
      const float widened = bf16_to_f32(numbering.bf16_of(numbering.number_of[byte]));
      // Bits, so that the sign of zero counts.
      ASSERT_EQ(std::bit_cast<std::uint32_t>(widened), std::bit_cast<std::uint32_t>(value * numbering.power))
          << name(dtype) << " code " << code;
    }
  }
}

// TDPBF16PS and VDPBF16PS take denormals as zero.
TEST(Fp8Numbering, MakesNoDenormals) {
  for (const DType dtype : kFp8Types) {
    for (int number = 0; number < 256; ++number) {
      const std::uint16_t bits = fp8::fp8_numbering(dtype).bf16_of(static_cast<std::uint8_t>(number));
      if ((bits & 0x7f80) == 0) {
        ASSERT_EQ(bits & 0x7f, 0) << name(dtype) << " number " << number;
      }
    }
  }
}

}  // namespace
}  // namespace scaledmm
