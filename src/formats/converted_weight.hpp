// One weight matrix on its way into a quantized checkpoint, and how far it came from where it was.
#pragma once

#include <string>

#include "formats/converted_config.hpp"
#include "scaledmm/quantize.hpp"

namespace scaledmm {

// Quantizes as the scheme stores. With `bf16_scales` the scales are rounded first and used to quantize, so that reading
// gives back what was meant; they are in `scales` as f32. Errors: quantize_weight's.
QuantizedWeight convert_weight(ConstTensorView w, const ConvertedStorage& storage, bool bf16_scales);

// The quantized weight beside the dense one it came from.
ConvertedLayer compare_weight(const std::string& layer, ConstTensorView w, const ConvertedStorage& storage,
                              const QuantizedWeight& weight);

}  // namespace scaledmm
