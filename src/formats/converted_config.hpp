// What a converted checkpoint says about itself: the schemes' storage, and config.json with its quantization_config.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scaledmm/checkpoint.hpp"
#include "scaledmm/quantize.hpp"

namespace scaledmm {

// How a scheme stores a layer.
struct ConvertedStorage {
  DType dtype;
  GroupShape group;
  std::string_view scale_name;  // beside "weight": vLLM looks for "weight_scale_inv" where weights come in blocks
};

ConvertedStorage converted_storage(ConvertScheme scheme);

// The scale tensor's shape in the file. Rank matters to vLLM: [1] per tensor, [N, 1] per channel, [rows, columns]
// block.
Shape converted_scale_shape(ConvertScheme scheme, const QuantizedWeight& weight);

// `config` (config.json's text, of a model that is not quantized) with a quantization_config. `dense` names every
// linear layer that stays as it is.
std::string converted_config(const std::string& config, const ConvertOptions& options,
                             const std::vector<std::string>& dense);

}  // namespace scaledmm
