// What a layer should give: INT8 by exact integers and the documented epilogue, FP8 in f64 from the quantized operands
// with a bound on the error. docs/quantization.md 4.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernel_list.hpp"
#include "layer_builder.hpp"
#include "numerics/rows.hpp"

namespace scaledmm {

// One output before its rounding to the output type, and the bound of |y - value|.
struct Exact {
  double value = 0.0;
  double bound = 0.0;
};

// The activation as a kernel has to see it: numbers, and the scale of each.
struct SeenActivation {
  std::vector<double> value;
  std::vector<double> scale;
  int parts = 1;  // how many bf16 terms the documented bound allows for one activation
};

inline std::int64_t block_columns(const LayerData& data) {
  const auto& fp8 = std::get<FP8ScaledMMLinearLayerConfig>(data.config);
  const GroupShape& group = fp8.weight_quant_key.scale.group_shape;
  return group.row >= 1 && group.col >= 1 ? group.col : std::numeric_limits<std::int64_t>::max() / 2;
}

inline SeenActivation see_activation(const LayerData& data, const Matrix& x, bool weight_only) {
  auto fp8 = std::get<FP8ScaledMMLinearLayerConfig>(data.config);
  if (weight_only) fp8.activation_quant_key.reset();
  SeenActivation seen;
  const auto size = static_cast<std::size_t>(x.rows * x.columns);
  seen.value.resize(size);
  seen.scale.assign(size, 1.0);
  if (!fp8.activation_quant_key) seen.parts = x.dtype == DType::kBF16 ? 1 : x.dtype == DType::kF16 ? 2 : 3;
  float absmax = 0.0f;
  const auto row_of = [&](std::int64_t i) { return FloatRow{x.bytes.data(), x.dtype, i * x.stride, x.columns}; };
  for (std::int64_t i = 0; i < x.rows; ++i) absmax = std::max(absmax, row_finite_absmax(row_of(i)));
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const FloatRow row = row_of(i);
    for (std::int64_t begin = 0, end = 0; begin < x.columns; begin = end) {
      const std::int64_t block = block_columns(data);
      end = std::min(x.columns, ((begin + data.offset_k) / block + 1) * block - data.offset_k);
      Fp8Scale scale;
      DType dtype = DType::kE4M3FN;
      if (fp8.activation_quant_key) {
        const ScaleDesc& desc = fp8.activation_quant_key->scale;
        dtype = fp8.weight_quant_key.dtype == DType::kE4M3FNUZ ? DType::kE4M3FNUZ : fp8.activation_quant_key->dtype;
        const float largest = row_absmax(row.part(begin, end - begin));
        if (desc.is_static)
          scale = static_fp8(*data.input_scale);
        else if (desc.group_shape.is_per_tensor())
          scale = dynamic_tensor_fp8(absmax, dtype);
        else if (desc.group_shape.is_per_group())
          scale = dynamic_group_fp8(largest, dtype, data.ue8m0);
        else
          scale = dynamic_token_fp8(largest, dtype, data.upper_bound.value_or(INFINITY));
      }
      for (std::int64_t k = begin; k < end; ++k) {
        const auto at = static_cast<std::size_t>(i * x.columns + k);
        seen.value[at] = row[k];
        if (!fp8.activation_quant_key) continue;
        seen.value[at] = fp8_to_f32(quantize_fp8(row[k], scale, dtype), dtype);
        seen.scale[at] = scale.scale;
      }
    }
  }
  return seen;
}

inline float weight_scale_at(const LayerData& data, std::int64_t n, std::int64_t k) {
  const Matrix& s = data.scale;
  std::int64_t row = s.rows == 1 ? 0 : n, column = 0;
  GroupShape group;
  if (const auto* fp8 = std::get_if<FP8ScaledMMLinearLayerConfig>(&data.config))
    group = fp8->weight_quant_key.scale.group_shape;
  else
    group = std::get<Int8ScaledMMLinearLayerConfig>(data.config).weight_block.value_or(GroupShape{});
  if (group.row >= 1 && group.col >= 1) {
    row = (n + data.offset_n) / group.row;
    column = (k + data.offset_k) / group.col;
  }
  return s.dtype == DType::kE8M0 ? e8m0_to_f32(s.byte(row, column)) : s.at(row, column);
}

// Outputs [M, N] of an FP8 layer: 2^-24 (p K + 4 blocks + 8) sum|a w s|, and 2^-23 of the result for the bias and its
// sum.
// `weight_only`: a kernel that computes w8a16 keeps the activations, whatever the configuration says of them.
inline std::vector<Exact> exact_fp8(const LayerData& data, const Matrix& x, const Matrix* bias, bool weight_only) {
  const SeenActivation seen = see_activation(data, x, weight_only);
  const std::int64_t blocks = (data.k() + data.offset_k - 1) / block_columns(data) + 1;
  const double unit = std::ldexp(static_cast<double>(seen.parts * data.k() + 4 * blocks + 8), -24);
  std::vector<Exact> result;
  std::vector<double> w(static_cast<std::size_t>(data.n() * data.k()));
  for (std::int64_t n = 0; n < data.n(); ++n) {
    for (std::int64_t k = 0; k < data.k(); ++k) {
      w[static_cast<std::size_t>(n * data.k() + k)] =
          static_cast<double>(fp8_to_f32(data.weight.byte(n, k), data.weight.dtype)) *
          static_cast<double>(weight_scale_at(data, n, k));
    }
  }
  for (std::int64_t m = 0; m < x.rows; ++m) {
    for (std::int64_t n = 0; n < data.n(); ++n) {
      double sum = 0.0, magnitude = 0.0;
      for (std::int64_t k = 0; k < data.k(); ++k) {
        const auto at = static_cast<std::size_t>(m * data.k() + k);
        const double term = seen.value[at] * seen.scale[at] * w[static_cast<std::size_t>(n * data.k() + k)];
        sum += term;
        magnitude += std::fabs(term);
      }
      if (bias) sum += static_cast<double>(bias->at(0, n));
      result.push_back({sum, unit * magnitude + std::ldexp(std::fabs(sum), -23)});
    }
  }
  return result;
}

// Half a unit in the last place of the output type, as a share of the value, plus its smallest step.
inline double output_rounding(double value, DType dtype) {
  const int digits = dtype == DType::kBF16 ? 8 : dtype == DType::kF16 ? 11 : 24;
  const int least = dtype == DType::kBF16 ? -133 : dtype == DType::kF16 ? -24 : -149;
  return std::ldexp(std::fabs(value), -digits) + std::ldexp(1.0, least);
}

// Empty, or the first output that lies outside its bound.
inline std::string first_outside(const Matrix& y, const std::vector<Exact>& exact) {
  for (std::int64_t m = 0; m < y.rows; ++m) {
    for (std::int64_t n = 0; n < y.columns; ++n) {
      const Exact& e = exact[static_cast<std::size_t>(m * y.columns + n)];
      const double got = y.at(m, n);
      const double allowed = e.bound + output_rounding(std::fabs(e.value) + e.bound, y.dtype);
      if (!(std::fabs(got - e.value) <= allowed))
        return "y[" + std::to_string(m) + ", " + std::to_string(n) + "] = " + std::to_string(got) + ", exact " +
               std::to_string(e.value) + " +- " + std::to_string(allowed);
    }
  }
  return {};
}

// Empty, or the first output whose bits differ. Gaps between rows are not compared.
inline std::string first_difference(const Matrix& y, const Matrix& expected) {
  for (std::int64_t m = 0; m < y.rows; ++m) {
    if (y.row(m) == expected.row(m)) continue;
    for (std::int64_t n = 0; n < y.columns; ++n) {
      const std::int64_t size = size_bytes(y.dtype);
      if (std::memcmp(y.row(m).data() + n * size, expected.row(m).data() + n * size, static_cast<std::size_t>(size)) !=
          0)
        return "y[" + std::to_string(m) + ", " + std::to_string(n) + "] = " + std::to_string(y.at(m, n)) +
               ", expected " + std::to_string(expected.at(m, n));
    }
  }
  return {};
}

// Empty, or how a kernel's outputs break the contract: INT8 gives the reference's bits, FP8 keeps the bound.
inline std::string contract_violation(const LinearKernel& kernel, const LayerData& data, const Matrix& x,
                                      const Matrix* bias, Context& context, std::int64_t y_pad = 0) {
  const Matrix y = apply(kernel, data.process(kernel, context), x, bias, context, y_pad);
  if (std::holds_alternative<FP8ScaledMMLinearLayerConfig>(data.config))
    return first_outside(y, exact_fp8(data, x, bias, kernel.info().computes == "w8a16"));
  const LinearKernel& reference = native::reference();
  return first_difference(y, apply(reference, data.process(reference, context), x, bias, context));
}

}  // namespace scaledmm
