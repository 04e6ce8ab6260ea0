#include "cli/schemes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace scaledmm::cli {
namespace {

constexpr GroupShape kBlocks{128, 128};

struct Scheme {
  std::string_view layer;                 // the layer's word
  std::string_view checkpoint;            // convert's word; empty: it writes no such checkpoint
  std::optional<ConvertScheme> converts;  // what that stands for
  bool is_int8;
  bool is_weight_only;
  GroupShape group;       // of the weight's scales
  std::string_view help;  // for convert's word
};

constexpr std::array<Scheme, 7> kSchemes = {{
    {"int8", "int8", ConvertScheme::kInt8Channel, true, false, GroupShape::per_channel(),
     "INT8 weights, a scale for each output channel (compressed-tensors)"},
    {"int8_block", "", std::nullopt, true, false, kBlocks, ""},
    {"fp8", "fp8", ConvertScheme::kFp8Tensor, false, false, GroupShape::per_tensor(),
     "FP8, one scale for each weight (quant_method fp8)"},
    {"fp8_w8a8", "fp8-channel", ConvertScheme::kFp8Channel, false, false, GroupShape::per_channel(),
     "FP8, a scale for each output channel (compressed-tensors)"},
    {"fp8_w8a8_block", "fp8-block", ConvertScheme::kFp8Block, false, false, kBlocks,
     "FP8, a scale for each 128x128 block (quant_method fp8)"},
    {"fp8_w8a16", "", std::nullopt, false, true, GroupShape::per_channel(), ""},
    {"fp8_w8a16_block", "", std::nullopt, false, true, kBlocks, ""},
}};

const Scheme* find_scheme(std::string_view word) {
  const auto found = std::ranges::find_if(
      kSchemes, [&](const Scheme& scheme) { return word == scheme.layer || word == scheme.checkpoint; });
  return found == kSchemes.end() || word.empty() ? nullptr : &*found;
}

std::vector<std::string_view> words_of(std::string_view Scheme::*kind) {
  std::vector<std::string_view> words;
  for (const Scheme& scheme : kSchemes) {
    if (!(scheme.*kind).empty()) words.push_back(scheme.*kind);
  }
  return words;
}

// A check that puts the word of one kind for that of the other.
CLI::Validator scheme_check(std::string_view Scheme::*kind) {
  const auto check = [kind](std::string& word) {
    const Scheme* scheme = find_scheme(word);
    if (scheme == nullptr || (scheme->*kind).empty()) {
      return fmt::format("{} is not one of {}", word, fmt::join(words_of(kind), ", "));
    }
    word = scheme->*kind;
    return std::string();
  };
  return CLI::Validator(check, fmt::format("{{{}}}", fmt::join(words_of(kind), ",")));
}

}  // namespace

CLI::Validator layer_scheme() { return scheme_check(&Scheme::layer); }
CLI::Validator checkpoint_scheme() { return scheme_check(&Scheme::checkpoint); }

std::string checkpoint_schemes_help() {
  std::string help;
  for (const Scheme& scheme : kSchemes) {
    if (scheme.checkpoint.empty()) continue;
    const std::string also = scheme.layer == scheme.checkpoint ? "" : fmt::format(", also {}", scheme.layer);
    help += fmt::format("{}{}{}: {}", help.empty() ? "" : "\n", scheme.checkpoint, also, scheme.help);
  }
  return help;
}

ConvertScheme convert_scheme(std::string_view word) { return find_scheme(word)->converts.value(); }

LayerConfig make_config(std::string_view word, std::int64_t n, std::int64_t k, DType input_dtype, DType out_dtype) {
  const Scheme& scheme = *find_scheme(word);
  if (scheme.is_int8) {
    Int8ScaledMMLinearLayerConfig config;
    config.weight_shape = {n, k};
    config.input_dtype = input_dtype;
    config.out_dtype = out_dtype;
    if (scheme.group.is_block()) config.weight_block = scheme.group;
    return config;
  }
  FP8ScaledMMLinearLayerConfig config;
  config.weight_quant_key = scheme.group.is_block()        ? kFp8Static128BlockSym
                            : scheme.group.is_per_tensor() ? kFp8StaticTensorSym
                                                           : kFp8StaticChannelSym;
  config.activation_quant_key = scheme.group.is_block() ? kFp8Dynamic128Sym : kFp8DynamicTokenSym;
  if (scheme.is_weight_only) config.activation_quant_key.reset();
  config.weight_shape = {n, k};
  config.input_dtype = input_dtype;
  config.out_dtype = out_dtype;
  return config;
}

}  // namespace scaledmm::cli
