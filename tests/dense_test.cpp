#include "scaledmm/dense.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/dense_tiles.hpp"
#include "numerics/formats.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

struct Case {
  std::int64_t m, n, k;
};

// Values of a dtype with their f32 meaning.
struct Values {
  DType dtype;
  std::vector<float> floats;
  std::vector<std::uint16_t> halves;

  Values(DType dtype_, std::int64_t count, std::uint32_t seed) : dtype(dtype_) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < count; ++i) push(normal(random));
  }
  void push(float value) {
    if (dtype == DType::kF32) {
      floats.push_back(value);
    } else {
      halves.push_back(dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value));
      floats.push_back(load_f32(halves.data(), dtype, static_cast<std::int64_t>(halves.size()) - 1));
    }
  }
  void set(std::size_t i, float value) {
    if (!halves.empty()) halves[i] = f32_to_bf16(value);
    floats[i] = value;
  }
  const void* data() const {
    return dtype == DType::kF32 ? static_cast<const void*>(floats.data()) : static_cast<const void*>(halves.data());
  }
};

class DenseLayers : public ::testing::TestWithParam<DType> {};

std::vector<float> apply(const DenseLinear& layer, const Values& x, std::int64_t m, Context& context,
                         const Values* bias = nullptr, DType out = DType::kF32) {
  std::vector<float> y(static_cast<std::size_t>(m * layer.n()));
  ConstTensorView bias_view;
  if (bias != nullptr) bias_view = ConstTensorView(bias->data(), bias->dtype, Shape{layer.n()});
  const ConstTensorView x_view(x.data(), x.dtype, Shape{m, layer.k()});
  if (out == DType::kF32) {
    layer.apply(x_view, bias_view, TensorView(y.data(), out, Shape{m, layer.n()}), context);
    return y;
  }
  std::vector<std::uint16_t> halves(y.size());
  layer.apply(x_view, bias_view, TensorView(halves.data(), out, Shape{m, layer.n()}), context);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = load_f32(halves.data(), out, static_cast<std::int64_t>(i));
  return y;
}

DenseLinear layer_of(const Values& weight, const Case& c, Context& context) {
  return DenseLinear(ConstTensorView(weight.data(), DType::kBF16, Shape{c.n, c.k}), context);
}

void expect_products(const Case& c, const Values& x, const Values& w, const Values* bias, const std::vector<float>& y) {
  for (std::int64_t m = 0; m < c.m; ++m) {
    for (std::int64_t n = 0; n < c.n; ++n) {
      double sum = bias == nullptr ? 0.0 : static_cast<double>(bias->floats[static_cast<std::size_t>(n)]);
      double magnitudes = std::fabs(sum);
      for (std::int64_t k = 0; k < c.k; ++k) {
        const double product = static_cast<double>(x.floats[static_cast<std::size_t>(m * c.k + k)]) *
                               static_cast<double>(w.floats[static_cast<std::size_t>(n * c.k + k)]);
        sum += product;
        magnitudes += std::fabs(product);
      }
      const double error = std::fabs(static_cast<double>(y[static_cast<std::size_t>(m * c.n + n)]) - sum);
      ASSERT_LE(error, std::ldexp(magnitudes * static_cast<double>(c.k + 2), -24)) << "row " << m << ", column " << n;
    }
  }
}

TEST_P(DenseLayers, KeepTheErrorBoundOverShapes) {
  for (const Case& c : {Case{1, 1, 1},
                        {1, 70, 33},
                        {2, 17, 31},
                        {3, 64, 64},
                        {4, 16, 96},
                        {5, 33, 600},
                        {6, 100, 129},
                        {7, 48, 32},
                        {16, 15, 65},
                        {33, 130, 520},
                        {200, 40, 1100},
                        {385, 18, 40}}) {
    Context context(Threading{.threads = 2});
    const Values x(GetParam(), c.m * c.k, 1), w(DType::kBF16, c.n * c.k, 2), bias(GetParam(), c.n, 3);
    const DenseLinear layer = layer_of(w, c, context);
    expect_products(c, x, w, nullptr, apply(layer, x, c.m, context));
    expect_products(c, x, w, &bias, apply(layer, x, c.m, context, &bias));
  }
}

TEST_P(DenseLayers, GiveARowTheSameBitsInAnyBatchAndOnAnyThreads) {
  const Case c{230, 150, 1111};
  const Values x(GetParam(), c.m * c.k, 4), w(DType::kBF16, c.n * c.k, 5);
  Context one(Threading{.threads = 1}), three(Threading{.threads = 3});
  const DenseLinear layer = layer_of(w, c, one);
  const std::vector<float> all = apply(layer, x, c.m, three);
  EXPECT_EQ(all, apply(layer, x, c.m, one));
  for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 20, 100}) {
    const std::vector<float> some = apply(layer, x, m, three);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << m << " rows";
  }
}

TEST_P(DenseLayers, RoundOnceToTheOutputsType) {
  const Case c{9, 50, 70};
  const Values x(GetParam(), c.m * c.k, 6), w(DType::kBF16, c.n * c.k, 7), bias(DType::kBF16, c.n, 8);
  Context context(Threading{.threads = 1});
  const DenseLinear layer = layer_of(w, c, context);
  const std::vector<float> wide = apply(layer, x, c.m, context, &bias);
  const std::vector<float> bf16 = apply(layer, x, c.m, context, &bias, DType::kBF16);
  const std::vector<float> f16 = apply(layer, x, c.m, context, &bias, DType::kF16);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    EXPECT_EQ(bf16[i], bf16_to_f32(f32_to_bf16(wide[i])));
    EXPECT_EQ(f16[i], f16_to_f32(f32_to_f16(wide[i])));
  }
}

INSTANTIATE_TEST_SUITE_P(Inputs, DenseLayers, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(name(param.param)); });

TEST(DenseLayer, HonoursRowStrides) {
  const Case c{4, 20, 35};
  Context context(Threading{.threads = 1});
  const Values x(DType::kF32, c.m * 50, 9), w(DType::kBF16, c.n * 40, 10);
  const DenseLinear layer(ConstTensorView(w.data(), DType::kBF16, Shape{c.n, c.k}, Shape{40, 1}), context);
  std::vector<float> y(static_cast<std::size_t>(c.m * 30), -1.0f);
  layer.apply(ConstTensorView(x.data(), DType::kF32, Shape{c.m, c.k}, Shape{50, 1}), {},
              TensorView(y.data(), DType::kF32, Shape{c.m, c.n}, Shape{30, 1}), context);
  for (std::int64_t m = 0; m < c.m; ++m) {
    for (std::int64_t n = 0; n < 30; ++n) {
      const float got = y[static_cast<std::size_t>(m * 30 + n)];
      if (n >= c.n) {
        EXPECT_EQ(got, -1.0f);
        continue;
      }
      double sum = 0;
      for (std::int64_t k = 0; k < c.k; ++k) {
        sum += static_cast<double>(x.floats[static_cast<std::size_t>(m * 50 + k)]) *
               static_cast<double>(w.floats[static_cast<std::size_t>(n * 40 + k)]);
      }
      EXPECT_NEAR(got, sum, 1e-4);
    }
  }
}

TEST(DenseLayer, PassesInfAndNaNToTheirRowOnly) {
  const Case c{3, 20, 64};
  Context context(Threading{.threads = 1});
  Values x(DType::kF32, c.m * c.k, 11);
  Values w(DType::kBF16, c.n * c.k, 12);
  for (std::size_t n = 0; n < 20; ++n) w.set(n * 64 + 3, 2.0f);
  x.floats[3] = std::numeric_limits<float>::infinity();
  x.floats[64 + 5] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> y = apply(layer_of(w, c, context), x, c.m, context);
  for (std::size_t n = 0; n < 20; ++n) {
    EXPECT_EQ(y[n], std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(y[20 + n]));
    EXPECT_TRUE(std::isfinite(y[40 + n]));
  }
}

TEST(DenseLayer, RefusesWhatItCannotTakeWithBothShapes) {
  Context context(Threading{.threads = 1});
  const Values w(DType::kBF16, 6 * 8, 13);
  const auto fault = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_NE(fault([&] {
              DenseLinear(ConstTensorView(w.data(), DType::kF16, Shape{6, 8}), context);
            }).find("f16, not bf16"),
            std::string::npos);
  EXPECT_NE(fault([&] { DenseLinear(ConstTensorView(w.data(), DType::kBF16, Shape{48}), context); }).find("[48]"),
            std::string::npos);
  EXPECT_NE(fault([&] {
              DenseLinear(ConstTensorView(w.data(), DType::kBF16, Shape{0, 8}), context);
            }).find("[0, 8]"),
            std::string::npos);
  const DenseLinear layer(ConstTensorView(w.data(), DType::kBF16, Shape{6, 8}), context);
  std::vector<float> x(14), y(12);
  const ConstTensorView wrong_x(x.data(), DType::kF32, Shape{2, 7}), right_x(x.data(), DType::kF32, Shape{1, 8});
  const TensorView right_y(y.data(), DType::kF32, Shape{1, 6}), two_rows(y.data(), DType::kF32, Shape{2, 6});
  EXPECT_NE(fault([&] { layer.apply(wrong_x, {}, two_rows, context); }).find("[2, 7]"), std::string::npos);
  EXPECT_NE(fault([&] { layer.apply(right_x, {}, two_rows, context); }).find("[1, 8] and y [2, 6]"), std::string::npos);
  EXPECT_NE(fault([&] { layer.apply(right_x, right_x, right_y, context); }).find("bias must be"), std::string::npos);
}

// The tiles themselves, on every machine: native where it can run, else emulated.
TEST(Bf16Amx, MultipliesTilesOfAnyRowsExactlyInThreeParts) {
  const dense::Kernel& kernel = emulated::bf16_amx();
  const std::int64_t rows = 9, parts = 3, k = 40, padded_k = 64;
  ASSERT_EQ(kernel.parts(DType::kF32), parts);
  const Values x(DType::kF32, rows * k, 14), w(DType::kBF16, 2 * dense::kPanelColumns * padded_k, 15);
  alignas(64) static std::byte prepared[48 * 64 * 2];
  alignas(64) static float sums[2 * 32 * dense::kPanelColumns];
  alignas(64) static std::uint16_t weights[2 * dense::kPanelColumns * 64];
  std::copy(w.halves.begin(), w.halves.end(), weights);
  dense::RowCall row{.dtype = DType::kF32, .k = k, .padded_k = padded_k, .prepared = prepared};
  for (row.row = 0; row.row < 11; ++row.row) {
    row.x = row.row < rows ? x.floats.data() + row.row * k : nullptr;
    kernel.prepare(row);
  }
  dense::TileCall call{.x = prepared, .padded_k = padded_k, .rows = rows * parts, .count = padded_k};
  call.weights = weights;
  call.sums = sums;
  call.panel_sums = 32 * dense::kPanelColumns;
  kernel.begin();
  kernel.multiply(2, call);
  kernel.end();
  kernel.add_parts(parts, 2, rows, sums, call.panel_sums);
  for (std::int64_t p = 0; p < 2; ++p) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < dense::kPanelColumns; ++c) {
        double sum = 0, magnitudes = 0;
        for (std::int64_t i = 0; i < k; ++i) {
          const std::size_t at =
              static_cast<std::size_t>((p * padded_k + i / 2 * 2) * dense::kPanelColumns + 2 * c + i % 2);
          const double product =
              static_cast<double>(x.floats[static_cast<std::size_t>(r * k + i)]) * static_cast<double>(w.floats[at]);
          sum += product;
          magnitudes += std::fabs(product);
        }
        const float got = sums[p * call.panel_sums + r * dense::kPanelColumns + c];
        ASSERT_LE(std::fabs(static_cast<double>(got) - sum),
                  std::ldexp(magnitudes * static_cast<double>(k + parts), -24));
      }
    }
  }
}

}  // namespace
}  // namespace scaledmm
