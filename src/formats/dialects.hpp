// The dialects of quantization configs: each reads its own object into the one record.
#pragma once

#include <string_view>

#include "formats/config_node.hpp"
#include "formats/quant_config.hpp"

namespace scaledmm {

// Errors of all: CheckpointError with the member's path; Unsupported for schemes that are not W8A8 or W8A16.
void read_compressed_tensors(const ConfigNode& node, QuantConfig& config);
void read_fp8(const ConfigNode& node, std::string_view model_type, QuantConfig& config);
void read_blockwise_int8(const ConfigNode& node, QuantConfig& config);
void read_fbgemm_fp8(const ConfigNode& node, QuantConfig& config);
void read_modelopt(const ConfigNode& node, QuantConfig& config);
void read_mxfp8(const ConfigNode& node, QuantConfig& config);
void read_w8a8(const ConfigNode& node, bool int8, QuantConfig& config);
void read_quark(const ConfigNode& node, QuantConfig& config);

// Fills the list of dense modules from the first of `keys` that is not empty.
void read_ignore_list(const ConfigNode& node, std::initializer_list<std::string_view> keys, MatchRules rules,
                      QuantConfig& config);

// Throws Unsupported: "<path>: <what> is recognised, but not a W8A8 or FP8 W8A16 format".
[[noreturn]] void refuse(const ConfigNode& node, std::string_view what);

}  // namespace scaledmm
