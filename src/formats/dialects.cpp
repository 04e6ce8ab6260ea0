// The small dialects: one scheme for every linear layer, and a list of layers that stay dense.
#include "formats/dialects.hpp"

#include <limits>

#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

using Weight = ModuleScheme::Weight;
using Activation = ModuleScheme::Activation;

constexpr MatchRules kLooseNames = {.segments = true, .wildcards = true};

void set_linear_scheme(ModuleScheme scheme, QuantConfig& config) {
  config.schemes.push_back(std::move(scheme));
  config.linear_scheme = config.schemes.size() - 1;
}

// "static" or "dynamic", required.
Activation read_activation_scheme(const ConfigNode& node) {
  const std::optional<std::string> text = node.text("activation_scheme");
  if (!text) node.fail("activation_scheme is missing");
  if (*text == "static") return Activation::kStatic;
  if (*text == "dynamic") return Activation::kDynamic;
  node.fail("unknown activation_scheme " + quote(*text));
}

// weight_block_size, where it is there.
void read_weight_block(const ConfigNode& node, ModuleScheme& scheme) {
  const auto block = node.extents("weight_block_size");
  if (!block) return;
  scheme.weight = Weight::kBlock;
  scheme.block = {block->first, block->second};
  if (scheme.activation == Activation::kStatic) node.fail("weight_block_size needs activation_scheme \"dynamic\"");
}

ModuleScheme mxfp8_scheme(std::string format) {
  ModuleScheme scheme;
  scheme.format = std::move(format);
  scheme.weight = Weight::kBlock;
  scheme.block = {1, 32};
  scheme.ue8m0 = true;
  return scheme;
}

// quark: {"dtype", "qscheme", "is_dynamic", "symmetric"} of a tensor.
struct QuarkTensor {
  bool int8 = false;
  bool per_channel = false;
  bool dynamic = false;
  bool symmetric = true;
};

QuarkTensor read_quark_tensor(const ConfigNode& node) {
  QuarkTensor tensor;
  const std::string dtype = node.text("dtype").value_or("");
  if (dtype != "int8" && dtype != "fp8_e4m3") refuse(node, "dtype " + quote(dtype));
  tensor.int8 = dtype == "int8";
  const std::string scheme = node.text("qscheme").value_or("");
  if (scheme != "per_tensor" && scheme != "per_channel") refuse(node, "qscheme " + quote(scheme));
  tensor.per_channel = scheme == "per_channel";
  tensor.dynamic = node.boolean("is_dynamic").value_or(false);
  tensor.symmetric = node.boolean("symmetric").value_or(true);
  return tensor;
}

ModuleScheme read_quark_scheme(const ConfigNode& node) {
  const std::optional<ConfigNode> weight_node = node.object("weight");
  if (!weight_node) node.fail("weight is missing");
  const QuarkTensor weight = read_quark_tensor(*weight_node);
  if (weight.dynamic) weight_node->fail("weights cannot be dynamic");
  if (!weight.symmetric) throw Unsupported(weight_node->path() + ": asymmetric weights are not supported");
  ModuleScheme scheme;
  scheme.format = weight.int8 ? "quark int8" : "quark fp8";
  scheme.int8 = weight.int8;
  if (!weight.int8) scheme.e4m3_member = weight_node->path_of("dtype");
  scheme.weight = weight.per_channel ? Weight::kChannel : Weight::kTensor;
  const std::optional<ConfigNode> input_node = node.object("input_tensors");
  if (!input_node) {
    if (scheme.int8) throw Unsupported(node.path() + ": int8 weights without input_tensors are not W8A8");
    scheme.activation = Activation::kNone;
    return scheme;
  }
  const QuarkTensor input = read_quark_tensor(*input_node);
  if (input.int8 != weight.int8) input_node->fail("weights and input_tensors are of different types");
  // A dynamic per_channel activation means per token.
  if (!input.dynamic && input.per_channel) {
    throw Unsupported(input_node->path() + ": static activations are per tensor here");
  }
  if (scheme.int8 && input.dynamic && !input.per_channel) {
    throw Unsupported(input_node->path() + ": dynamic int8 activations are per token here");
  }
  if (!scheme.int8 && !input.symmetric) {
    throw Unsupported(input_node->path() + ": asymmetric FP8 activations are not supported");
  }
  scheme.activation = input.dynamic ? Activation::kDynamic : Activation::kStatic;
  scheme.input_symmetric = input.symmetric;
  return scheme;
}

}  // namespace

void read_fp8(const ConfigNode& node, std::string_view model_type, QuantConfig& config) {
  ModuleScheme scheme;
  if (const std::optional<std::string> format = node.text("fmt")) {
    if (*format != "e4m3") throw Unsupported(node.path_of("fmt") + ": " + quote(*format) + " is not e4m3");
    scheme.e4m3_member = node.path_of("fmt");
  }
  scheme.format = config.method;
  scheme.activation = read_activation_scheme(node);
  read_weight_block(node, scheme);
  if (const std::optional<std::string> format = node.text("scale_fmt")) {
    if (*format != "ue8m0") node.fail("unknown scale_fmt " + quote(*format));
    scheme.ue8m0 = true;
  }
  if (node.text("store_dtype") == "mxfp4" && model_type != "deepseek_v4") refuse(node, "store_dtype mxfp4");
  read_ignore_list(node, {"ignored_layers", "modules_to_not_convert"}, kLooseNames, config);
  config.stored_dtype_decides = true;
  set_linear_scheme(std::move(scheme), config);
}

void read_blockwise_int8(const ConfigNode& node, QuantConfig& config) {
  ModuleScheme scheme;
  scheme.format = config.method;
  scheme.int8 = true;
  scheme.activation = read_activation_scheme(node);
  read_weight_block(node, scheme);
  if (scheme.weight != Weight::kBlock) node.fail("weight_block_size is missing");
  read_ignore_list(node, {"ignored_layers", "modules_to_not_convert"}, kLooseNames, config);
  config.stored_dtype_decides = true;
  set_linear_scheme(std::move(scheme), config);
}

void read_fbgemm_fp8(const ConfigNode& node, QuantConfig& config) {
  const std::optional<double> bound = node.number("activation_scale_ub");
  if (!bound) node.fail("activation_scale_ub is missing");
  if (!(*bound > 0 && *bound <= std::numeric_limits<float>::max()) || static_cast<float>(*bound) == 0) {
    node.fail("activation_scale_ub is not positive and finite in f32");
  }
  if (!node.has("modules_to_not_convert")) node.fail("modules_to_not_convert is missing");
  ModuleScheme scheme;
  scheme.format = config.method;
  scheme.weight = Weight::kChannel;
  scheme.input_scale_ub = static_cast<float>(*bound);
  read_ignore_list(node, {"modules_to_not_convert"}, kLooseNames, config);
  config.stored_dtype_decides = true;
  set_linear_scheme(std::move(scheme), config);
}

void read_modelopt(const ConfigNode& outer, QuantConfig& config) {
  const std::optional<ConfigNode> inner = outer.object("quantization");  // the shape of hf_quant_config.json
  const ConfigNode& node = inner ? *inner : outer;
  const std::optional<std::string> algorithm = node.text("quant_algo");
  if (!algorithm) node.fail("quant_algo is missing");
  const std::string name = upper_case(*algorithm);
  if (name == "MXFP8") return read_mxfp8(node, config);
  ModuleScheme scheme;
  scheme.format = "modelopt " + name;
  if (name == "FP8") {
    scheme.weight = Weight::kTensor;
    scheme.activation = Activation::kStatic;
  } else if (name == "FP8_PER_CHANNEL_PER_TOKEN") {
    scheme.weight = Weight::kChannel;
  } else if (name == "FP8_PB_WO") {
    scheme.weight = Weight::kBlock;
    scheme.block = {128, 128};
  } else {
    refuse(node, "quant_algo " + quote(*algorithm));
  }
  read_ignore_list(node, {"ignore", "exclude_modules"}, kLooseNames, config);
  config.stored_dtype_decides = true;
  set_linear_scheme(std::move(scheme), config);
}

void read_mxfp8(const ConfigNode& node, QuantConfig& config) {
  read_ignore_list(node, {"ignored_layers", "ignore", "exclude_modules", "modules_to_not_convert"}, kLooseNames,
                   config);
  config.stored_dtype_decides = true;
  set_linear_scheme(mxfp8_scheme(config.method == "modelopt" ? "modelopt MXFP8" : config.method), config);
}

void read_w8a8(const ConfigNode& node, bool int8, QuantConfig& config) {
  ModuleScheme scheme;
  scheme.format = config.method;
  scheme.int8 = int8;
  scheme.weight = Weight::kChannel;
  read_ignore_list(node, {"ignore", "ignored_layers", "modules_to_not_convert"}, kLooseNames, config);
  config.stored_dtype_decides = true;
  set_linear_scheme(std::move(scheme), config);
}

void read_quark(const ConfigNode& node, QuantConfig& config) {
  if (!node.object("export")) node.fail("export is missing");
  const std::optional<ConfigNode> global = node.object("global_quant_config");
  if (!global) node.fail("global_quant_config is missing");
  if (const Json* types = node.find("layer_type_quant_config"); types != nullptr && !types->empty()) {
    throw Unsupported(node.path_of("layer_type_quant_config") +
                      " is not empty: schemes by layer type are not supported");
  }
  read_ignore_list(node, {"exclude"}, kLooseNames, config);
  config.stored_dtype_decides = true;
  config.targets = TargetMatcher({.segments = false, .wildcards = true});
  if (const std::optional<ConfigNode> layers = node.object("layer_quant_config")) {
    for (const auto& [pattern, value] : layers->json().items()) {
      const ConfigNode layer(value, layers->path_of(pattern));
      config.targets.add(pattern, layers->path());
      config.schemes.push_back(read_quark_scheme(layer));
      config.target_schemes.push_back(config.schemes.size() - 1);
    }
  }
  set_linear_scheme(read_quark_scheme(*global), config);
}

}  // namespace scaledmm
