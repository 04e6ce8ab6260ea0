// Brings a layer's tensors into the one form that kernels see, and refuses what cannot be meant.
#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/element_offset.hpp"
#include "numerics/formats.hpp"
#include "numerics/int8_merge.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {
namespace {

// Builds "layer q_proj: ..." messages and throws them.
class Complaint {
 public:
  explicit Complaint(std::string_view layer) : prefix_(layer.empty() ? "" : "layer " + std::string(layer) + ": ") {}
  [[noreturn]] void operator()(const std::string& text) const { throw InvalidArgument(prefix_ + text); }

 private:
  std::string prefix_;
};

template <std::integral T>
std::string text(T value) {
  return std::to_string(value);
}
std::string text(float value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", static_cast<double>(value));
  return buffer;
}

// Element at a byte address that may be misaligned.
float read_scalar(const std::byte* address, DType dtype) {
  alignas(4) std::byte copy[4] = {};
  std::memcpy(copy, address, static_cast<std::size_t>(size_bytes(dtype)));
  if (dtype == DType::kE8M0 || dtype == DType::kUInt8) return e8m0_to_f32(static_cast<std::uint8_t>(copy[0]));
  return load_f32(copy, dtype, 0);
}

// Calls visit(flat index, address) for every element in row-major order.
template <class Visit>
void for_each_element(const ConstTensorView& view, const Visit& visit) {
  const std::int64_t elements = view.shape.elements();
  const auto* base = static_cast<const std::byte*>(view.data);
  for (std::int64_t flat = 0; flat < elements; ++flat) {
    const std::int64_t offset = element_offset(view.shape, view.strides, view.shape.rank(), flat);
    visit(flat, base + offset * size_bytes(view.dtype));
  }
}

std::vector<float> read_scales(const ConstTensorView& view, bool exponent_bytes, std::string_view what,
                               const Complaint& fail) {
  const bool is_float = is_float16_or_32(view.dtype) || view.dtype == DType::kE8M0;
  if (!is_float && !(exponent_bytes && view.dtype == DType::kUInt8)) {
    fail(std::string(what) + " is " + std::string(name(view.dtype)) + ", not f32, bf16, f16 or e8m0");
  }
  std::vector<float> values(static_cast<std::size_t>(view.shape.elements()));
  for_each_element(view, [&](std::int64_t i, const std::byte* address) {
    values[static_cast<std::size_t>(i)] = read_scalar(address, view.dtype);
  });
  return values;
}

void check_values(const std::vector<float>& values, std::string_view what, bool zero_allowed, const Complaint& fail) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    const char* fault = nullptr;
    if (!std::isfinite(value)) fault = " is not finite";
    if (value < 0) fault = value == std::numeric_limits<float>::lowest() ? " was never set" : " is negative";
    if (value == 0 && !zero_allowed) fault = " is zero";
    if (fault != nullptr) fail(std::string(what) + "[" + text(i) + "] = " + text(value) + fault);
  }
}

struct Extents {
  std::int64_t n = 1;
  std::int64_t k = 1;
};

// The block of a block or group configuration; nothing where one scale covers whole rows.
std::optional<Extents> block_of(const LayerConfig& config) {
  if (!is_block_scaled(config)) return std::nullopt;
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
    return Extents{int8->weight_block->row, int8->weight_block->col};
  }
  const GroupShape& group = std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.scale.group_shape;
  return Extents{group.row, group.col};
}

bool wants_channel_scales(const LayerConfig& config) {
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) return int8->is_channelwise;
  return !std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.scale.group_shape.is_per_tensor();
}

void check_weight(const LayerConfig& config, const ConstTensorView& weight, bool needs_codes, CheckedWeights& out,
                  const Complaint& fail) {
  const WeightShape shape = weight_shape(config);
  const DType expected = std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config)
                             ? DType::kInt8
                             : std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.dtype;
  if (shape.n < 1 || shape.k < 1) fail("weight shape [" + text(shape.n) + ", " + text(shape.k) + "] has no elements");
  if (!weight.defined() || (weight.data == nullptr && needs_codes)) fail("the weight is missing");
  if (weight.dtype != expected) {
    fail("weight is " + std::string(name(weight.dtype)) + ", the configuration says " + std::string(name(expected)));
  }
  if (weight.shape != Shape{shape.n, shape.k}) {
    fail("weight has shape " + weight.shape.text() + ", expected " + Shape{shape.n, shape.k}.text());
  }
  if (shape.k > 1 && weight.strides[1] != 1) {
    fail("weight's last dimension must be contiguous, its stride is " + text(weight.strides[1]));
  }
  if (shape.n > 1 && weight.strides[0] < shape.k) {
    fail("weight's row pitch " + text(weight.strides[0]) + " is less than K = " + text(shape.k));
  }
  out.n = shape.n;
  out.k = shape.k;
  out.dtype = weight.dtype;
  out.bytes = static_cast<const std::uint8_t*>(weight.data);
  out.row_pitch = shape.n > 1 ? weight.strides[0] : shape.k;
}

std::vector<std::int64_t> checked_widths(const LayerWeights& weights, std::int64_t n, const Complaint& fail) {
  if (weights.logical_widths.empty()) return {n};
  std::int64_t sum = 0;
  for (const std::int64_t width : weights.logical_widths) {
    if (width < 1) fail("logical width " + text(width) + " is less than 1");
    sum += width;
  }
  if (sum != n) fail("logical widths sum to " + text(sum) + ", N is " + text(n));
  return weights.logical_widths;
}

void check_block_scales(const LayerWeights& weights, Extents block, CheckedWeights& out, const Complaint& fail) {
  if (block.n < 1 || block.k < 1) fail("scale block (" + text(block.n) + ", " + text(block.k) + ") is not positive");
  if (weights.block_offset_n < 0 || weights.block_offset_n >= block.n || weights.block_offset_k < 0 ||
      weights.block_offset_k >= block.k) {
    fail("block offset (" + text(weights.block_offset_n) + ", " + text(weights.block_offset_k) +
         ") is outside the block (" + text(block.n) + ", " + text(block.k) + ")");
  }
  const std::int64_t rows = (weights.block_offset_n + out.n + block.n - 1) / block.n;
  const std::int64_t columns = (weights.block_offset_k + out.k + block.k - 1) / block.k;
  if (weights.weight_scale.shape != Shape{rows, columns}) {
    fail("weight_scale has shape " + weights.weight_scale.shape.text() + ", expected " + Shape{rows, columns}.text());
  }
  out.scales = read_scales(weights.weight_scale, true, "weight_scale", fail);
  out.block_n = block.n;
  out.block_k = block.k;
  out.scale_columns = columns;
  out.offset_n = weights.block_offset_n;
  out.offset_k = weights.block_offset_k;
  out.per_channel = false;
}

void check_row_scales(const LayerConfig& config, const LayerWeights& weights, CheckedWeights& out,
                      const Complaint& fail) {
  const std::vector<std::int64_t> widths = checked_widths(weights, out.n, fail);
  const Shape& shape = weights.weight_scale.shape;
  const std::int64_t elements = shape.elements();
  const auto parts = static_cast<std::int64_t>(widths.size());
  const bool is_vector = shape.rank() <= 1 || (shape.rank() == 2 && (shape[0] == 1 || shape[1] == 1));
  std::vector<float> values;
  if (wants_channel_scales(config)) {
    if (!is_vector || elements != out.n) {
      fail("weight_scale has shape " + shape.text() + " with " + text(elements) + " elements, expected " + text(out.n) +
           " (one for each output feature)");
    }
    out.scales = read_scales(weights.weight_scale, false, "weight_scale", fail);
  } else {
    if (!is_vector || (elements != 1 && elements != parts)) {
      fail("weight_scale has shape " + shape.text() + " with " + text(elements) + " elements, expected 1" +
           (parts > 1 ? " or " + text(parts) + " (one for each fused part)" : ""));
    }
    values = read_scales(weights.weight_scale, false, "weight_scale", fail);
    check_values(values, "weight_scale", true, fail);
    for (std::size_t part = 0; part < widths.size(); ++part) {
      const float scale = values.size() == 1 ? values[0] : values[part];
      out.scales.insert(out.scales.end(), static_cast<std::size_t>(widths[part]), scale);
    }
  }
  out.block_k = out.k;
}

// A scale of 0 is meant only where every weight that it covers is 0.
void check_zero_scales(const CheckedWeights& w, const Complaint& fail) {
  if (std::ranges::find(w.scales, 0.0f) == w.scales.end()) return;
  for (std::int64_t n = 0; n < w.n; ++n) {
    for (std::int64_t k = 0; k < w.k; ++k) {
      const std::uint8_t code = w.bytes[n * w.row_pitch + k];
      const bool zero = w.dtype == DType::kInt8 ? code == 0 : fp8_to_f32(code, w.dtype) == 0.0f;
      if (!zero && w.scale(n, k) == 0.0f) {
        fail("weight_scale is 0 where weight[" + text(n) + ", " + text(k) + "] is not");
      }
    }
  }
}

bool static_input(const LayerConfig& config) {
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) return int8->is_static_input_scheme;
  const auto& key = std::get<FP8ScaledMMLinearLayerConfig>(config).activation_quant_key;
  return key && key->scale.is_static;
}

bool asymmetric_input(const LayerConfig& config) {
  const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config);
  return int8 != nullptr && !int8->input_symmetric;
}

std::vector<std::int32_t> read_zero_points(const ConstTensorView& view, const Complaint& fail) {
  if (view.dtype != DType::kInt8 && view.dtype != DType::kInt32) {
    fail("input_zero_point is " + std::string(name(view.dtype)) + ", not int8 or int32");
  }
  std::vector<std::int32_t> values(static_cast<std::size_t>(view.shape.elements()));
  for_each_element(view, [&](std::int64_t i, const std::byte* address) {
    std::int32_t value = 0;
    if (view.dtype == DType::kInt8) {
      value = static_cast<std::int8_t>(*address);
    } else {
      std::memcpy(&value, address, sizeof value);
    }
    if (value < kInt8Min || value > kInt8Max) {
      fail("input_zero_point[" + text(i) + "] = " + text(value) + " is outside " + text(kInt8Min) + ".." +
           text(kInt8Max));
    }
    values[static_cast<std::size_t>(i)] = value;
  });
  return values;
}

void check_input(const LayerConfig& config, const LayerWeights& weights, CheckedWeights& out, const Complaint& fail) {
  const auto parts = static_cast<std::int64_t>(std::max<std::size_t>(weights.logical_widths.size(), 1));
  const auto check_count = [&](const ConstTensorView& view, const char* what) {
    const std::int64_t elements = view.shape.elements();
    if (elements != 1 && elements != parts) {
      fail(std::string(what) + " has shape " + view.shape.text() + " with " + text(elements) + " elements, expected 1" +
           (parts > 1 ? " or " + text(parts) + " (one for each fused part)" : ""));
    }
  };
  if (!static_input(config)) {
    if (weights.input_scale.defined()) fail("input_scale is given, but the activations are not static");
    if (weights.input_zero_point.defined()) fail("input_zero_point is given, but the activations are not static");
    return;
  }
  if (!weights.input_scale.defined()) fail("input_scale is missing, and the activations are static");
  check_count(weights.input_scale, "input_scale");
  const std::vector<float> scales = read_scales(weights.input_scale, false, "input_scale", fail);
  check_values(scales, "input_scale", false, fail);
  if (!asymmetric_input(config)) {
    if (weights.input_zero_point.defined()) fail("input_zero_point is given, but the activations are symmetric");
    out.input_scale = *std::ranges::max_element(scales);
    return;
  }
  if (!weights.input_zero_point.defined()) fail("input_zero_point is missing, and the activations are asymmetric");
  check_count(weights.input_zero_point, "input_zero_point");
  const std::vector<std::int32_t> zero_points = read_zero_points(weights.input_zero_point, fail);
  if (zero_points.size() != scales.size()) {
    fail("input_scale has " + text(scales.size()) + " elements, input_zero_point " + text(zero_points.size()));
  }
  const Int8StaticInput merged = merge_static_int8(scales, zero_points);
  out.input_scale = merged.scale;
  out.input_zero_point = merged.zero_point;
}

CheckedWeights check(const LayerConfig& config, const LayerWeights& weights, std::string_view layer_name,
                     bool needs_codes) {
  const Complaint fail(layer_name);
  CheckedWeights out;
  check_weight(config, weights.weight, needs_codes, out, fail);
  if (!weights.weight_scale.defined() || weights.weight_scale.data == nullptr) fail("weight_scale is missing");
  if (const std::optional<Extents> block = block_of(config)) {
    check_block_scales(weights, *block, out, fail);
  } else {
    check_row_scales(config, weights, out, fail);
  }
  check_values(out.scales, "weight_scale", true, fail);
  if (needs_codes) check_zero_scales(out, fail);
  check_input(config, weights, out, fail);
  if (weights.input_scale_ub && !(*weights.input_scale_ub > 0 && std::isfinite(*weights.input_scale_ub))) {
    fail("input_scale_ub = " + text(*weights.input_scale_ub) + " is not finite and positive");
  }
  out.input_scale_ub = weights.input_scale_ub;
  out.ue8m0_input_scales = weights.ue8m0_input_scales;
  return out;
}

}  // namespace

CheckedWeights check_weights(const LayerConfig& config, const LayerWeights& weights, std::string_view layer_name) {
  return check(config, weights, layer_name, true);
}

CheckedWeights check_weights_without_codes(const LayerConfig& config, const LayerWeights& weights,
                                           std::string_view layer_name) {
  CheckedWeights out = check(config, weights, layer_name, false);
  out.bytes = nullptr;
  return out;
}

}  // namespace scaledmm
