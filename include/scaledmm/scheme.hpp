// How a layer is quantized: group shapes, scale descriptions, quantization keys, and the two layer configurations.
// Vocabulary: upstream's (vllm.model_executor.layers.quantization.utils.quant_utils and kernels.linear.scaled_mm).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "scaledmm/dtype.hpp"

namespace scaledmm {

// One scale covers row x col elements; -1 is the whole extent. Activations [M, K] read (token, feature), block weights
// [N, K] read (N block, K block), and per-channel (-1, 1) is upstream's [K, N] view: one scale for each output feature.
struct GroupShape {
  std::int64_t row = -1;
  std::int64_t col = -1;

  bool is_per_tensor() const { return row == -1 && col == -1; }
  bool is_per_token() const { return row == 1 && col == -1; }
  bool is_per_channel() const { return row == -1 && col == 1; }
  bool is_per_group() const { return row == 1 && col >= 1; }
  // Both extents are given, and it is not a group of one row.
  bool is_block() const { return row > 1 && col >= 1; }
  bool operator==(const GroupShape&) const = default;
  // "per_tensor", "per_token", "per_channel" or "(128, 128)".
  std::string text() const;

  static constexpr GroupShape per_tensor() { return {-1, -1}; }
  static constexpr GroupShape per_token() { return {1, -1}; }
  static constexpr GroupShape per_channel() { return {-1, 1}; }
};

// What the scales of a tensor are: their dtype, whether they come with the checkpoint, and what one of them covers.
struct ScaleDesc {
  DType dtype = DType::kF32;
  bool is_static = true;
  GroupShape group_shape;

  bool operator==(const ScaleDesc&) const = default;
  std::string text() const;
};

// How a tensor is quantized. Compared by value: kernels test membership.
struct QuantKey {
  DType dtype = DType::kE4M3FN;
  ScaleDesc scale;
  std::optional<ScaleDesc> scale2 = std::nullopt;
  bool symmetric = true;

  bool operator==(const QuantKey&) const = default;
  // "e4m3fn f32 static per_channel symmetric"
  std::string text() const;
};

// Builds an FP8 key, as upstream's helper does.
constexpr QuantKey fp8_key(bool is_static, GroupShape group, bool symmetric = true, DType scale_dtype = DType::kF32,
                           DType dtype = DType::kE4M3FN) {
  return QuantKey{dtype, ScaleDesc{scale_dtype, is_static, group}, std::nullopt, symmetric};
}

inline constexpr ScaleDesc kStaticTensorScale{DType::kF32, true, GroupShape::per_tensor()};
inline constexpr ScaleDesc kDynamicTensorScale{DType::kF32, false, GroupShape::per_tensor()};
inline constexpr ScaleDesc kStaticTokenScale{DType::kF32, true, GroupShape::per_token()};
inline constexpr ScaleDesc kDynamicTokenScale{DType::kF32, false, GroupShape::per_token()};
inline constexpr ScaleDesc kStaticChannelScale{DType::kF32, true, GroupShape::per_channel()};

inline constexpr QuantKey kFp8StaticTensorSym = fp8_key(true, GroupShape::per_tensor());
inline constexpr QuantKey kFp8DynamicTensorSym = fp8_key(false, GroupShape::per_tensor());
inline constexpr QuantKey kFp8StaticTokenSym = fp8_key(true, GroupShape::per_token());
inline constexpr QuantKey kFp8DynamicTokenSym = fp8_key(false, GroupShape::per_token());
inline constexpr QuantKey kFp8StaticChannelSym = fp8_key(true, GroupShape::per_channel());
inline constexpr QuantKey kFp8Dynamic128Sym = fp8_key(false, {1, 128});
inline constexpr QuantKey kFp8Dynamic64Sym = fp8_key(false, {1, 64});
inline constexpr QuantKey kFp8Static128BlockSym = fp8_key(true, {128, 128});
inline constexpr QuantKey kFp8Dynamic128x128Sym = fp8_key(false, {128, 128});
inline constexpr QuantKey kMxfp8Dynamic = fp8_key(false, {1, 32}, true, DType::kE8M0);
inline constexpr QuantKey kMxfp8Static = fp8_key(true, {1, 32}, true, DType::kE8M0);
// The packed FP4 keys exist so that configurations that name them can be recognised and refused.
inline constexpr QuantKey kNvfp4Dynamic{DType::kUInt8, {DType::kE4M3FN, false, {1, 16}}, kStaticTensorScale, true};
inline constexpr QuantKey kNvfp4Static{DType::kUInt8, {DType::kE4M3FN, true, {1, 16}}, kStaticTensorScale, true};
inline constexpr QuantKey kMxfp4Dynamic{DType::kUInt8, {DType::kE8M0, false, {1, 32}}, std::nullopt, true};
inline constexpr QuantKey kMxfp4Static{DType::kUInt8, {DType::kE8M0, true, {1, 32}}, std::nullopt, true};

// [N, K]: output features, input features.
struct WeightShape {
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool operator==(const WeightShape&) const = default;
};

// A layer with int8 weights and int8 activations (W8A8). Weights are symmetric.
struct Int8ScaledMMLinearLayerConfig {
  bool is_static_input_scheme = false;  // one activation scale from the checkpoint; else one for each token at run time
  bool is_channelwise = true;   // a weight scale for each output feature; else for each logical width (fused part)
  bool input_symmetric = true;  // no activation zero point
  WeightShape weight_shape;
  DType input_dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;
  // Beyond upstream: block-scaled weights (bn, bk). Activations then are dynamic per token.
  std::optional<GroupShape> weight_block = std::nullopt;

  bool operator==(const Int8ScaledMMLinearLayerConfig&) const = default;
};

// A layer with FP8 weights. No activation key: weight-only (W8A16), the activations stay as they are.
struct FP8ScaledMMLinearLayerConfig {
  QuantKey weight_quant_key = kFp8StaticChannelSym;
  std::optional<QuantKey> activation_quant_key = kFp8DynamicTokenSym;
  WeightShape weight_shape;
  DType input_dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;

  bool operator==(const FP8ScaledMMLinearLayerConfig&) const = default;
};

using LayerConfig = std::variant<Int8ScaledMMLinearLayerConfig, FP8ScaledMMLinearLayerConfig>;

WeightShape weight_shape(const LayerConfig& config);
DType input_dtype(const LayerConfig& config);
DType out_dtype(const LayerConfig& config);
// True where weights come in blocks or K groups. Looks at both keys, and throws InvalidArgument where they contradict:
// a block weight of K block bk takes activations in groups (1, bk), or none.
bool is_block_scaled(const LayerConfig& config);
// The scheme as one word: int8, fp8_w8a8, fp8_w8a16, int8_block, fp8_w8a8_block or fp8_w8a16_block.
std::string scheme_name(const LayerConfig& config);
// One line for people: "int8 W8A8, weights [576, 576] per channel, activations dynamic per token symmetric, bf16 ->
// bf16".
std::string describe(const LayerConfig& config);

}  // namespace scaledmm
