#include "formats/converted_config.hpp"

#include "formats/json.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

constexpr std::int64_t kBlock = 128;

// compressed-tensors refuses members that it does not know, so nothing beyond these is written.
Json compressed_tensors(ConvertScheme scheme, bool asymmetric_inputs, const std::vector<std::string>& dense) {
  const bool is_int8 = scheme == ConvertScheme::kInt8Channel;
  const char* type = is_int8 ? "int" : "float";
  Json group;
  group["targets"] = {"Linear"};
  group["weights"] = {
      {"num_bits", 8}, {"type", type}, {"symmetric", true}, {"strategy", "channel"}, {"dynamic", false}};
  group["input_activations"] = {
      {"num_bits", 8}, {"type", type}, {"symmetric", !asymmetric_inputs}, {"strategy", "token"}, {"dynamic", true}};
  Json config;
  config["quant_method"] = "compressed-tensors";
  config["format"] = is_int8 ? "int-quantized" : "float-quantized";
  config["quantization_status"] = "compressed";
  config["config_groups"] = {{"group_0", group}};
  config["ignore"] = dense;
  config["kv_cache_scheme"] = nullptr;
  return config;
}

// vLLM reads ignored_layers, transformers modules_to_not_convert.
Json fp8(ConvertScheme scheme, const std::vector<std::string>& dense) {
  Json config;
  config["quant_method"] = "fp8";
  config["fmt"] = "e4m3";
  config["activation_scheme"] = "dynamic";
  config["weight_block_size"] = scheme == ConvertScheme::kFp8Block ? Json({kBlock, kBlock}) : Json(nullptr);
  config["ignored_layers"] = dense;
  config["modules_to_not_convert"] = dense;
  return config;
}

}  // namespace

ConvertedStorage converted_storage(ConvertScheme scheme) {
  switch (scheme) {
    case ConvertScheme::kInt8Channel:
      return {DType::kInt8, GroupShape::per_channel(), "weight_scale"};
    case ConvertScheme::kFp8Tensor:
      return {DType::kE4M3FN, GroupShape::per_tensor(), "weight_scale"};
    case ConvertScheme::kFp8Channel:
      return {DType::kE4M3FN, GroupShape::per_channel(), "weight_scale"};
    case ConvertScheme::kFp8Block:
      return {DType::kE4M3FN, {kBlock, kBlock}, "weight_scale_inv"};
  }
  throw InvalidArgument("unknown conversion scheme");
}

Shape converted_scale_shape(ConvertScheme scheme, const QuantizedWeight& weight) {
  if (scheme == ConvertScheme::kFp8Tensor) return {1};
  return {weight.scale_rows, weight.scale_columns};
}

std::string converted_config(const std::string& config, const ConvertOptions& options,
                             const std::vector<std::string>& dense) {
  const ConvertScheme scheme = options.scheme;
  Json json = parse_json(config, "config.json");
  const bool is_fp8 = scheme == ConvertScheme::kFp8Tensor || scheme == ConvertScheme::kFp8Block;
  json["quantization_config"] =
      is_fp8 ? fp8(scheme, dense) : compressed_tensors(scheme, options.asymmetric_inputs, dense);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace scaledmm
