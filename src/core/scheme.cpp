#include "scaledmm/scheme.hpp"

#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

std::string extents(const GroupShape& group) {
  return "(" + std::to_string(group.row) + ", " + std::to_string(group.col) + ")";
}

// Groups or blocks along K: more than one scale may apply to a row.
bool is_split(const GroupShape& group) { return group.row >= 1 && group.col >= 1; }

std::string describe_weight(const FP8ScaledMMLinearLayerConfig& config) {
  const GroupShape& group = config.weight_quant_key.scale.group_shape;
  if (group.is_per_tensor()) return "per tensor";
  if (group.is_per_channel() || group.is_per_token()) return "per channel";
  return "in blocks of " + extents(group);
}

std::string describe_activation(const std::optional<QuantKey>& key, DType input) {
  if (!key) return "kept in " + std::string(name(input));
  return std::string(name(key->dtype)) + " " + key->scale.text();
}

}  // namespace

std::string GroupShape::text() const {
  if (is_per_tensor()) return "per_tensor";
  if (is_per_token()) return "per_token";
  if (is_per_channel()) return "per_channel";
  return extents(*this);
}

std::string ScaleDesc::text() const {
  return std::string(name(dtype)) + (is_static ? " static " : " dynamic ") + group_shape.text();
}

std::string QuantKey::text() const {
  std::string result = std::string(name(dtype)) + " " + scale.text();
  if (scale2) result += " with " + scale2->text();
  return result + (symmetric ? " symmetric" : " asymmetric");
}

WeightShape weight_shape(const LayerConfig& config) {
  return std::visit([](const auto& c) { return c.weight_shape; }, config);
}

DType input_dtype(const LayerConfig& config) {
  return std::visit([](const auto& c) { return c.input_dtype; }, config);
}

DType out_dtype(const LayerConfig& config) {
  return std::visit([](const auto& c) { return c.out_dtype; }, config);
}

bool is_block_scaled(const LayerConfig& config) {
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) return int8->weight_block.has_value();
  const auto& fp8 = std::get<FP8ScaledMMLinearLayerConfig>(config);
  const GroupShape& weight = fp8.weight_quant_key.scale.group_shape;
  const bool block_weight = is_split(weight);
  if (!fp8.activation_quant_key) return block_weight;
  const GroupShape& activation = fp8.activation_quant_key->scale.group_shape;
  if (is_split(activation) != block_weight) {
    throw InvalidArgument("weight scales " + weight.text() + " and activation scales " + activation.text() +
                          " do not go together: both come in K groups, or neither");
  }
  if (block_weight && activation.col != weight.col) {
    throw InvalidArgument("activation groups of " + std::to_string(activation.col) + " and weight blocks of " +
                          std::to_string(weight.col) + " along K differ");
  }
  return block_weight;
}

std::string scheme_name(const LayerConfig& config) {
  const std::string block = is_block_scaled(config) ? "_block" : "";
  if (std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config)) return "int8" + block;
  const bool weight_only = !std::get<FP8ScaledMMLinearLayerConfig>(config).activation_quant_key;
  return (weight_only ? "fp8_w8a16" : "fp8_w8a8") + block;
}

std::string describe(const LayerConfig& config) {
  const WeightShape shape = weight_shape(config);
  const std::string sizes = "[" + std::to_string(shape.n) + ", " + std::to_string(shape.k) + "]";
  const std::string types =
      ", " + std::string(name(input_dtype(config))) + " -> " + std::string(name(out_dtype(config)));
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
    std::string scales = int8->is_channelwise ? "per channel" : "per tensor";
    if (int8->weight_block) scales = "in blocks of " + extents(*int8->weight_block);
    return "int8 W8A8, weights " + sizes + " " + scales + ", activations " +
           (int8->is_static_input_scheme ? "static per tensor " : "dynamic per token ") +
           (int8->input_symmetric ? "symmetric" : "asymmetric") + types;
  }
  const auto& fp8 = std::get<FP8ScaledMMLinearLayerConfig>(config);
  return std::string(name(fp8.weight_quant_key.dtype)) + (fp8.activation_quant_key ? " W8A8" : " W8A16") +
         ", weights " + sizes + " " + describe_weight(fp8) + ", activations " +
         describe_activation(fp8.activation_quant_key, fp8.input_dtype) + types;
}

}  // namespace scaledmm
