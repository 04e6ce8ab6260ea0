// quant_method "compressed-tensors": groups of targets, each with arguments for weights and input activations.
#include <algorithm>
#include <array>

#include "formats/dialects.hpp"
#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

enum class Strategy : std::uint8_t { kTensor, kChannel, kGroup, kBlock, kToken, kTensorGroup, kAttentionHead };

constexpr std::array<std::pair<std::string_view, Strategy>, 7> kStrategies = {{
    {"tensor", Strategy::kTensor},
    {"channel", Strategy::kChannel},
    {"group", Strategy::kGroup},
    {"block", Strategy::kBlock},
    {"token", Strategy::kToken},
    {"tensor_group", Strategy::kTensorGroup},
    {"attn_head", Strategy::kAttentionHead},
}};

constexpr std::array<std::string_view, 12> kKnownArguments = {
    "num_bits", "type",     "symmetric",   "group_size", "strategy", "block_structure",
    "dynamic",  "actorder", "scale_dtype", "zp_dtype",   "observer", "observer_kwargs",
};
constexpr std::array<std::string_view, 5> kKnownGroupMembers = {"targets", "weights", "input_activations",
                                                                "output_activations", "format"};
constexpr std::array<std::string_view, 11> kKnownMembers = {
    "quant_method",    "version",          "format",          "quantization_status",
    "config_groups",   "ignore",           "kv_cache_scheme", "global_compression_ratio",
    "sparsity_config", "transform_config", "run_compressed",
};

struct Arguments {
  bool is_float = false;
  std::int64_t bits = 8;
  bool symmetric = true;
  bool dynamic = false;
  Strategy strategy = Strategy::kTensor;
  std::int64_t group_size = 0;  // 0: none
  GroupShape block;
  bool byte_scales = false;  // scale_dtype uint8: powers of two
};

Strategy read_strategy(const ConfigNode& node, std::int64_t group_size) {
  const std::optional<std::string> text = node.text("strategy");
  if (!text) {
    if (group_size > 0) return Strategy::kGroup;
    return group_size == -1 ? Strategy::kChannel : Strategy::kTensor;
  }
  for (const auto& [name, strategy] : kStrategies) {
    if (lower_case(*text) == name) return strategy;
  }
  node.fail("unknown strategy " + scaledmm::quote(*text));
}

bool read_dynamic(const ConfigNode& node, Strategy strategy) {
  const Json* dynamic = node.find("dynamic");
  if (dynamic != nullptr && dynamic->is_string()) {
    if (dynamic->get<std::string>() != "local") node.fail("dynamic is not true, false or \"local\"");
    if (strategy != Strategy::kTensorGroup) node.fail("dynamic \"local\" needs the strategy tensor_group");
    return true;
  }
  return node.boolean("dynamic").value_or(false);
}

Arguments read_arguments(const ConfigNode& node, std::vector<std::string>& warnings) {
  node.warn_unknown(kKnownArguments, warnings);
  Arguments arguments;
  const std::string type = lower_case(node.text("type").value_or("int"));
  if (type != "int" && type != "float") node.fail("unknown type " + scaledmm::quote(type));
  arguments.is_float = type == "float";
  arguments.bits = node.integer("num_bits").value_or(8);
  arguments.symmetric = node.boolean("symmetric").value_or(true);
  const std::int64_t group_size = node.integer("group_size").value_or(0);
  if (group_size < -1) node.fail("group_size is " + std::to_string(group_size));
  arguments.strategy = read_strategy(node, group_size);
  arguments.dynamic = read_dynamic(node, arguments.strategy);
  const bool grouped = arguments.strategy == Strategy::kGroup || arguments.strategy == Strategy::kTensorGroup;
  if (grouped && group_size <= 0) node.fail("strategy group needs a positive group_size");
  if (!grouped && group_size > 0) {
    node.fail("group_size " + std::to_string(group_size) + " needs the strategy group or tensor_group");
  }
  arguments.group_size = grouped ? group_size : 0;
  const auto block = node.extents("block_structure");
  if ((arguments.strategy == Strategy::kBlock) != block.has_value()) {
    node.fail("strategy block and block_structure need each other");
  }
  if (block) arguments.block = {block->first, block->second};
  if (arguments.strategy == Strategy::kToken && !arguments.dynamic) node.fail("strategy token needs dynamic: true");
  if (arguments.dynamic && (arguments.strategy == Strategy::kChannel || arguments.strategy == Strategy::kBlock)) {
    node.fail("strategy channel or block cannot be dynamic");
  }
  arguments.byte_scales = node.text("scale_dtype").value_or("").ends_with("uint8");
  return arguments;
}

std::optional<Arguments> read_activation(const ConfigNode& group, std::string_view key,
                                         std::vector<std::string>& warnings) {
  const std::optional<ConfigNode> node = group.object(key);
  if (!node) return std::nullopt;
  const Arguments arguments = read_arguments(*node, warnings);
  if (arguments.strategy == Strategy::kChannel || arguments.strategy == Strategy::kBlock) {
    node->fail("activations cannot have the strategy channel or block");
  }
  return arguments;
}

// The presets that a group's name may stand for. Scales of 128 x 128 blocks; groups of 128 features.
std::optional<Json> preset(std::string_view name) {
  const auto arguments = [](std::string_view type, std::string_view strategy, bool dynamic) {
    return Json{{"num_bits", 8}, {"type", type}, {"symmetric", true}, {"strategy", strategy}, {"dynamic", dynamic}};
  };
  const auto group = [](Json weights, Json input) {
    return Json{{"weights", std::move(weights)}, {"input_activations", std::move(input)}};
  };
  const std::string upper = upper_case(name);
  if (upper == "W8A8" || upper == "INT8")
    return group(arguments("int", "channel", false), arguments("int", "token", true));
  if (upper == "FP8") return group(arguments("float", "tensor", false), arguments("float", "tensor", false));
  if (upper == "FP8_DYNAMIC") {
    return group(arguments("float", "channel", false), arguments("float", "token", true));
  }
  Json weights = arguments("float", "block", false);
  Json input = arguments("float", "group", true);
  if (upper == "FP8_BLOCK") {
    weights["block_structure"] = {128, 128};
    input["group_size"] = 128;
    return group(weights, input);
  }
  if (upper == "MXFP8") {
    weights["strategy"] = "group";
    weights["group_size"] = input["group_size"] = 32;
    weights["scale_dtype"] = input["scale_dtype"] = "torch.uint8";
    return group(weights, input);
  }
  return std::nullopt;
}

// The format names whose activations are quantized; what everything else is called in the refusal.
void check_format(const ConfigNode& group, const std::string& format) {
  if (format == "int-quantized" || format == "float-quantized" || format == "naive-quantized" ||
      format == "mxfp8-quantized") {
    return;
  }
  if (format == "mixed-precision") group.fail("a group's format cannot be mixed-precision");
  if (format.empty() || format == "fakequant") {
    throw Unsupported(group.path() + ": format " + (format.empty() ? "is missing" : "fakequant") +
                      ": the checkpoint was saved without compression");
  }
  refuse(group, "format " + scaledmm::quote(format));
}

// Group (1, g) along K for MXFP8; weights in blocks; per channel; per tensor.
void set_weight(const ConfigNode& group, const Arguments& weights, ModuleScheme& scheme) {
  switch (weights.strategy) {
    case Strategy::kTensor:
      scheme.weight = ModuleScheme::Weight::kTensor;
      return;
    case Strategy::kChannel:
      scheme.weight = ModuleScheme::Weight::kChannel;
      return;
    case Strategy::kBlock:
      scheme.weight = ModuleScheme::Weight::kBlock;
      scheme.block = weights.block;
      return;
    default:
      throw Unsupported(group.path_of("weights") + ": 8-bit weights are per tensor, channel or block here");
  }
}

void set_fp8_activation(const ConfigNode& group, const std::optional<Arguments>& input, ModuleScheme& scheme,
                        std::vector<std::string>& warnings) {
  if (!input) {
    scheme.activation = ModuleScheme::Activation::kNone;
    return;
  }
  const std::string path = group.path_of("input_activations");
  const bool block = scheme.weight == ModuleScheme::Weight::kBlock;
  if (input->dynamic) {
    if (block && input->group_size != 0 && input->group_size != scheme.block.col) {
      throw CheckpointError(path + ": group_size " + std::to_string(input->group_size) + " differs from the K block " +
                            std::to_string(scheme.block.col) + " of the weights");
    }
    scheme.activation = ModuleScheme::Activation::kDynamic;
    if (!block && input->strategy == Strategy::kTensor) {
      warnings.push_back(path + ": dynamic per tensor is computed per token");
    }
    return;
  }
  if (block) throw CheckpointError(path + ": static activations do not go with block weights");
  if (input->symmetric && input->strategy == Strategy::kTensor) {
    scheme.activation = ModuleScheme::Activation::kStatic;
    return;
  }
  warnings.push_back(path + ": not usable (static FP8 activations are symmetric and per tensor): weight-only");
  scheme.activation = ModuleScheme::Activation::kNone;
}

void set_int8_activation(const ConfigNode& group, const std::optional<Arguments>& input, ModuleScheme& scheme) {
  if (!input) throw Unsupported(group.path() + ": int8 weights without input_activations are not W8A8");
  scheme.input_symmetric = input->symmetric;
  if (!input->dynamic && input->strategy == Strategy::kTensor) {
    scheme.activation = ModuleScheme::Activation::kStatic;
  } else if (input->dynamic && input->strategy == Strategy::kToken) {
    scheme.activation = ModuleScheme::Activation::kDynamic;
  } else {
    throw Unsupported(group.path_of("input_activations") +
                      ": int8 activations are static per tensor or dynamic per token here");
  }
}

ModuleScheme read_scheme(const ConfigNode& group, const std::string& global_format,
                         std::vector<std::string>& warnings) {
  const std::optional<ConfigNode> weights_node = group.object("weights");
  if (!weights_node) throw Unsupported(group.path() + ": no weights: activation-only quantization is not W8A8");
  const Arguments weights = read_arguments(*weights_node, warnings);
  const std::optional<Arguments> input = read_activation(group, "input_activations", warnings);
  const std::optional<Arguments> output = read_activation(group, "output_activations", warnings);
  const std::string format = lower_case(group.text("format").value_or(global_format));

  if (weights.bits != 8) {
    refuse(group, (weights.is_float ? "float" : "int") + std::to_string(weights.bits) + " weights (format " +
                      scaledmm::quote(format) + ")");
  }
  ModuleScheme scheme;
  scheme.format = "compressed-tensors " + format;
  scheme.int8 = !weights.is_float;
  const auto static_int8_tensor = [](const std::optional<Arguments>& a) {
    return a && !a->dynamic && !a->is_float && a->bits == 8 && a->strategy == Strategy::kTensor;
  };
  if (static_int8_tensor(input) && static_int8_tensor(output) && scheme.int8 &&
      (weights.strategy == Strategy::kChannel || weights.strategy == Strategy::kGroup)) {
    refuse(group, "fake quantization of inputs and outputs");
  }
  check_format(group, format);
  if (input && input->bits != 8) refuse(group, std::to_string(input->bits) + "-bit input activations");
  if (input && input->is_float != weights.is_float) {
    group.fail(std::string(weights.is_float ? "float weights with int" : "int weights with float") + " activations");
  }
  if (weights.dynamic) weights_node->fail("weights cannot be dynamic");
  if (!weights.symmetric) throw Unsupported(weights_node->path() + ": asymmetric weights are not supported");
  if (output) warnings.push_back(group.path_of("output_activations") + " is not used");

  if (weights.is_float && weights.strategy == Strategy::kGroup && weights.group_size == 32 && weights.byte_scales) {
    scheme.weight = ModuleScheme::Weight::kBlock;
    scheme.block = {1, weights.group_size};
    scheme.ue8m0 = true;
    scheme.activation = input ? ModuleScheme::Activation::kDynamic : ModuleScheme::Activation::kNone;
    return scheme;
  }
  set_weight(group, weights, scheme);
  if (!scheme.int8) {
    set_fp8_activation(group, input, scheme, warnings);
  } else if (scheme.weight == ModuleScheme::Weight::kBlock) {
    throw Unsupported(weights_node->path() + ": int8 weights are per tensor or per channel in this dialect");
  } else {
    set_int8_activation(group, input, scheme);
  }
  return scheme;
}

// One target of a group. A target that occurs again keeps its first place and takes the last scheme.
void add_target(const ConfigNode& group, const std::string& target, std::size_t scheme, QuantConfig& config) {
  if (target == "Linear" || target == "LinearBase") {
    config.linear_scheme = scheme;
    return;
  }
  const auto entries = config.targets.entries();
  const auto same = std::ranges::find(entries, target);
  if (same != entries.end()) {
    config.target_schemes[static_cast<std::size_t>(same - entries.begin())] = scheme;
    return;
  }
  config.targets.add(target, group.path_of("targets"));
  config.target_schemes.push_back(scheme);
}

void refuse_filled(const ConfigNode& node, std::string_view key) {
  const Json* member = node.find(key);
  if (member != nullptr && !member->empty()) {
    throw Unsupported(node.path_of(key) + " is not empty: such checkpoints need more than their weights and scales");
  }
}

}  // namespace

void read_compressed_tensors(const ConfigNode& node, QuantConfig& config) {
  node.warn_unknown(kKnownMembers, config.warnings);
  refuse_filled(node, "sparsity_config");
  refuse_filled(node, "transform_config");
  read_ignore_list(node, {"ignore"}, {}, config);
  const std::optional<ConfigNode> groups = node.object("config_groups");
  if (!groups) node.fail("config_groups is missing");
  const std::string global_format = node.text("format").value_or("");
  for (const auto& [name, value] : groups->json().items()) {
    const std::string path = groups->path_of(name);
    Json expanded;
    if (value.is_array()) {
      std::optional<Json> body = preset(name);
      if (!body) throw CheckpointError(path + ": not a preset's name: a list of targets is not enough");
      expanded = std::move(*body);
      expanded["targets"] = value;
    }
    const ConfigNode group(value.is_array() ? expanded : value, path);
    group.warn_unknown(kKnownGroupMembers, config.warnings);
    const std::vector<std::string> targets = group.texts("targets");
    if (targets.empty()) group.fail("targets is missing or empty");
    if (targets.size() == 1 && targets.front().ends_with("Attention")) continue;  // scales of an attention cache
    if (lower_case(group.text("format").value_or(global_format)) == "dense") {
      for (const std::string& target : targets) {
        if (target != "Linear")
          config.ignore.add(target, group.path_of("targets"));  // what nothing names is dense anyway
      }
      continue;
    }
    config.schemes.push_back(read_scheme(group, global_format, config.warnings));
    for (const std::string& target : targets) add_target(group, target, config.schemes.size() - 1, config);
  }
}

}  // namespace scaledmm
