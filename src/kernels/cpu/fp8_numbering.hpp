// Other numbers for FP8 codes, from which two tables of 64 bytes give both bytes of a bf16 value: VPERMB looks 64 of
// them up at once, where tables of 128 take three times the instructions.
//
//   number = sign | top | slot (1, 1, 6 bits)
//   high byte = high[slot] | (number & 0xc0)
//   low byte  = low[slot] & (number | 0xbf)
// The values of a slot differ in the highest bit of the mantissa alone, which is bit 6 of the low byte. That makes 65
// slots, zero and the least value having one each. So values are taken times a power of two that gives the least one
// the high byte 0x40, and every other one bit 6 there too: then these two can share a slot as well.
#pragma once

#include <array>
#include <cstdint>

#include "scaledmm/dtype.hpp"

namespace scaledmm::fp8 {

struct Fp8Numbering {
  alignas(64) std::array<std::uint8_t, 64> low{};
  alignas(64) std::array<std::uint8_t, 64> high{};
  std::array<std::uint8_t, 256> number_of{};  // codes
  std::array<std::uint8_t, 256> code_of{};    // numbers
  float power = 1.0f;                         // what bf16 values are multiplied by

  // The bits of the bf16 value, as vector code makes them. Some number's for a NaN.
  std::uint16_t bf16_of(std::uint8_t number) const {
    const std::size_t slot = number % 64;
    return static_cast<std::uint16_t>((high[slot] | (number & 0xc0)) << 8 | (low[slot] & (number | 0xbf)));
  }
};

const Fp8Numbering& fp8_numbering(DType weights);

}  // namespace scaledmm::fp8
