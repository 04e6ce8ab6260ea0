// The table of linear layers: what the tensors are, held against what the config promises.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/quant_config.hpp"
#include "scaledmm/checkpoint.hpp"

namespace scaledmm {

struct LayerTableOptions {
  DType input_dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;
  bool lenient = false;  // modules that contradict the config are left out with a warning
  // Do two tensors hold the same values? Asked where a module has one scale under two names.
  std::function<bool(const StoredTensor&, const StoredTensor&)> same_values;
};

struct LayerTable {
  std::vector<LayerRecord> layers;  // natural order of names
  std::vector<std::string> warnings;
};

// `tensors` are in ascending order of names. Reads shapes and types only.
// Errors: CheckpointError that names file and tensor (a module contradicts the config; a scale is missing, or of a
// shape or type that it cannot have), Unsupported (packed sub-byte weights).
LayerTable build_layer_table(const std::vector<StoredTensor>& tensors, const QuantConfig& config,
                             const LayerTableOptions& options);

// layers.2 before layers.10: runs of digits compare as numbers.
bool natural_less(std::string_view a, std::string_view b);

// "model.safetensors: tensor "x.weight"": how messages begin.
std::string where(const StoredTensor& tensor);

// A matrix that a linear layer computes with, by name and shape: "x.weight", and x is no embedding.
bool is_linear_weight(const StoredTensor& tensor);

// Does only a quantized linear layer have a tensor of such a name ("x.weight_scale")?
bool is_scale_name(std::string_view name);

// The tensor of that name; nullptr when there is none.
const StoredTensor* find_tensor(const std::vector<StoredTensor>& tensors, std::string_view name);

}  // namespace scaledmm
