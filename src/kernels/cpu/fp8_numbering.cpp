#include "kernels/cpu/fp8_numbering.hpp"

#include <bit>
#include <cstddef>

#include "numerics/formats.hpp"

namespace scaledmm::fp8 {
namespace {

constexpr std::size_t kMagnitudes = 128;
constexpr std::size_t kSlots = 64;
constexpr std::uint8_t kTopBit = 0x40;  // of the mantissa, in the low byte

// Fills slots with magnitudes.
class Builder {
 public:
  explicit constexpr Builder(const std::array<float, 256>& values) {
    // Code 1 is the least value, a power of two; its exponent field becomes 128.
    numbering_.power = 2.0f / values[1];
    for (std::size_t code = 0; code < kMagnitudes; ++code) {
      is_nan_[code] = values[code] != values[code];
      if (!is_nan_[code]) bits_[code] = std::bit_cast<std::uint32_t>(values[code] * numbering_.power) >> 16;
    }
    take(0, 0, 0);
    take(1, 0, 1);
    slots_ = 1;
    for (std::size_t code = 2; code < kMagnitudes; ++code) {
      if (taken_[code] || is_nan_[code]) continue;
      const std::size_t slot = new_slot(bits_[code]);
      take(code, slot, 0);
      for (std::size_t other = code + 1; other < kMagnitudes; ++other) {
        if (!is_nan_[other] && bits_[other] == (bits_[code] | kTopBit)) take(other, slot, 1);
      }
    }
    // A column with a NaN has the scale NaN, so what its code gives does not matter.
    for (std::size_t code = 0; code < kMagnitudes; ++code) {
      if (is_nan_[code]) take_any(code);
    }
  }
  constexpr const Fp8Numbering& numbering() const { return numbering_; }

 private:
  constexpr std::size_t new_slot(std::uint32_t bits) {
    numbering_.high.at(slots_) = static_cast<std::uint8_t>(bits >> 8);
    numbering_.low.at(slots_) = static_cast<std::uint8_t>((bits & 0xff) | kTopBit);
    return slots_++;
  }

  constexpr void take(std::size_t code, std::size_t slot, std::size_t top) {
    taken_[code] = true;
    full_[slot + kSlots * top] = true;
    for (const std::size_t sign : {std::size_t{0}, kMagnitudes}) {
      const std::size_t number = sign | top * kSlots | slot;
      numbering_.number_of[sign | code] = static_cast<std::uint8_t>(number);
      numbering_.code_of[number] = static_cast<std::uint8_t>(sign | code);
    }
  }

  constexpr void take_any(std::size_t code) {
    std::size_t place = 0;
    while (place < kMagnitudes && full_[place]) ++place;
    if (place % kSlots >= slots_) new_slot(0x7fff);
    take(code, place % kSlots, place / kSlots);
  }

  Fp8Numbering numbering_;
  std::array<std::uint32_t, kMagnitudes> bits_{};
  std::array<bool, kMagnitudes> is_nan_{};
  std::array<bool, kMagnitudes> taken_{};
  std::array<bool, kMagnitudes> full_{};  // numbers
  std::size_t slots_ = 0;
};

constexpr Fp8Numbering kE4M3FN = Builder(detail::kE4M3FNValues).numbering();
constexpr Fp8Numbering kE4M3FNUZ = Builder(detail::kE4M3FNUZValues).numbering();
constexpr Fp8Numbering kE5M2 = Builder(detail::kE5M2Values).numbering();

}  // namespace

const Fp8Numbering& fp8_numbering(DType weights) {
  if (weights == DType::kE5M2) return kE5M2;
  return weights == DType::kE4M3FNUZ ? kE4M3FNUZ : kE4M3FN;
}

}  // namespace scaledmm::fp8
