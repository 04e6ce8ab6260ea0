#include <string>

#include "numerics/rows.hpp"
#include "numerics/weight_scale.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/quantize.hpp"

namespace scaledmm {
namespace {

void check(const ConstTensorView& w, DType dtype, const GroupShape& group) {
  if (w.shape.rank() != 2) throw InvalidArgument("a weight has shape " + w.shape.text() + ", must be [N, K]");
  if (!is_float16_or_32(w.dtype))
    throw InvalidArgument("a weight is " + std::string(name(w.dtype)) + ", must be f32, bf16 or f16");
  if (w.shape[1] > 1 && w.strides[1] != 1)
    throw InvalidArgument("the last dimension of a weight has stride " + std::to_string(w.strides[1]) +
                          ", must be contiguous");
  if (dtype != DType::kInt8 && !is_fp8(dtype))
    throw InvalidArgument("weights cannot become " + std::string(name(dtype)) + ", only int8 or an 8-bit float");
  const bool is_block = group.row >= 1 && group.col >= 1;
  if (!group.is_per_tensor() && !group.is_per_channel() && !is_block)
    throw InvalidArgument("weight scales " + group.text() + ", must be per tensor, per channel or a block");
}

}  // namespace

QuantizedWeight quantize_weight(ConstTensorView w, DType dtype, GroupShape group) {
  check(w, dtype, group);
  const std::int64_t n = w.shape[0];
  const std::int64_t k = w.shape[1];
  const std::int64_t block_n = group.is_per_channel()  ? 1
                               : group.is_per_tensor() ? std::max<std::int64_t>(n, 1)
                                                       : group.row;
  const std::int64_t block_k = group.col >= 1 && !group.is_per_channel() ? group.col : std::max<std::int64_t>(k, 1);
  const auto row = [&](std::int64_t i) { return FloatRow{w.data, w.dtype, i * w.strides[0], k}; };

  QuantizedWeight result{dtype, n, k, {}, {}, 1, 1};
  result.scale_rows = (n + block_n - 1) / block_n;
  result.scale_columns = (k + block_k - 1) / block_k;
  result.bytes.resize(static_cast<std::size_t>(n * k));
  result.scales.resize(static_cast<std::size_t>(result.scale_rows * result.scale_columns));
  const auto scale_of = [&](std::int64_t i, std::int64_t j) -> float& {
    return result.scales[static_cast<std::size_t>(i / block_n * result.scale_columns + j / block_k)];
  };
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < k; ++j) {
      const float value = row(i)[j];
      if (!is_finite(value))
        throw InvalidArgument("the weight at [" + std::to_string(i) + ", " + std::to_string(j) + "] is " +
                              std::to_string(value) + ", must be finite");
      scale_of(i, j) = absmax_of(scale_of(i, j), value);
    }
  }
  for (float& scale : result.scales) scale = weight_scale(scale, dtype);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < k; ++j) {
      result.bytes[static_cast<std::size_t>(i * k + j)] = quantize_weight_value(row(i)[j], scale_of(i, j), dtype);
    }
  }
  return result;
}

}  // namespace scaledmm
