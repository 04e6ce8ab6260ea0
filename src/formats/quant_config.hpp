// The quantization config of a checkpoint, in whichever dialect, as one record: module name -> scheme, or dense.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.hpp"
#include "formats/target_matcher.hpp"
#include "scaledmm/scheme.hpp"

namespace scaledmm {

// What a config promises of a module's tensors.
struct ModuleScheme {
  enum class Weight : std::uint8_t {
    kTensorOrChannel,
    kTensor,
    kChannel,
    kBlock
  };                                                                  // the first: the scale's shape decides
  enum class Activation : std::uint8_t { kNone, kStatic, kDynamic };  // kNone: weight-only

  std::string format;  // the dialect: "compressed-tensors int-quantized"
  bool int8 = false;   // else FP8
  Weight weight = Weight::kTensorOrChannel;
  GroupShape block;  // kBlock: (bn, bk); (1, g) for groups along K
  Activation activation = Activation::kDynamic;
  bool input_symmetric = true;
  std::optional<float> input_scale_ub;
  std::string e4m3_member;  // FP8: the member that says e4m3; empty: the stored type decides
  bool ue8m0 = false;       // scales are powers of two, those of the activations too
};

struct QuantConfig {
  std::string method;  // quant_method after normalisation; empty: not quantized
  std::string source;  // where it was found: "config.json: quantization_config"
  std::vector<std::string> warnings;

  // Modules of these entries stay dense.
  TargetMatcher ignore;
  std::string ignore_path;  // "config.json: quantization_config.ignore"
  // targets' entry i names modules of the scheme target_schemes[i].
  TargetMatcher targets;
  std::vector<std::size_t> target_schemes;
  // The class name "Linear" as a target: every linear layer that no other target names.
  std::optional<std::size_t> linear_scheme;
  std::vector<ModuleScheme> schemes;
  // Dense weights without scales are no contradiction, whatever the lists say (the dialects with loose lists).
  bool stored_dtype_decides = false;

  // The module's scheme; nullptr: dense. A fused name (qkv_proj) that no entry names takes what all of its parts have.
  // Errors: CheckpointError when the parts differ, with what each of them is.
  const ModuleScheme* scheme_of(std::string_view module) const;
};

// Finds the config: config.json's quantization_config, its text_config's, compression_config, then hf_quant_config.json
// (null: there is none), and reads it.
// Errors: CheckpointError (a rule broken, with the member's path), Unsupported (a method or scheme that is none of
// ours).
QuantConfig read_quant_config(const Json& config, const Json* hf_quant_config);

}  // namespace scaledmm
