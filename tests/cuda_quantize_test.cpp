// Quantizers on a GPU: the scalar functions' codes and scales, bit for bit.
#include <functional>

#include "cuda_fixture.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/quantize.hpp"

namespace scaledmm {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The 65536 patterns of a 16-bit type; neighbours in a row have like magnitudes, so that scales differ from row to row.
Matrix every_pattern(DType dtype, std::int64_t columns, std::int64_t pad = 0) {
  Matrix x(dtype, 65536 / columns, columns, pad);
  for (std::int64_t i = 0; i < x.rows * columns; ++i) {
    const auto bits = static_cast<std::uint16_t>((i / 2) | (i % 2) << 15);
    std::memcpy(x.bytes.data() + (i / columns * x.stride + i % columns) * 2, &bits, 2);
  }
  return x;
}

// f32 of all magnitudes: random bits, finite in most rows; values near the ties of quotients are frequent.
Matrix random_floats(std::int64_t rows, std::int64_t columns) {
  Matrix x(DType::kF32, rows, columns);
  std::uint64_t state = 7;
  for (std::int64_t i = 0; i < rows; ++i) {
    const int exponent = static_cast<int>(hash(static_cast<std::uint64_t>(i)) >> 8) % 200 - 100;
    for (std::int64_t j = 0; j < columns; ++j) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto high = static_cast<std::uint32_t>(state >> 33);
      // Half of them are short multiples of the row's unit, which come close to ties.
      const float value = j % 2 == 0 ? static_cast<float>(static_cast<int>(high % 1793) - 896)
                                     : (static_cast<float>(high) - 1073741824.0f) / 2396745.0f;
      x.set(i, j, std::ldexp(value, exponent));
    }
    if (i % 17 == 3) x.set(i, columns / 2, kInf);
    if (i % 19 == 4) x.set(i, columns / 3, std::numeric_limits<float>::quiet_NaN());
    if (i % 23 == 5) {
      for (std::int64_t j = 0; j < columns; ++j) x.set(i, j, 0.0f);
    }
  }
  return x;
}

std::string first_other_byte(const Matrix& got, const Matrix& expected, const Matrix& x) {
  for (std::int64_t i = 0; i < got.rows; ++i) {
    for (std::int64_t j = 0; j < got.columns; ++j) {
      if (got.byte(i, j) == expected.byte(i, j)) continue;
      return "row " + std::to_string(i) + ", column " + std::to_string(j) + ": x = " + std::to_string(x.at(i, j)) +
             " became " + std::to_string(got.byte(i, j)) + ", not " + std::to_string(expected.byte(i, j));
    }
  }
  return {};
}

class GpuQuantizers : public GpuTest {
 protected:
  void check_int8(const Matrix& x, const Int8QuantOptions& options, std::int64_t q_pad = 0) {
    const GpuMatrix gpu_x(gpu(), x);
    Matrix q(DType::kInt8, x.rows, x.columns), scale(DType::kF32, x.rows, 1), zero(DType::kInt32, x.rows, 1);
    GpuMatrix gpu_q(gpu(), Matrix(DType::kInt8, x.rows, x.columns, q_pad)), gpu_scale(gpu(), scale),
        gpu_zero(gpu(), zero);
    scaled_int8_quant(gpu_x.view(), options, gpu_q.view(), gpu_scale.view(), gpu_zero.view(), context());
    scaled_int8_quant(x.view(), options, q.view(), scale.view(), zero.view());
    ASSERT_EQ(first_other_byte(gpu_q.download(), q, x), "");
    ASSERT_EQ(first_other_value(gpu_scale.download(), scale), "");
    ASSERT_EQ(std::memcmp(gpu_zero.download().bytes.data(), zero.bytes.data(), zero.bytes.size()), 0);
  }

  void check_fp8(const Matrix& x, const Fp8QuantOptions& options, DType dtype = DType::kE4M3FN,
                 std::int64_t q_pad = 0) {
    const GpuMatrix gpu_x(gpu(), x);
    const GroupShape& group = options.group;
    const std::int64_t groups = group.is_per_group() ? (x.columns + group.col - 1) / group.col : 1;
    Matrix q(dtype, x.rows, x.columns), scale(DType::kF32, group.is_per_tensor() ? 1 : x.rows, groups);
    GpuMatrix gpu_q(gpu(), Matrix(dtype, x.rows, x.columns, q_pad)), gpu_scale(gpu(), scale);
    scaled_fp8_quant(gpu_x.view(), options, gpu_q.view(), gpu_scale.view(), context());
    scaled_fp8_quant(x.view(), options, q.view(), scale.view());
    ASSERT_EQ(first_other_byte(gpu_q.download(), q, x), "");
    ASSERT_EQ(first_other_value(gpu_scale.download(), scale), "");
  }

  // Every form on one input.
  void check_all(const Matrix& x) {
    for (const float scale : {1.0f, 0.019f, 3.7e-5f, 0.3333333f, 1e-39f, 3e38f, 448.0f, 1.1754944e-38f}) {
      SCOPED_TRACE(scale);
      check_int8(x, {scale, std::nullopt, true});
      check_int8(x, {scale, -37, false});
      check_fp8(x, {.scale = scale});
      check_fp8(x, {.scale = scale}, DType::kE4M3FNUZ);
    }
    check_int8(x, {});
    check_int8(x, {std::nullopt, std::nullopt, false});
    for (const DType dtype : {DType::kE4M3FN, DType::kE4M3FNUZ}) {
      SCOPED_TRACE(name(dtype));
      check_fp8(x, {}, dtype);
      check_fp8(x, {.scale_ub = 5.0f}, dtype);
      check_fp8(x, {.group = GroupShape::per_tensor()}, dtype);
      for (const std::int64_t group : {128, 64, 37}) {
        check_fp8(x, {.group = {1, group}}, dtype);
        check_fp8(x, {.group = {1, group}, .ue8m0 = true}, dtype);
      }
    }
  }
};

TEST_F(GpuQuantizers, GiveTheScalarCodesForEveryPatternOf16Bits) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const std::int64_t columns : {64, 256, 1024}) {
      SCOPED_TRACE(std::string(name(dtype)) + " in rows of " + std::to_string(columns));
      check_all(every_pattern(dtype, columns));
    }
  }
}

TEST_F(GpuQuantizers, GiveTheScalarCodesForF32AndOddSizes) {
  check_all(random_floats(400, 512));
  check_all(random_floats(64, 333));
  check_all(random_floats(3, 1));
  check_all(random_floats(2, 20000));
  check_all(random_floats(1, 40001));
}

TEST_F(GpuQuantizers, HonourStridesAndAlignment) {
  for (const std::int64_t pad : {0, 3, 8}) {
    const Matrix x = every_pattern(DType::kBF16, 256, pad);
    for (const std::int64_t q_pad : {0, 5, 16}) {
      check_int8(x, {}, q_pad);
      check_fp8(x, {}, DType::kE4M3FN, q_pad);
      check_fp8(x, {.group = {1, 128}}, DType::kE4M3FN, q_pad);
      check_fp8(x, {.scale = 0.5f}, DType::kE4M3FN, q_pad);
    }
  }
}

TEST_F(GpuQuantizers, WriteScalesInEveryLayout) {
  constexpr std::int64_t kRows = 37, kColumns = 600, kGroups = 5;
  const Matrix x = make_activation(DType::kBF16, kRows, kColumns);
  Matrix q(DType::kE4M3FN, kRows, kColumns), expected(DType::kF32, kRows, kGroups);
  scaled_fp8_quant(x.view(), {.group = {1, 128}, .ue8m0 = true}, q.view(), expected.view());
  const GpuMatrix gpu_x(gpu(), x);
  GpuMatrix gpu_q(gpu(), Matrix(DType::kE4M3FN, kRows, kColumns));
  for (const std::int64_t ld : {kRows, (kRows + 3) / 4 * 4}) {  // column-major, and with rows padded for bulk copies
    for (const DType dtype : {DType::kF32, DType::kE8M0}) {
      GpuMatrix scale(gpu(), Matrix(dtype, kGroups, ld));
      scaled_fp8_quant(gpu_x.view(), {.group = {1, 128}, .ue8m0 = true}, gpu_q.view(),
                       {scale.view().data, dtype, {kRows, kGroups}, {1, ld}}, context());
      const Matrix& got = scale.download();
      for (std::int64_t m = 0; m < kRows; ++m) {
        for (std::int64_t g = 0; g < kGroups; ++g) {
          const float value = dtype == DType::kF32 ? got.at(g, m) : e8m0_to_f32(got.byte(g, m));
          ASSERT_EQ(value, expected.at(m, g)) << "row " << m << " group " << g;
        }
      }
      EXPECT_EQ(first_other_byte(gpu_q.download(), q, x), "");
    }
  }
}

TEST_F(GpuQuantizers, RefuseWhatTheyCannotDo) {
  const GpuMatrix x(gpu(), make_activation(DType::kBF16, 4, 64));
  GpuMatrix q(gpu(), Matrix(DType::kE4M3FN, 4, 64)), scale(gpu(), Matrix(DType::kF32, 4, 1));
  Matrix on_host(DType::kE4M3FN, 4, 64);
  EXPECT_THROW(scaled_fp8_quant(x.view(), {}, on_host.view(), scale.view(), context()), InvalidArgument);
  EXPECT_THROW(scaled_fp8_quant(x.view(), {.scale = -1.0f}, q.view(), {}, context()), InvalidArgument);
  EXPECT_THROW(scaled_fp8_quant(x.view(), {.group = {1, 16}}, q.view(), scale.view(), context()), InvalidArgument);
  EXPECT_THROW(scaled_int8_quant(x.view(), {}, q.view(), scale.view(), {}, context()), InvalidArgument);
}

}  // namespace
}  // namespace scaledmm
