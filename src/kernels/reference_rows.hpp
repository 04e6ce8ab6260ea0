// The reference kernel's activations: rows brought to codes and scales. docs/quantization.md 2, 3.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "numerics/rows.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

// With fnuz weights the activation is quantized to fnuz.
inline DType activation_dtype(const FP8ScaledMMLinearLayerConfig& config) {
  const bool is_fnuz = config.weight_quant_key.dtype == DType::kE4M3FNUZ;
  return is_fnuz ? DType::kE4M3FNUZ : config.activation_quant_key->dtype;
}

// The end of the scale block that holds column k.
inline std::int64_t block_end(const CheckedWeights& w, std::int64_t k) {
  if (w.per_channel) return w.k;
  return std::min(w.k, ((k + w.offset_k) / w.block_k + 1) * w.block_k - w.offset_k);
}

inline std::int64_t block_of(const CheckedWeights& w, std::int64_t k) {
  return w.per_channel ? 0 : (k + w.offset_k) / w.block_k;
}

inline FloatRow row_of(const ApplyArguments& a, const CheckedWeights& w, std::int64_t m) {
  return {a.x, a.x_dtype, m * a.x_stride, w.k};
}

// One output row's share of the activations. `scale` has one value for each K block.
template <class Element>
struct Rows {
  Element* q;                // [M, K]
  float* scale;              // [M, blocks]
  std::int32_t* zero_point;  // [M], int8 only
  std::int64_t blocks;
};

template <class Element>
Rows<Element> scratch_rows(const ApplyArguments& a, const CheckedWeights& w, std::int64_t blocks, Context& context) {
  const std::int64_t row_bytes = (blocks + 1) * 4 + w.k * static_cast<std::int64_t>(sizeof(Element));
  auto* scale = reinterpret_cast<float*>(context.scratch(a.m * row_bytes));
  auto* zero_point = reinterpret_cast<std::int32_t*>(scale + a.m * blocks);
  return {reinterpret_cast<Element*>(zero_point + a.m), scale, zero_point, blocks};
}

// The scale of pre-quantized row m in block b.
inline float given_scale(const ApplyArguments& a, std::int64_t m, std::int64_t b) {
  return a.x_scale[m * a.x_scale_columns + std::min(b, a.x_scale_columns - 1)];
}

inline void quantize_int8_row(const Int8ScaledMMLinearLayerConfig& config, const CheckedWeights& w,
                              const ApplyArguments& a, const Rows<std::int8_t>& rows, std::int64_t m) {
  std::int8_t* q = rows.q + m * w.k;
  if (a.x_dtype == DType::kInt8) {
    std::copy_n(static_cast<const std::int8_t*>(a.x) + m * a.x_stride, w.k, q);
    rows.scale[m] = given_scale(a, m, 0);
    rows.zero_point[m] = a.x_zero_point ? a.x_zero_point[m] : 0;
    return;
  }
  const FloatRow row = row_of(a, w, m);
  const Int8Scale scale = !config.is_static_input_scheme ? row_int8_scale(row, config.input_symmetric)
                          : config.input_symmetric       ? static_symmetric_int8(*w.input_scale)
                                                         : static_asymmetric_int8(*w.input_scale, w.input_zero_point);
  quantize_row(row, scale, q);
  rows.scale[m] = scale.scale;
  rows.zero_point[m] = scale.zero_point;
}

// Writes the values of row m's codes, and a scale for each K block.
inline void quantize_fp8_row(const FP8ScaledMMLinearLayerConfig& config, const CheckedWeights& w,
                             const ApplyArguments& a, const Fp8Scale& tensor_scale, const Rows<float>& rows,
                             std::int64_t m) {
  for (std::int64_t begin = 0, end = 0; begin < w.k; begin = end) {
    end = block_end(w, begin);
    const std::int64_t block = block_of(w, begin);
    float* scale = rows.scale + m * rows.blocks + block;
    float* q = rows.q + m * w.k;
    if (is_fp8(a.x_dtype)) {
      const auto* codes = static_cast<const std::uint8_t*>(a.x) + m * a.x_stride;
      for (std::int64_t k = begin; k < end; ++k) q[k] = fp8_to_f32(codes[k], a.x_dtype);
      *scale = given_scale(a, m, block);
      continue;
    }
    const FloatRow row = row_of(a, w, m).part(begin, end - begin);
    if (!config.activation_quant_key) {
      for (std::int64_t k = begin; k < end; ++k) q[k] = row[k - begin];
      *scale = 1.0f;
      continue;
    }
    const GroupShape& group = config.activation_quant_key->scale.group_shape;
    const DType dtype = activation_dtype(config);
    Fp8Scale chosen = tensor_scale;
    if (group.is_per_token()) chosen = dynamic_token_fp8(row_absmax(row), dtype, w.input_scale_ub.value_or(INFINITY));
    if (group.is_per_group()) chosen = dynamic_group_fp8(row_absmax(row), dtype, w.ue8m0_input_scales);
    for (std::int64_t k = begin; k < end; ++k) q[k] = fp8_to_f32(quantize_fp8(row[k - begin], chosen, dtype), dtype);
    *scale = chosen.scale;
  }
}

// The one scale of a per-tensor scheme, from the checkpoint or from all of x.
inline Fp8Scale whole_tensor_scale(const FP8ScaledMMLinearLayerConfig& config, const CheckedWeights& w,
                                   const ApplyArguments& a) {
  if (!config.activation_quant_key || !config.activation_quant_key->scale.group_shape.is_per_tensor()) return {};
  if (is_fp8(a.x_dtype)) return {};
  if (config.activation_quant_key->scale.is_static) return static_fp8(*w.input_scale);
  float absmax = 0.0f;
  for (std::int64_t m = 0; m < a.m; ++m) absmax = std::max(absmax, row_finite_absmax(row_of(a, w, m)));
  return dynamic_tensor_fp8(absmax, activation_dtype(config));
}

}  // namespace scaledmm
