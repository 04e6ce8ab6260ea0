// Layers and activations for tests: schemes, full-range random weights, and one call of a kernel.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "numerics/formats.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

// A matrix in memory of its own; rows may be further apart than they are wide.
struct Matrix {
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
  std::vector<std::byte> bytes;

  Matrix() = default;
  Matrix(DType dtype_, std::int64_t rows_, std::int64_t columns_, std::int64_t pad = 0)
      : dtype(dtype_),
        rows(rows_),
        columns(columns_),
        stride(columns_ + pad),
        bytes(static_cast<std::size_t>(rows_ * stride * scaledmm::size_bytes(dtype_)), std::byte{0x5a}) {}

  Shape shape() const { return {rows, columns}; }
  TensorView view() { return {bytes.data(), dtype, shape(), Shape{stride, 1}}; }
  ConstTensorView view() const { return {bytes.data(), dtype, shape(), Shape{stride, 1}}; }
  float at(std::int64_t row, std::int64_t column) const { return load_f32(bytes.data(), dtype, row * stride + column); }
  void set(std::int64_t row, std::int64_t column, float value) {
    store_f32(value, bytes.data(), dtype, row * stride + column);
  }
  std::uint8_t& byte(std::int64_t row, std::int64_t column) {
    return reinterpret_cast<std::uint8_t&>(bytes[static_cast<std::size_t>(row * stride + column)]);
  }
  std::uint8_t byte(std::int64_t row, std::int64_t column) const {
    return static_cast<std::uint8_t>(bytes[static_cast<std::size_t>(row * stride + column)]);
  }
  // The bytes of one row, without the gap after it.
  std::vector<std::byte> row(std::int64_t i) const {
    const auto* begin = bytes.data() + i * stride * scaledmm::size_bytes(dtype);
    return {begin, begin + columns * scaledmm::size_bytes(dtype)};
  }
};

inline Matrix make_matrix(DType dtype, std::int64_t rows, std::int64_t columns,
                          const std::function<float(std::int64_t, std::int64_t)>& value, std::int64_t pad = 0) {
  Matrix result(dtype, rows, columns, pad);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) result.set(i, j, value(i, j));
  }
  return result;
}

inline Matrix make_codes(DType dtype, std::int64_t rows, std::int64_t columns,
                         const std::function<std::uint8_t(std::int64_t, std::int64_t)>& code, std::int64_t pad = 0) {
  Matrix result(dtype, rows, columns, pad);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) result.byte(i, j) = code(i, j);
  }
  return result;
}

// Irregular numbers, the same everywhere: DATA-R of the public cases.
inline std::uint32_t hash(std::uint64_t i) { return static_cast<std::uint32_t>((i + 1) * 2654435761u); }
inline float uniform(std::uint64_t i) {  // [-8, 8)
  const std::uint32_t h = hash(i);
  return (static_cast<float>((h ^ h >> 15) & 0xffffu) - 32768.0f) / 4096.0f;
}

// A way to quantize a layer: its configuration but for shape and dtypes, and what else its tensors need.
struct Scheme {
  std::string name;
  LayerConfig config;
  std::int64_t offset_n = 0;
  std::int64_t offset_k = 0;
  bool ue8m0 = false;
  std::optional<float> upper_bound = std::nullopt;
  DType scale_dtype = DType::kF32;

  bool is_int8() const { return std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config); }
  const FP8ScaledMMLinearLayerConfig& fp8() const { return std::get<FP8ScaledMMLinearLayerConfig>(config); }
};

inline Scheme int8_scheme(std::string name, bool is_static, bool channel, bool symmetric,
                          std::optional<GroupShape> block = std::nullopt) {
  Int8ScaledMMLinearLayerConfig config;
  config.is_static_input_scheme = is_static;
  config.is_channelwise = channel;
  config.input_symmetric = symmetric;
  config.weight_block = block;
  return {.name = std::move(name), .config = config};
}

inline Scheme fp8_scheme(std::string name, GroupShape weight, std::optional<QuantKey> activation,
                         DType dtype = DType::kE4M3FN) {
  FP8ScaledMMLinearLayerConfig config;
  config.weight_quant_key = fp8_key(true, weight, true, DType::kF32, dtype);
  config.activation_quant_key = activation;
  return {.name = std::move(name), .config = config};
}

// Every scheme of the library at least once.
inline std::vector<Scheme> all_schemes() {
  constexpr GroupShape kTensor = GroupShape::per_tensor(), kChannel = GroupShape::per_channel();
  std::vector<Scheme> result = {
      int8_scheme("int8_dynamic_channel", false, true, true),
      int8_scheme("int8_dynamic_channel_azp", false, true, false),
      int8_scheme("int8_dynamic_tensor", false, false, true),
      int8_scheme("int8_dynamic_tensor_azp", false, false, false),
      int8_scheme("int8_static_channel", true, true, true),
      int8_scheme("int8_static_channel_azp", true, true, false),
      int8_scheme("int8_static_tensor", true, false, true),
      int8_scheme("int8_static_tensor_azp", true, false, false),
      int8_scheme("int8_block", false, true, true, GroupShape{16, 48}),
      int8_scheme("int8_block_azp", false, true, false, GroupShape{128, 128}),
      fp8_scheme("fp8_w8a16_channel", kChannel, std::nullopt),
      fp8_scheme("fp8_w8a16_tensor", kTensor, std::nullopt),
      fp8_scheme("fp8_w8a16_block", {128, 128}, std::nullopt),
      fp8_scheme("fp8_w8a16_block_small", {16, 32}, std::nullopt),
      fp8_scheme("fp8_w8a16_block_odd", {24, 37}, std::nullopt),
      fp8_scheme("fp8_w8a16_e4m3fnuz", kChannel, std::nullopt, DType::kE4M3FNUZ),
      fp8_scheme("fp8_w8a16_e5m2", kChannel, std::nullopt, DType::kE5M2),
      fp8_scheme("fp8_w8a8_token_channel", kChannel, kFp8DynamicTokenSym),
      fp8_scheme("fp8_w8a8_token_tensor", kTensor, kFp8DynamicTokenSym),
      fp8_scheme("fp8_w8a8_static_channel", kChannel, kFp8StaticTensorSym),
      fp8_scheme("fp8_w8a8_static_tensor", kTensor, kFp8StaticTensorSym),
      fp8_scheme("fp8_w8a8_dynamic_tensor", kTensor, kFp8DynamicTensorSym),
      fp8_scheme("fp8_w8a8_block", {128, 128}, kFp8Dynamic128Sym),
      fp8_scheme("fp8_w8a8_block_odd", {24, 37}, fp8_key(false, {1, 37})),
      fp8_scheme("fp8_w8a8_e4m3fnuz", kChannel, kFp8DynamicTokenSym, DType::kE4M3FNUZ),
      fp8_scheme("fp8_w8a8_e5m2", kChannel, kFp8DynamicTokenSym, DType::kE5M2),
  };
  const auto variant = [&](std::string_view base, std::string name) -> Scheme& {
    for (const Scheme& scheme : result) {
      if (scheme.name != base) continue;
      Scheme copy = scheme;
      copy.name = std::move(name);
      return result.emplace_back(std::move(copy));
    }
    throw std::logic_error("no scheme " + std::string(base));
  };
  for (const std::string base : {"fp8_w8a16_block", "fp8_w8a16_block_odd", "fp8_w8a8_block", "int8_block"}) {
    Scheme& sliced = variant(base, base + "_sliced");
    sliced.offset_n = 7;
    sliced.offset_k = 19;
  }
  variant("fp8_w8a16_block", "fp8_w8a16_block_e8m0").scale_dtype = DType::kE8M0;
  variant("fp8_w8a8_block", "fp8_w8a8_block_ue8m0").ue8m0 = true;
  variant("fp8_w8a8_token_channel", "fp8_w8a8_token_bounded").upper_bound = 5.0f;
  return result;
}

inline void set_shape(LayerConfig& config, std::int64_t n, std::int64_t k, DType x, DType y) {
  std::visit(
      [&](auto& c) {
        c.weight_shape = {n, k};
        c.input_dtype = x;
        c.out_dtype = y;
      },
      config);
}

// The tensors of a layer, owned, and a layer made of them.
struct LayerData {
  LayerConfig config;
  Matrix weight;
  Matrix scale;  // f32, bf16, f16 or e8m0
  std::optional<float> input_scale;
  std::optional<std::int32_t> input_zero_point;
  std::optional<float> upper_bound;
  bool ue8m0 = false;
  std::vector<std::int64_t> widths;
  std::int64_t offset_n = 0;
  std::int64_t offset_k = 0;

  std::int64_t n() const { return weight.rows; }
  std::int64_t k() const { return weight.columns; }

  LayerWeights weights() const {
    LayerWeights result;
    result.weight = weight.view();
    result.weight_scale = scale.view();
    if (input_scale) result.input_scale = ConstTensorView(&*input_scale, DType::kF32, {1});
    if (input_zero_point) result.input_zero_point = ConstTensorView(&*input_zero_point, DType::kInt32, {1});
    result.input_scale_ub = upper_bound;
    result.ue8m0_input_scales = ue8m0;
    result.logical_widths = widths;
    result.block_offset_n = offset_n;
    result.block_offset_k = offset_k;
    return result;
  }

  Layer process(const LinearKernel& kernel, Context& context) const {
    Layer layer(config, weights(), "test");
    kernel.process_weights_after_loading(layer, context);
    return layer;
  }
};

// How many scales a layer has, rows by columns.
inline Shape scale_grid(const Scheme& scheme, std::int64_t n, std::int64_t k) {
  GroupShape group = scheme.is_int8() ? std::get<Int8ScaledMMLinearLayerConfig>(scheme.config).is_channelwise
                                            ? GroupShape::per_channel()
                                            : GroupShape::per_tensor()
                                      : scheme.fp8().weight_quant_key.scale.group_shape;
  if (scheme.is_int8()) group = std::get<Int8ScaledMMLinearLayerConfig>(scheme.config).weight_block.value_or(group);
  if (group.is_per_tensor()) return {1, 1};
  if (group.is_per_channel()) return {n, 1};
  return {(n + scheme.offset_n + group.row - 1) / group.row, (k + scheme.offset_k + group.col - 1) / group.col};
}

// A layer of a scheme with every finite weight code, and scales between 2^-7 and 2^-5.
inline LayerData make_layer(const Scheme& scheme, std::int64_t n, std::int64_t k, DType x = DType::kBF16,
                            DType y = DType::kF32, std::uint64_t seed = 0) {
  LayerData data;
  data.config = scheme.config;
  set_shape(data.config, n, k, x, y);
  const DType dtype = scheme.is_int8() ? DType::kInt8 : scheme.fp8().weight_quant_key.dtype;
  data.weight = make_codes(dtype, n, k, [&](std::int64_t i, std::int64_t j) {
    const auto code = static_cast<std::uint8_t>(hash(seed * 7919 + static_cast<std::uint64_t>(i * k + j)) >> 11);
    return dtype != DType::kInt8 && !std::isfinite(fp8_to_f32(code, dtype)) ? std::uint8_t{0} : code;
  });
  const Shape grid = scale_grid(scheme, n, k);
  if (scheme.scale_dtype == DType::kE8M0) {
    data.scale = make_codes(DType::kE8M0, grid[0], grid[1], [&](std::int64_t i, std::int64_t j) {
      return static_cast<std::uint8_t>(120 + (i + 2 * j) % 3);
    });
  } else {
    data.scale = make_matrix(DType::kF32, grid[0], grid[1], [&](std::int64_t i, std::int64_t j) {
      return std::exp2(-6 + uniform(seed + 77 + static_cast<std::uint64_t>(i * grid[1] + j)) / 8);
    });
  }
  const bool is_static = scheme.is_int8()
                             ? std::get<Int8ScaledMMLinearLayerConfig>(scheme.config).is_static_input_scheme
                             : scheme.fp8().activation_quant_key && scheme.fp8().activation_quant_key->scale.is_static;
  if (is_static) data.input_scale = scheme.is_int8() ? 0.07f : 0.019f;
  if (is_static && scheme.is_int8() && !std::get<Int8ScaledMMLinearLayerConfig>(scheme.config).input_symmetric)
    data.input_zero_point = -37;
  data.upper_bound = scheme.upper_bound;
  data.ue8m0 = scheme.ue8m0;
  data.offset_n = scheme.offset_n;
  data.offset_k = scheme.offset_k;
  return data;
}

// Activations between -8 and 8, rows of different magnitude, here and there a zero.
inline Matrix make_activation(DType dtype, std::int64_t m, std::int64_t k, std::uint64_t seed = 1,
                              std::int64_t pad = 0) {
  return make_matrix(
      dtype, m, k,
      [&](std::int64_t i, std::int64_t j) {
        const auto index = static_cast<std::uint64_t>(i * k + j);
        if (hash(index ^ 0x55) % 23 == 0) return index % 2 ? 0.0f : -0.0f;
        return std::ldexp(uniform(seed * 104729 + index) + (i % 3 == 1 ? 2.0f : 0.0f), static_cast<int>(i % 5) - 3);
      },
      pad);
}

inline Matrix make_bias(DType dtype, std::int64_t n, std::uint64_t seed = 5) {
  return make_matrix(dtype, 1, n,
                     [&](std::int64_t, std::int64_t j) { return uniform(seed * 31 + static_cast<std::uint64_t>(j)); });
}

inline ConstTensorView bias_view(const Matrix* bias) {
  return bias ? ConstTensorView(bias->bytes.data(), bias->dtype, {bias->columns}) : ConstTensorView{};
}

// y = x W^T (+ bias), in rows that are `pad` elements apart.
inline Matrix apply(const LinearKernel& kernel, const Layer& layer, const Matrix& x, const Matrix* bias,
                    Context& context, std::int64_t pad = 0) {
  Matrix y(out_dtype(layer.config()), x.rows, weight_shape(layer.config()).n, pad);
  kernel.apply_weights(layer, x.view(), bias_view(bias), y.view(), context);
  return y;
}

}  // namespace scaledmm
