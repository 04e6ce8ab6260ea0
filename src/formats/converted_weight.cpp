#include "formats/converted_weight.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "numerics/formats.hpp"
#include "numerics/weight_scale.hpp"

namespace scaledmm {
namespace {

// Raises block scales to the largest one times a power of two: a code of a block then means what it would mean under
// one scale for the tensor. docs/decisions/0001.
void share_mantissa(std::vector<float>& scales) {
  const float largest = *std::ranges::max_element(scales);
  for (float& scale : scales) {
    float raised = largest;
    while (raised * 0.5f >= scale) raised *= 0.5f;
    scale = raised;
  }
}

void load_row(ConstTensorView w, std::int64_t n, std::vector<float>& row) {
  const std::int64_t begin = n * w.strides[0];
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(row.size()); ++k) {
    row[static_cast<std::size_t>(k)] = load_f32(w.data, w.dtype, begin + k);
  }
}

}  // namespace

ScaleRow scale_row(const QuantizedWeight& weight, GroupShape group, std::int64_t n) {
  const std::int64_t row = group.is_block() ? n / group.row : group.is_per_channel() ? n : 0;
  return {weight.scales.data() + row * weight.scale_columns, group.is_block() ? group.col : weight.k};
}

std::array<float, 256> code_values(DType dtype) {
  if (dtype != DType::kInt8) return fp8_values(dtype);
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    values[static_cast<std::size_t>(code)] = static_cast<float>(static_cast<std::int8_t>(code));
  }
  return values;
}

QuantizedWeight convert_weight(ConstTensorView w, const ConvertedStorage& storage, bool bf16_scales,
                               const ErrorCompensation* inputs) {
  QuantizedWeight weight = quantize_weight(w, storage.dtype, storage.group);
  if (inputs != nullptr && storage.group.is_block()) share_mantissa(weight.scales);
  if (bf16_scales) {
    for (float& scale : weight.scales) scale = bf16_to_f32(f32_to_bf16(scale));
  }
  if (inputs != nullptr) {
    round_with_compensation(w, storage.group, *inputs, weight);
    return weight;
  }
  if (!bf16_scales) return weight;
  std::vector<float> row(static_cast<std::size_t>(weight.k));
  for (std::int64_t n = 0; n < weight.n; ++n) {
    load_row(w, n, row);
    const ScaleRow scales = scale_row(weight, storage.group, n);
    std::uint8_t* const codes = weight.bytes.data() + n * weight.k;
    for (std::int64_t k = 0; k < weight.k; ++k) {
      const float scale = scales.scales[k / scales.columns];
      if (scale != 0.0f) codes[k] = quantize_weight_value(row[static_cast<std::size_t>(k)], scale, weight.dtype);
    }
  }
  return weight;
}

ConvertedLayer compare_weight(const std::string& layer, ConstTensorView w, const ConvertedStorage& storage,
                              const QuantizedWeight& weight) {
  constexpr double kSlack = 1 + 1e-6;  // scale * largest may round below the weight that made the scale
  const std::array<float, 256> values = code_values(weight.dtype);
  const double largest = weight.dtype == DType::kInt8 ? kInt8SymmetricMax : fp8_quantized_max(weight.dtype);
  ConvertedLayer report;
  report.name = layer;
  double dot = 0;
  double dense_square = 0;
  double coded_square = 0;
  std::vector<float> row(static_cast<std::size_t>(weight.k));
  for (std::int64_t n = 0; n < weight.n; ++n) {
    load_row(w, n, row);
    const ScaleRow scales = scale_row(weight, storage.group, n);
    const std::uint8_t* const codes = weight.bytes.data() + n * weight.k;
    for (std::int64_t begin = 0; begin < weight.k; begin += scales.columns) {
      const std::int64_t end = std::min(weight.k, begin + scales.columns);
      const double scale = scales.scales[begin / scales.columns];
      const double limit = scale * largest * kSlack;
      for (std::int64_t k = begin; k < end; ++k) {
        const double dense = row[static_cast<std::size_t>(k)];
        const double coded = scale * values[codes[k]];
        report.max_abs_error = std::max(report.max_abs_error, std::abs(dense - coded));
        report.saturated += std::abs(dense) > limit ? 1 : 0;
        dot += dense * coded;
        dense_square += dense * dense;
        coded_square += coded * coded;
      }
    }
  }
  const double norms = std::sqrt(dense_square) * std::sqrt(coded_square);
  report.cosine = norms > 0 ? dot / norms : 1;
  return report;
}

}  // namespace scaledmm
