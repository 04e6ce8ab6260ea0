#include "formats/value_checks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "formats/layer_table.hpp"
#include "formats/quote.hpp"
#include "numerics/formats.hpp"
#include "numerics/int8.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

std::string text(float value) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%g", static_cast<double>(value));
  return buffer.data();
}

std::string index_text(const Shape& shape, std::int64_t flat) {
  std::string inner;
  for (std::size_t i = shape.rank(); i-- > 0;) {
    inner = std::to_string(flat % shape[i]) + (inner.empty() ? "" : ", ") + inner;
    flat /= shape[i];
  }
  return "[" + inner + "]";
}

// Collects the faults of one kind in a tensor: the first position, and how many there are.
struct Faults {
  std::int64_t count = 0;
  std::int64_t first = 0;
  void add(std::int64_t index) {
    if (count++ == 0) first = index;
  }
  std::string more() const { return count == 1 ? "" : " (and " + std::to_string(count - 1) + " more)"; }
};

const StoredTensor& stored(const Checkpoint& checkpoint, const std::string& name) {
  const StoredTensor* tensor = find_tensor(checkpoint.tensors(), name);
  if (tensor == nullptr) throw CheckpointError(checkpoint.directory().string() + ": no tensor " + quote(name));
  return *tensor;
}

// Refuses values that no scale can have; 0 is left to the caller.
void check_finite_positive(const StoredTensor& tensor, const ConstTensorView& view, const Report& report) {
  Faults faults;
  const std::int64_t elements = view.shape.elements();
  for (std::int64_t i = 0; i < elements; ++i) {
    const float value = scale_at(view, i);
    if (!std::isfinite(value) || value < 0) faults.add(i);
  }
  if (faults.count == 0) return;
  const float value = scale_at(view, faults.first);
  const char* reason = !std::isfinite(value)                           ? " is not finite"
                       : value == std::numeric_limits<float>::lowest() ? " was never set"
                                                                       : " is negative";
  report(where(tensor) + ": element " + index_text(tensor.shape, faults.first) + " = " + text(value) + reason +
         faults.more());
}

std::int32_t zero_point_at(const ConstTensorView& view, std::int64_t i) {
  return view.dtype == DType::kInt32 ? static_cast<const std::int32_t*>(view.data)[i]
                                     : static_cast<const std::int8_t*>(view.data)[i];
}

// Zero points in [low, high].
void check_zero_points(const Checkpoint& checkpoint, const std::string& name, std::int32_t low, std::int32_t high,
                       const char* why, const Report& report) {
  const StoredTensor& tensor = stored(checkpoint, name);
  if (tensor.dtype != DType::kInt8 && tensor.dtype != DType::kInt32) {
    return report(where(tensor) + " is " + tensor.stored_dtype + ", expected I8 or I32");
  }
  const ConstTensorView view = checkpoint.tensor(name);
  const std::int64_t elements = view.shape.elements();
  Faults faults;
  for (std::int64_t i = 0; i < elements; ++i) {
    const std::int32_t value = zero_point_at(view, i);
    if (value < low || value > high) faults.add(i);
  }
  if (faults.count == 0) return;
  report(where(tensor) + ": element " + index_text(tensor.shape, faults.first) + " = " +
         std::to_string(zero_point_at(view, faults.first)) + ": " + why + faults.more());
}

bool is_zero_code(std::uint8_t code, DType dtype) {
  return dtype == DType::kInt8 ? code == 0 : fp8_to_f32(code, dtype) == 0.0f;
}

void check_zero_scales(const Checkpoint& checkpoint, const LayerRecord& record, const ScaleGrid& grid,
                       const Report& report) {
  const std::int64_t elements = grid.view.shape.elements();
  bool any = false;
  for (std::int64_t i = 0; i < elements && !any; ++i) any = scale_at(grid.view, i) == 0.0f;
  if (!any) return;
  const ConstTensorView weight = checkpoint.tensor(record.weight);
  const auto* codes = static_cast<const std::uint8_t*>(weight.data);
  for (std::int64_t n = 0; n < record.n; ++n) {
    for (std::int64_t k = 0; k < record.k; ++k) {
      const std::int64_t scale = n / grid.block_n * grid.columns + k / grid.block_k;
      if (is_zero_code(codes[n * record.k + k], weight.dtype) || scale_at(grid.view, scale) != 0.0f) continue;
      const StoredTensor& tensor = stored(checkpoint, record.weight_scale);
      return report(where(tensor) + ": element " + index_text(tensor.shape, scale) + " is 0, but weight " +
                    index_text(weight.shape, n * record.k + k) + " under it is not");
    }
  }
}

bool holds(DType dtype, float value) {
  std::uint32_t bits = 0;
  store_f32(value, &bits, dtype, 0);
  return std::isfinite(load_f32(&bits, dtype, 0));
}

// Code times scale must be a number of the model's dtype. Weights are read only where the largest code would not be.
void check_overflow(const Checkpoint& checkpoint, const LayerRecord& record, const Report& report) {
  const ScaleGrid grid = scale_grid(checkpoint, record);
  const ConstTensorView weight = checkpoint.tensor(record.weight);
  const auto* codes = static_cast<const std::uint8_t*>(weight.data);
  std::array<float, 256> values{};
  float largest = 0;
  for (std::size_t code = 0; code < values.size(); ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const float value = weight.dtype == DType::kInt8 ? static_cast<std::int8_t>(byte) : fp8_to_f32(byte, weight.dtype);
    values[code] = std::isfinite(value) ? value : 0;  // complained of elsewhere
    largest = std::max(largest, std::abs(values[code]));
  }
  const DType dtype = checkpoint.model_dtype();
  const std::int64_t elements = grid.view.shape.elements();
  std::vector<bool> is_large(static_cast<std::size_t>(elements));
  bool any = false;
  float largest_scale = 0;
  for (std::int64_t i = 0; i < elements; ++i) {
    const float scale = scale_at(grid.view, i);
    if (!std::isfinite(scale)) continue;
    is_large[static_cast<std::size_t>(i)] = !holds(dtype, largest * scale);
    any = any || is_large[static_cast<std::size_t>(i)];
    largest_scale = std::max(largest_scale, scale);
  }
  // Sums are multiplied by both scales at once.
  if (const float x = record.input_scale.empty() ? 0 : scale_at(checkpoint.tensor(record.input_scale), 0);
      std::isfinite(x) && !std::isfinite(x * largest_scale)) {
    report(where(stored(checkpoint, record.input_scale)) + " = " + text(x) + " times the weight scale " +
           text(largest_scale) + " is too large for f32");
  }
  if (!any) return;
  Faults faults;
  for (std::int64_t n = 0; n < record.n; ++n) {
    for (std::int64_t k = 0; k < record.k; ++k) {
      const std::int64_t scale = n / grid.block_n * grid.columns + k / grid.block_k;
      if (!is_large[static_cast<std::size_t>(scale)]) continue;
      const std::int64_t element = n * record.k + k;
      if (!holds(dtype, values[codes[element]] * scale_at(grid.view, scale))) faults.add(element);
    }
  }
  if (faults.count == 0) return;
  const std::int64_t scale =
      faults.first / record.k / grid.block_n * grid.columns + faults.first % record.k / grid.block_k;
  const StoredTensor& tensor = stored(checkpoint, record.weight_scale);
  report(where(tensor) + ": element " + index_text(tensor.shape, scale) + " = " + text(scale_at(grid.view, scale)) +
         " makes weight " + index_text(weight.shape, faults.first) + " too large for " + std::string(name(dtype)) +
         ": " + text(values[codes[faults.first]]) + " times it" + faults.more());
}

bool is_power_of_two(float value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5f;
}

}  // namespace

float scale_at(const ConstTensorView& scales, std::int64_t index) {
  if (scales.dtype == DType::kUInt8 || scales.dtype == DType::kE8M0) {
    return e8m0_to_f32(static_cast<const std::uint8_t*>(scales.data)[index]);
  }
  return load_f32(scales.data, scales.dtype, index);
}

ScaleGrid scale_grid(const Checkpoint& checkpoint, const LayerRecord& record) {
  ScaleGrid grid;
  grid.view = checkpoint.tensor(record.weight_scale);
  const std::int64_t elements = grid.view.shape.elements();
  GroupShape group = GroupShape::per_channel();
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&record.config)) {
    if (int8->weight_block)
      group = *int8->weight_block;
    else if (!int8->is_channelwise)
      group = GroupShape::per_tensor();
  } else {
    group = std::get<FP8ScaledMMLinearLayerConfig>(record.config).weight_quant_key.scale.group_shape;
  }
  const auto reshape = [&](const Shape& shape) { grid.view = ConstTensorView(grid.view.data, grid.view.dtype, shape); };
  if (group.is_per_tensor()) {
    reshape({1});
    grid.block_n = record.n;
    grid.block_k = record.k;
  } else if (group.is_per_channel()) {
    reshape({record.n});
    grid.block_k = record.k;
  } else {
    grid.block_n = group.row;
    grid.block_k = group.col;
    grid.columns = record.k / group.col + (record.k % group.col != 0 ? 1 : 0);
    reshape({elements / grid.columns, grid.columns});
  }
  return grid;
}

void check_scale_values(const Checkpoint& checkpoint, const LayerRecord& record, const Report& report) {
  const ScaleGrid grid = scale_grid(checkpoint, record);
  check_finite_positive(stored(checkpoint, record.weight_scale), grid.view, report);
  check_zero_scales(checkpoint, record, grid, report);
  if (!record.input_scale.empty()) {
    const StoredTensor& tensor = stored(checkpoint, record.input_scale);
    const ConstTensorView view = checkpoint.tensor(record.input_scale);
    check_finite_positive(tensor, view, report);
    if (scale_at(view, 0) == 0.0f) report(where(tensor) + " is 0: activations would be divided by it");
  }
  if (!record.input_zero_point.empty()) {
    check_zero_points(checkpoint, record.input_zero_point, kInt8Min, kInt8Max, "outside int8", report);
  } else if (const std::string name = record.name + ".input_zero_point";
             !record.input_scale.empty() && checkpoint.has_tensor(name)) {
    check_zero_points(checkpoint, name, 0, 0, "the config says symmetric activations", report);
  }
  if (const std::string name = record.name + ".weight_zero_point"; checkpoint.has_tensor(name)) {
    check_zero_points(checkpoint, name, 0, 0, "weights are symmetric", report);
  }
}

void check_finite(const Checkpoint& checkpoint, const StoredTensor& tensor, const Report& report) {
  if (!tensor.dtype || !is_float16_or_32(*tensor.dtype)) return;
  const ConstTensorView view = checkpoint.tensor(tensor.name);
  const std::int64_t elements = view.shape.elements();
  Faults faults;
  for (std::int64_t i = 0; i < elements; ++i) {
    if (!std::isfinite(load_f32(view.data, view.dtype, i))) faults.add(i);
  }
  if (faults.count == 0) return;
  report(where(tensor) + ": element " + index_text(tensor.shape, faults.first) + " is not finite" + faults.more());
}

void check_weight_values(const Checkpoint& checkpoint, const LayerRecord& record, const Report& report) {
  const ConstTensorView weight = checkpoint.tensor(record.weight);
  if (is_fp8(weight.dtype)) {
    std::array<bool, 256> finite{};
    for (std::size_t code = 0; code < finite.size(); ++code) {
      finite[code] = std::isfinite(fp8_to_f32(static_cast<std::uint8_t>(code), weight.dtype));
    }
    const auto* codes = static_cast<const std::uint8_t*>(weight.data);
    Faults faults;
    for (std::int64_t i = 0; i < record.n * record.k; ++i) {
      if (!finite[codes[i]]) faults.add(i);
    }
    if (faults.count != 0) {
      report(where(stored(checkpoint, record.weight)) + ": element " + index_text(weight.shape, faults.first) +
             " is not a number" + faults.more());
    }
  }
  check_overflow(checkpoint, record, report);
  if (record.ue8m0_input_scales) {
    const ScaleGrid grid = scale_grid(checkpoint, record);
    Faults faults;
    for (std::int64_t i = 0; i < grid.view.shape.elements(); ++i) {
      const float value = scale_at(grid.view, i);
      if (std::isfinite(value) && value > 0 && !is_power_of_two(value)) faults.add(i);
    }
    if (faults.count != 0) {
      const StoredTensor& tensor = stored(checkpoint, record.weight_scale);
      report(where(tensor) + ": element " + index_text(tensor.shape, faults.first) + " = " +
             text(scale_at(grid.view, faults.first)) + " is no power of two, which the config promises (ue8m0)" +
             faults.more());
    }
  }
  if (!record.bias.empty()) check_finite(checkpoint, stored(checkpoint, record.bias), report);
}

}  // namespace scaledmm
