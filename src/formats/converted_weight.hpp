// One weight matrix on its way into a quantized checkpoint, and how far it came from where it was.
#pragma once

#include <array>
#include <string>

#include "formats/converted_config.hpp"
#include "formats/error_compensation.hpp"
#include "scaledmm/quantize.hpp"

namespace scaledmm {

// Quantizes as the scheme stores. With `bf16_scales` the scales are rounded first and used to quantize, so that reading
// gives back what was meant; they are in `scales` as f32. Codes are the nearest ones, or with `inputs` those of
// round_with_compensation. Errors: quantize_weight's.
QuantizedWeight convert_weight(ConstTensorView w, const ConvertedStorage& storage, bool bf16_scales,
                               const ErrorCompensation* inputs);

// The quantized weight beside the dense one it came from.
ConvertedLayer compare_weight(const std::string& layer, ConstTensorView w, const ConvertedStorage& storage,
                              const QuantizedWeight& weight);

// Where the scales of row n begin, and how many columns one of them covers.
struct ScaleRow {
  const float* scales;
  std::int64_t columns;
};
ScaleRow scale_row(const QuantizedWeight& weight, GroupShape group, std::int64_t n);

// The value of every weight code.
std::array<float, 256> code_values(DType dtype);

}  // namespace scaledmm
