#include "formats/quant_config.hpp"

#include <algorithm>
#include <array>

#include "formats/config_node.hpp"
#include "formats/dialects.hpp"
#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

// Methods that exist elsewhere. The first column is a whole name or, with a star, its beginning.
constexpr std::array<std::string_view, 25> kOtherMethods = {
    "gptq*",  "awq*",       "auto*",        "bitsandbytes*", "torchao",  "mxfp4*",   "nvfp4*",  "gguf", "inc",
    "aqlm",   "hqq",        "quanto",       "quip*",         "eetq",     "fp_quant", "higgs",   "spqr", "vptq",
    "bitnet", "modelopt_*", "experts_int8", "moe_wna16",     "ptpc_fp8", "tpu_int8", "marlin*",
};

bool is_other_method(std::string_view method) {
  return std::ranges::any_of(kOtherMethods, [&](std::string_view other) {
    return other.ends_with('*') ? method.starts_with(other.substr(0, other.size() - 1)) : method == other;
  });
}

// What quant_method says, or what the producer's mark says in its place.
std::string normalised_method(const ConfigNode& node, bool old_compressed_tensors) {
  if (const std::optional<std::string> method = node.text("quant_method")) {
    const std::string lower = lower_case(*method);
    return lower == "compressed_tensors" ? "compressed-tensors" : lower;
  }
  const std::optional<ConfigNode> producer = node.object("producer");
  if ((producer && lower_case(producer->text("name").value_or("")) == "modelopt") ||
      node.has("modelopt_quant_config")) {
    return "modelopt";
  }
  if (old_compressed_tensors && node.has("config_groups")) return "compressed-tensors";
  node.fail("quant_method is missing");
}

void read_method(const ConfigNode& node, std::string_view model_type, QuantConfig& config) {
  const std::string& method = config.method;
  if (method == "compressed-tensors") return read_compressed_tensors(node, config);
  if (method == "fp8" || method == "deepseek_v4_fp8") return read_fp8(node, model_type, config);
  if (method == "blockwise_int8") return read_blockwise_int8(node, config);
  if (method == "fbgemm_fp8") return read_fbgemm_fp8(node, config);
  if (method == "modelopt") return read_modelopt(node, config);
  if (method == "mxfp8" || method == "modelopt_mxfp8") return read_mxfp8(node, config);
  if (method == "w8a8_int8" || method == "w8a8_fp8") return read_w8a8(node, method == "w8a8_int8", config);
  if (method == "quark") return read_quark(node, config);
  if (is_other_method(method)) refuse(node, "quant_method " + scaledmm::quote(method));
  throw Unsupported(node.path() + ": unknown quant_method " + scaledmm::quote(method) +
                    " (known: compressed-tensors, fp8, fbgemm_fp8, modelopt, mxfp8, quark, w8a8_int8, w8a8_fp8, "
                    "blockwise_int8)");
}

}  // namespace

void refuse(const ConfigNode& node, std::string_view what) {
  throw Unsupported(node.path() + ": " + std::string(what) +
                    " is recognised, but it is not a W8A8 or FP8 W8A16 format");
}

void read_ignore_list(const ConfigNode& node, std::initializer_list<std::string_view> keys, MatchRules rules,
                      QuantConfig& config) {
  config.ignore = TargetMatcher(rules);
  config.ignore_path = node.path();
  for (const std::string_view key : keys) {
    const std::vector<std::string> entries = node.texts(key);
    if (entries.empty()) continue;
    config.ignore_path = node.path_of(key);
    for (const std::string& entry : entries) config.ignore.add(entry, config.ignore_path);
    return;
  }
}

const ModuleScheme* QuantConfig::scheme_of(std::string_view module) const {
  if (ignore.find(module)) return nullptr;
  const std::vector<std::string> parts = fused_parts(module);
  const ModuleScheme* first = nullptr;
  std::size_t left_out = 0;
  std::size_t named = 0;
  std::string verdicts;
  for (const std::string& part : parts) {
    const std::optional<std::size_t> target = targets.find(part);
    const ModuleScheme* scheme = target          ? &schemes[target_schemes[*target]]
                                 : linear_scheme ? &schemes[*linear_scheme]
                                                 : nullptr;
    if (ignore.find(part)) scheme = nullptr;
    if (scheme == nullptr) ++left_out;
    if (target) ++named;
    if (first == nullptr) first = scheme;
    verdicts += (verdicts.empty() ? "" : ", ") + escape(part) + ": " + (scheme == nullptr ? "left out" : "quantized");
  }
  const std::optional<std::size_t> own = targets.find(module);
  const bool any_ignored =
      std::ranges::any_of(parts, [&](const std::string& part) { return ignore.find(part).has_value(); });
  // A target may name the fused module alone; then only the list of dense modules can tell its parts apart.
  const bool parts_decide = !own || any_ignored;
  if (parts_decide && left_out != 0 && left_out != parts.size()) {
    throw CheckpointError(ignore_path + ": the parts of " + quote(module) +
                          " are not all left out or all quantized: " + verdicts);
  }
  if (any_ignored) return nullptr;
  if (own) return &schemes[target_schemes[*own]];
  if (!parts.empty() && named == parts.size()) return first;
  return linear_scheme ? &schemes[*linear_scheme] : nullptr;
}

QuantConfig read_quant_config(const Json& config_json, const Json* hf_quant_config) {
  const ConfigNode root(config_json, "config.json");
  const std::string model_type = root.text("model_type").value_or("");
  QuantConfig config;
  std::optional<ConfigNode> node = root.object("quantization_config");
  bool old_compressed_tensors = false;
  if (!node) {
    const std::optional<ConfigNode> text_config = root.object("text_config");
    if (text_config) node = text_config->object("quantization_config");
  }
  if (!node) {
    node = root.object("compression_config");
    old_compressed_tensors = node.has_value();
  }
  if (!node && hf_quant_config != nullptr) {
    const ConfigNode file(*hf_quant_config, "hf_quant_config.json");
    node = file;
    config.method = normalised_method(file, false);
  }
  if (!node) return config;
  config.source = node->path();
  config.ignore_path = node->path();
  if (config.method.empty()) config.method = normalised_method(*node, old_compressed_tensors);
  read_method(*node, model_type, config);
  return config;
}

}  // namespace scaledmm
