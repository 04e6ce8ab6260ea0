#include "scaledmm/tensor_parallel.hpp"

#include <string>

#include "numerics/formats.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

// Rows or columns [begin, begin + size).
struct Range {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

WeightShape& shape_of(LayerConfig& config) {
  return std::visit([](auto& c) -> WeightShape& { return c.weight_shape; }, config);
}

std::string text(std::int64_t value) { return std::to_string(value); }

Range part_of(Range whole, const Split& split, const char* what) {
  if (whole.size % split.count != 0) {
    throw InvalidArgument(std::string(what) + " = " + text(whole.size) + " is not divisible by " + text(split.count));
  }
  const std::int64_t size = whole.size / split.count;
  return {whole.begin + split.index * size, size};
}

GroupShape weight_group(const LayerConfig& config) {
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
    if (int8->weight_block) return *int8->weight_block;
    return int8->is_channelwise ? GroupShape::per_channel() : GroupShape::per_tensor();
  }
  return std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.scale.group_shape;
}

float element(const ConstTensorView& view, std::int64_t index) {
  if (view.dtype != DType::kUInt8 && view.dtype != DType::kE8M0) return load_f32(view.data, view.dtype, index);
  return e8m0_to_f32(static_cast<const std::uint8_t*>(view.data)[index]);
}

void check_arguments(const LayerConfig& config, const LayerWeights& weights, const Split& split) {
  if (split.count < 1 || split.index < 0 || split.index >= split.count) {
    throw InvalidArgument("slice " + text(split.index) + " of " + text(split.count) + " does not exist");
  }
  const WeightShape shape = weight_shape(config);
  if (weights.weight.shape != Shape{shape.n, shape.k}) {
    throw InvalidArgument("weight has shape " + weights.weight.shape.text() + ", expected " +
                          Shape{shape.n, shape.k}.text());
  }
  if (!weights.weight_scale.defined()) throw InvalidArgument("weight_scale is missing");
  std::int64_t sum = 0;
  for (const std::int64_t width : weights.logical_widths) sum += width;
  if (!weights.logical_widths.empty() && sum != shape.n) {
    throw InvalidArgument("logical widths sum to " + text(sum) + ", N is " + text(shape.n));
  }
}

// The rows of the slice: one range, or one of each fused part.
std::vector<Range> sliced_rows(const LayerWeights& weights, std::int64_t n, const Split& split) {
  if (split.axis == SplitAxis::kInput) return {{0, n}};
  if (weights.logical_widths.size() < 2) return {part_of({0, n}, split, "N")};
  std::vector<Range> rows;
  std::int64_t begin = 0;
  for (const std::int64_t width : weights.logical_widths) {
    rows.push_back(part_of({begin, width}, split, "a fused part's N"));
    begin += width;
  }
  return rows;
}

void slice_codes(const LayerWeights& weights, const std::vector<Range>& rows, Range columns, LayerSlice& out) {
  const ConstTensorView& weight = weights.weight;
  const auto* base = static_cast<const std::uint8_t*>(weight.data);
  const std::int64_t pitch = weight.strides[0];
  if (rows.size() == 1) {
    out.weights.weight = ConstTensorView(base + rows[0].begin * pitch + columns.begin, weight.dtype,
                                         Shape{rows[0].size, columns.size}, Shape{pitch, 1});
    return;
  }
  std::int64_t total = 0;
  for (const Range& range : rows) {
    for (std::int64_t n = range.begin; n < range.begin + range.size; ++n) {
      const std::uint8_t* row = base + n * pitch + columns.begin;
      out.owned_codes.insert(out.owned_codes.end(), row, row + columns.size);
    }
    total += range.size;
  }
  out.weights.weight = ConstTensorView(out.owned_codes.data(), weight.dtype, Shape{total, columns.size});
}

void slice_channel_scales(const LayerWeights& weights, std::int64_t n, const std::vector<Range>& rows,
                          LayerSlice& out) {
  const ConstTensorView& scale = weights.weight_scale;
  if (scale.shape.elements() != n || !scale.is_packed()) {
    throw InvalidArgument("weight_scale has shape " + scale.shape.text() + ", expected " + text(n) +
                          " packed elements");
  }
  for (const Range& range : rows) {
    for (std::int64_t i = range.begin; i < range.begin + range.size; ++i) out.owned_scales.push_back(element(scale, i));
  }
  out.weights.weight_scale =
      ConstTensorView(out.owned_scales.data(), DType::kF32, Shape{static_cast<std::int64_t>(out.owned_scales.size())});
}

void slice_block_scales(const LayerWeights& weights, GroupShape block, const std::vector<Range>& rows, Range columns,
                        LayerSlice& out) {
  const ConstTensorView& scale = weights.weight_scale;
  const auto last_block = [](std::int64_t offset, const Range& range, std::int64_t size) {
    return (offset + range.begin + range.size - 1) / size;
  };
  const std::int64_t first_column = (weights.block_offset_k + columns.begin) / block.col;
  const std::int64_t last_column = last_block(weights.block_offset_k, columns, block.col);
  if (scale.shape.rank() != 2 || last_column >= scale.shape[1] ||
      last_block(weights.block_offset_n, rows.back(), block.row) >= scale.shape[0]) {
    throw InvalidArgument("weight_scale has shape " + scale.shape.text() + ", too small for the weight " +
                          weights.weight.shape.text() + " in blocks of " + block.text());
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t begin = weights.block_offset_n + rows[i].begin;
    const bool ragged_end = i + 1 < rows.size() && rows[i].size % block.row != 0;
    if (rows.size() > 1 && (begin % block.row != 0 || ragged_end)) {
      const std::int64_t border = (begin / block.row + 1) * block.row;
      throw InvalidArgument("rows " + text(rows[i].begin) + ".." + text(rows[i].begin + rows[i].size - 1) +
                            " of a fused layer do not fill scale blocks: they meet the block border at " +
                            text(border) + "; slice the parts one by one");
    }
    for (std::int64_t row = begin / block.row; row <= last_block(weights.block_offset_n, rows[i], block.row); ++row) {
      for (std::int64_t column = first_column; column <= last_column; ++column) {
        out.owned_scales.push_back(element(scale, row * scale.strides[0] + column * scale.strides[1]));
      }
    }
  }
  const std::int64_t width = last_column - first_column + 1;
  out.weights.weight_scale = ConstTensorView(out.owned_scales.data(), DType::kF32,
                                             Shape{static_cast<std::int64_t>(out.owned_scales.size()) / width, width});
  out.weights.block_offset_n = (weights.block_offset_n + rows.front().begin) % block.row;
  out.weights.block_offset_k = (weights.block_offset_k + columns.begin) % block.col;
}

void slice_bias(ConstTensorView bias, std::int64_t n, const std::vector<Range>& rows, const Split& split,
                LayerSlice& out) {
  if (!bias.defined() || (split.axis == SplitAxis::kInput && split.index != 0)) return;
  if (bias.shape != Shape{n} || !bias.is_packed()) {
    throw InvalidArgument("bias has shape " + bias.shape.text() + ", expected " + Shape{n}.text() + ", packed");
  }
  if (!is_float16_or_32(bias.dtype)) {
    throw InvalidArgument("bias is " + std::string(name(bias.dtype)) + ", expected f32, bf16 or f16");
  }
  for (const Range& range : rows) {
    for (std::int64_t i = range.begin; i < range.begin + range.size; ++i) out.owned_bias.push_back(element(bias, i));
  }
  out.bias =
      ConstTensorView(out.owned_bias.data(), DType::kF32, Shape{static_cast<std::int64_t>(out.owned_bias.size())});
}

}  // namespace

Split key_value_split(std::int64_t rank, std::int64_t ranks, std::int64_t kv_heads) {
  if (ranks < 1 || kv_heads < 1 || rank < 0 || rank >= ranks || (ranks % kv_heads != 0 && kv_heads % ranks != 0)) {
    throw InvalidArgument(text(kv_heads) + " key/value heads cannot be shared by " + text(ranks) + " ranks (rank " +
                          text(rank) + ")");
  }
  if (ranks <= kv_heads) return {SplitAxis::kOutput, rank, ranks};
  return {SplitAxis::kOutput, rank / (ranks / kv_heads), kv_heads};
}

LayerSlice slice(const LayerConfig& config, const LayerWeights& weights, ConstTensorView bias, const Split& split) {
  check_arguments(config, weights, split);
  const WeightShape shape = weight_shape(config);
  const std::vector<Range> rows = sliced_rows(weights, shape.n, split);
  const Range columns = split.axis == SplitAxis::kInput ? part_of({0, shape.k}, split, "K") : Range{0, shape.k};
  LayerSlice out;
  out.config = config;
  out.weights = weights;
  WeightShape& sliced_shape = shape_of(out.config);
  sliced_shape.k = columns.size;
  sliced_shape.n = 0;
  for (const Range& range : rows) sliced_shape.n += range.size;
  if (!weights.logical_widths.empty() && split.axis == SplitAxis::kOutput) {
    out.weights.logical_widths.clear();
    for (const Range& range : rows) out.weights.logical_widths.push_back(range.size);
  }
  slice_codes(weights, rows, columns, out);
  const GroupShape group = weight_group(config);
  if (is_block_scaled(config)) {
    slice_block_scales(weights, group, rows, columns, out);
  } else if (group.is_per_channel() && split.axis == SplitAxis::kOutput) {
    slice_channel_scales(weights, shape.n, rows, out);
  }
  slice_bias(bias, shape.n, rows, split, out);
  return out;
}

}  // namespace scaledmm
