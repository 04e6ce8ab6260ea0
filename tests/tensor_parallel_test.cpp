// Slices of layers for tensor-parallel ranks.
#include "scaledmm/tensor_parallel.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "numerics/formats.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/registry.hpp"
#include "scratch_folder.hpp"

namespace scaledmm {
namespace {

// An FP8 layer with weights all 1 and its scales.
struct WholeLayer {
  FP8ScaledMMLinearLayerConfig config;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  LayerWeights weights;

  WholeLayer(std::int64_t n, std::int64_t k, GroupShape group, std::vector<float> scale_values,
             const Shape& scale_shape)
      : codes(static_cast<std::size_t>(n * k), f32_to_e4m3fn(1.0f)), scales(std::move(scale_values)) {
    config.weight_quant_key = fp8_key(true, group);
    config.activation_quant_key = group.is_block() ? fp8_key(false, {1, group.col}) : kFp8DynamicTokenSym;
    config.weight_shape = {n, k};
    config.input_dtype = config.out_dtype = DType::kF32;
    weights.weight = ConstTensorView(codes.data(), DType::kE4M3FN, {n, k});
    weights.weight_scale = ConstTensorView(scales.data(), DType::kF32, scale_shape);
  }
  WholeLayer(const WholeLayer&) = delete;
};

constexpr GroupShape kBlock128{128, 128};

// y of a slice for x all 1.
std::vector<float> run_slice(const LayerSlice& slice) {
  const LinearKernel& kernel = *find_kernel("reference");
  Layer layer(slice.config, slice.weights);
  Context context;
  kernel.process_weights_after_loading(layer, context);
  const WeightShape shape = weight_shape(slice.config);
  const std::vector<float> x(static_cast<std::size_t>(shape.k), 1.0f);
  std::vector<float> y(static_cast<std::size_t>(shape.n));
  kernel.apply_weights(layer, ConstTensorView(x.data(), DType::kF32, {1, shape.k}), slice.bias,
                       TensorView(y.data(), DType::kF32, {1, shape.n}), context);
  return y;
}

void expect_near_range(const std::vector<float>& y, std::size_t begin, std::size_t end, float value) {
  ASSERT_LE(end, y.size());
  for (std::size_t i = begin; i < end; ++i) ASSERT_NEAR(y[i], value, value * 1e-5f) << i;
}

TEST(TensorParallel, OutputSlicesMayBeginInsideABlock) {
  const WholeLayer whole(192, 128, kBlock128, {1, 4}, {2, 1});
  const auto rank = [&](std::int64_t i, std::int64_t ranks) {
    return run_slice(slice(whole.config, whole.weights, {}, {SplitAxis::kOutput, i, ranks}));
  };
  expect_near_range(rank(0, 2), 0, 96, 128);
  expect_near_range(rank(1, 2), 0, 32, 128);
  expect_near_range(rank(1, 2), 32, 96, 512);
  expect_near_range(rank(2, 4), 0, 32, 128);
  expect_near_range(rank(2, 4), 32, 48, 512);
  expect_near_range(rank(3, 4), 0, 48, 512);
}

TEST(TensorParallel, InputSlicesMayBeginInsideABlock) {
  const WholeLayer whole(128, 192, kBlock128, {1, 4}, {1, 2});
  const auto rank = [&](std::int64_t i, std::int64_t ranks) {
    return run_slice(slice(whole.config, whole.weights, {}, {SplitAxis::kInput, i, ranks}));
  };
  expect_near_range(rank(0, 2), 0, 128, 96);
  expect_near_range(rank(1, 2), 0, 128, 288);
  expect_near_range(rank(2, 4), 0, 128, 32 + 16 * 4);
  expect_near_range(rank(3, 4), 0, 128, 48 * 4);
}

TEST(TensorParallel, SlicesOfSlicesKeepTheirOffset) {
  const WholeLayer whole(192, 128, kBlock128, {1, 4}, {2, 1});
  const LayerSlice half = slice(whole.config, whole.weights, {}, {SplitAxis::kOutput, 1, 2});
  const LayerSlice quarter = slice(half.config, half.weights, {}, {SplitAxis::kOutput, 0, 2});
  expect_near_range(run_slice(quarter), 0, 32, 128);
  expect_near_range(run_slice(quarter), 32, 48, 512);
}

TEST(TensorParallel, ChannelScalesFollowTheRowsAndStayAlongK) {
  const WholeLayer whole(4, 8, GroupShape::per_channel(), {1, 2, 3, 4}, {4, 1});
  const std::vector<float> bias = {10, 20, 30, 40};
  const ConstTensorView bias_view(bias.data(), DType::kF32, {4});
  const std::vector<float> rows = run_slice(slice(whole.config, whole.weights, bias_view, {SplitAxis::kOutput, 1, 2}));
  expect_near_range(rows, 0, 1, 8 * 3 + 30);
  expect_near_range(rows, 1, 2, 8 * 4 + 40);
  std::vector<float> sum(4);
  for (const std::int64_t i : {0, 1}) {
    const std::vector<float> part = run_slice(slice(whole.config, whole.weights, bias_view, {SplitAxis::kInput, i, 2}));
    for (std::size_t n = 0; n < 4; ++n) sum[n] += part[n];
  }
  for (std::size_t n = 0; n < 4; ++n) EXPECT_NEAR(sum[n], 8 * (n + 1.0f) + bias[n], 1e-3f);
}

TEST(TensorParallel, FusedPartsAreSplitOneByOne) {
  WholeLayer whole(12, 8, GroupShape::per_tensor(), {1, 2, 4}, {3});
  whole.weights.logical_widths = {8, 2, 2};
  const LayerSlice half = slice(whole.config, whole.weights, {}, {SplitAxis::kOutput, 1, 2});
  EXPECT_EQ(half.weights.logical_widths, (std::vector<std::int64_t>{4, 1, 1}));
  const std::vector<float> y = run_slice(half);
  ASSERT_EQ(y.size(), 6u);
  expect_near_range(y, 0, 4, 8);
  expect_near_range(y, 4, 5, 16);
  expect_near_range(y, 5, 6, 32);
}

TEST(TensorParallel, RefusesWhatDoesNotDivideOrFill) {
  WholeLayer whole(384, 128, kBlock128, {1, 2, 3}, {3, 1});
  const auto refusal = [&](const Split& split) {
    return message_of<InvalidArgument>([&] { slice(whole.config, whole.weights, {}, split); });
  };
  EXPECT_EQ(refusal({SplitAxis::kOutput, 0, 5}), "N = 384 is not divisible by 5");
  EXPECT_EQ(refusal({SplitAxis::kInput, 0, 3}), "K = 128 is not divisible by 3");
  EXPECT_TRUE(contains(refusal({SplitAxis::kOutput, 2, 2}), "slice 2 of 2"));
  whole.weights.logical_widths = {256, 128};
  const std::string text = refusal({SplitAxis::kOutput, 1, 4});
  EXPECT_TRUE(contains(text, "rows 64..127") && contains(text, "block border at 128")) << text;
}

TEST(TensorParallel, RanksShareKeyValueHeads) {
  EXPECT_EQ(key_value_split(3, 4, 8).index, 3);
  EXPECT_EQ(key_value_split(3, 4, 8).count, 4);
  EXPECT_EQ(key_value_split(5, 8, 2).index, 1);
  EXPECT_EQ(key_value_split(5, 8, 2).count, 2);
  EXPECT_TRUE(contains(message_of<InvalidArgument>([] { key_value_split(0, 4, 6); }), "6 key/value heads"));
}

}  // namespace
}  // namespace scaledmm
