// Names, shapes, keys and configurations.
#include <gtest/gtest.h>

#include "scaledmm/dtype.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/scheme.hpp"
#include "scaledmm/tensor.hpp"

namespace scaledmm {
namespace {

TEST(DType, NamesRoundTrip) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kInt8, DType::kInt32, DType::kE4M3FN,
                            DType::kE4M3FNUZ, DType::kE5M2, DType::kE8M0, DType::kUInt8}) {
    EXPECT_EQ(dtype_from_name(name(dtype)), dtype);
  }
  EXPECT_FALSE(dtype_from_name("float8"));
}

TEST(Shape, CountsElementsAndRefusesOverflow) {
  EXPECT_EQ((Shape{2, 3}).elements(), 6);
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{0, 1L << 62, 8}).elements(), 0);
  EXPECT_THROW((Shape{1L << 62, 2}).elements(), InvalidArgument);
  EXPECT_THROW((Shape{-1}), InvalidArgument);
  EXPECT_EQ((Shape{2, 3}).text(), "[2, 3]");
}

TEST(TensorView, PackedStridesAreRowMajor) {
  float data[6];
  const TensorView view(data, DType::kF32, {2, 3});
  EXPECT_EQ(view.strides, (Shape{3, 1}));
  EXPECT_TRUE(view.is_packed());
  EXPECT_FALSE(ConstTensorView(data, DType::kF32, Shape{2, 2}, Shape{3, 1}).is_packed());
}

TEST(GroupShape, PredicatesFollowUpstream) {
  EXPECT_TRUE(GroupShape::per_tensor().is_per_tensor());
  EXPECT_TRUE(GroupShape::per_token().is_per_token());
  EXPECT_TRUE(GroupShape::per_channel().is_per_channel());
  EXPECT_TRUE((GroupShape{1, 128}).is_per_group());
  EXPECT_FALSE((GroupShape{1, -1}).is_per_group());
  EXPECT_TRUE((GroupShape{128, 128}).is_block());
  EXPECT_EQ((GroupShape{128, 128}).text(), "(128, 128)");
}

TEST(QuantKey, NamedKeysSayWhatTheyAre) {
  EXPECT_EQ(kFp8StaticTensorSym.text(), "e4m3fn f32 static per_tensor symmetric");
  EXPECT_EQ(kFp8DynamicTokenSym.text(), "e4m3fn f32 dynamic per_token symmetric");
  EXPECT_EQ(kFp8StaticChannelSym.text(), "e4m3fn f32 static per_channel symmetric");
  EXPECT_EQ(kFp8Dynamic128Sym.text(), "e4m3fn f32 dynamic (1, 128) symmetric");
  EXPECT_EQ(kFp8Static128BlockSym.text(), "e4m3fn f32 static (128, 128) symmetric");
  EXPECT_EQ(kMxfp8Dynamic.text(), "e4m3fn e8m0 dynamic (1, 32) symmetric");
  EXPECT_EQ(kNvfp4Static.text(), "uint8 e4m3fn static (1, 16) with f32 static per_tensor symmetric");
  EXPECT_NE(kFp8Dynamic128Sym, kFp8Dynamic64Sym);
  EXPECT_EQ(kFp8Dynamic128Sym, fp8_key(false, {1, 128}));
}

FP8ScaledMMLinearLayerConfig fp8_config(QuantKey weight, std::optional<QuantKey> activation) {
  return {weight, activation, {64, 256}, DType::kBF16, DType::kBF16};
}

TEST(LayerConfig, BlockIsDecidedByBothKeys) {
  EXPECT_TRUE(is_block_scaled(fp8_config(kFp8Static128BlockSym, kFp8Dynamic128Sym)));
  EXPECT_TRUE(is_block_scaled(fp8_config(kFp8Static128BlockSym, std::nullopt)));
  EXPECT_FALSE(is_block_scaled(fp8_config(kFp8StaticChannelSym, kFp8DynamicTokenSym)));
  EXPECT_THROW(is_block_scaled(fp8_config(kFp8StaticChannelSym, kFp8Dynamic128Sym)), InvalidArgument);
  EXPECT_THROW(is_block_scaled(fp8_config(kFp8Static128BlockSym, kFp8DynamicTokenSym)), InvalidArgument);
  // The activation group of a block checkpoint is the K block, not the N block.
  EXPECT_THROW(is_block_scaled(fp8_config(fp8_key(true, {128, 64}), kFp8Dynamic128Sym)), InvalidArgument);
  EXPECT_TRUE(is_block_scaled(fp8_config(fp8_key(true, {128, 64}), kFp8Dynamic64Sym)));
}

TEST(LayerConfig, SchemesHaveNames) {
  EXPECT_EQ(scheme_name(Int8ScaledMMLinearLayerConfig{}), "int8");
  Int8ScaledMMLinearLayerConfig int8_block;
  int8_block.weight_block = GroupShape{128, 128};
  EXPECT_EQ(scheme_name(int8_block), "int8_block");
  EXPECT_EQ(scheme_name(fp8_config(kFp8StaticTensorSym, kFp8StaticTensorSym)), "fp8_w8a8");
  EXPECT_EQ(scheme_name(fp8_config(kFp8StaticTensorSym, std::nullopt)), "fp8_w8a16");
  EXPECT_EQ(scheme_name(fp8_config(kFp8Static128BlockSym, kFp8Dynamic128Sym)), "fp8_w8a8_block");
}

TEST(LayerConfig, DescribesItselfInOneLine) {
  Int8ScaledMMLinearLayerConfig config;
  config.weight_shape = {576, 1536};
  EXPECT_EQ(describe(config),
            "int8 W8A8, weights [576, 1536] per channel, activations dynamic per token symmetric, bf16 -> bf16");
}

}  // namespace
}  // namespace scaledmm
