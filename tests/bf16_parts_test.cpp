// Rows as sums of bf16 rows: exact for every f16, and for f32 of every size.
#include "kernels/cpu/bf16_parts.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "numerics/formats.hpp"

namespace scaledmm::bf16 {
namespace {

struct Split {
  float factor;
  std::vector<std::uint16_t> parts;
};

template <class Element>
Split split(const std::vector<Element>& x, DType dtype) {
  const auto k = static_cast<std::int64_t>(x.size());
  Split result{0.0f, std::vector<std::uint16_t>(x.size() * static_cast<std::size_t>(parts_of(dtype)))};
  result.factor = split_row(x.data(), dtype, k, result.parts.data());
  return result;
}

// The sum of the parts of element i, times the factor, in f64, which holds it.
double joined(const Split& split, std::size_t i, std::size_t k) {
  double sum = 0.0;
  for (std::size_t at = i; at < split.parts.size(); at += k) sum += static_cast<double>(bf16_to_f32(split.parts[at]));
  return sum * static_cast<double>(split.factor);
}

// Each part is zero or far enough above the denormals for its product with an 8-bit float.
void expect_exact(const std::vector<float>& x, const Split& split) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(joined(split, i, x.size()), static_cast<double>(x[i])) << x[i];
  }
  for (const std::uint16_t part : split.parts) {
    const float value = std::fabs(bf16_to_f32(part));
    ASSERT_TRUE(value == 0.0f || value >= std::ldexp(1.0f, -103)) << value;
  }
}

TEST(Bf16Parts, HoldEveryF16) {
  std::vector<std::uint16_t> x(1 << 16);
  for (std::size_t bits = 0; bits < x.size(); ++bits) x[bits] = static_cast<std::uint16_t>(bits);
  const Split halves = split(x, DType::kF16);
  EXPECT_EQ(halves.factor, 1.0f);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double value = static_cast<double>(f16_to_f32(x[i]));
    const double sum = joined(halves, i, x.size());
    ASSERT_TRUE(sum == value || (std::isnan(sum) && std::isnan(value))) << value << " became " << sum;
  }
}

TEST(Bf16Parts, HoldF32OfEverySize) {
  for (int exponent = -149; exponent < 128; ++exponent) {
    std::vector<float> x;
    for (std::uint32_t i = 0; i < 37; ++i) {
      const std::uint32_t mantissa = i * 0x9e3779b9u & 0x7fffffu;
      const float value = std::ldexp(std::bit_cast<float>(0x3f800000u | mantissa), exponent);
      x.push_back(i % 2 == 0 ? value : -value);
    }
    x.push_back(0.0f);
    const Split row = split(x, DType::kF32);
    ASSERT_GT(row.factor, 0.0f) << exponent;
    expect_exact(x, row);
  }
}

TEST(Bf16Parts, HoldRowsThatSpanWhatAPowerOfTwoCanMend) {
  const auto spanning = [](int least, int largest) {
    return std::vector<float>{std::ldexp(-1.5f, least), 0.0f, std::ldexp(1.9999999f, largest)};
  };
  for (const int least : {-149, -127, -126, -100, -81, -80, -30}) {
    const std::vector<float> x = spanning(least, least + 144);
    const Split row = split(x, DType::kF32);
    ASSERT_GT(row.factor, 0.0f) << least;
    expect_exact(x, row);
    EXPECT_EQ(split(spanning(least, least + 146), DType::kF32).factor, 0.0f) << least;
  }
}

TEST(Bf16Parts, KeepWhatIsNotFiniteInTheFirst) {
  const std::vector<float> x{INFINITY, 1.0f, -INFINITY, NAN, -0.0f, std::bit_cast<float>(0x7f800001u), 3.0f, 0.1f, NAN};
  const Split row = split(x, DType::kF32);
  EXPECT_EQ(row.factor, 1.0f);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(x[i])) continue;
    const float first = bf16_to_f32(row.parts[i]);
    EXPECT_TRUE(std::isnan(x[i]) ? std::isnan(first) : first == x[i]) << x[i];
    for (std::size_t part = 1; part < 3; ++part) EXPECT_EQ(row.parts[part * x.size() + i] & 0x7fff, 0) << x[i];
  }
}

TEST(Bf16Parts, AddUpTheSmallestFirst) {
  constexpr std::int64_t kPanels = 2, kRows = 5, kParts = 3, kColumns = 16, kPanelSums = kRows * kParts * kColumns + 16;
  alignas(64) float sums[kPanels * kPanelSums];
  const auto value = [](std::int64_t p, std::int64_t row, std::int64_t part, std::int64_t column) {
    return (part == 0 ? 16777216.0f : 1.0f) + static_cast<float>(p + row + column);
  };
  for (std::int64_t p = 0; p < kPanels; ++p) {
    for (std::int64_t i = 0; i < kRows * kParts * kColumns; ++i) {
      sums[p * kPanelSums + i] = value(p, i / kColumns / kParts, i / kColumns % kParts, i % kColumns);
    }
  }
  add_parts(kParts, kPanels, kRows, sums, kPanelSums);
  for (std::int64_t p = 0; p < kPanels; ++p) {
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t c = 0; c < kColumns; ++c) {
        const float expected = value(p, row, 2, c) + value(p, row, 1, c) + value(p, row, 0, c);
        ASSERT_EQ(sums[p * kPanelSums + row * kColumns + c], expected) << p << " " << row << " " << c;
      }
    }
  }
}

}  // namespace
}  // namespace scaledmm::bf16
