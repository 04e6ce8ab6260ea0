// Slices of a layer for tensor-parallel ranks. The all-reduce between ranks is the caller's.
#pragma once

#include <cstdint>
#include <vector>

#include "scaledmm/linear.hpp"
#include "scaledmm/scheme.hpp"
#include "scaledmm/tensor.hpp"

namespace scaledmm {

// kOutput: a rank has some of the N output features (column parallel). kInput: some of the K input features (row
// parallel); the ranks' outputs are partial sums.
enum class SplitAxis : std::uint8_t { kOutput, kInput };

struct Split {
  SplitAxis axis = SplitAxis::kOutput;
  std::int64_t index = 0;  // which slice
  std::int64_t count = 1;  // of how many equal ones
};

// How a rank's keys and values are split by heads: with more ranks than heads, ranks / kv_heads of them share one.
// Errors: InvalidArgument when neither number divides the other, with both.
Split key_value_split(std::int64_t rank, std::int64_t ranks, std::int64_t kv_heads);

// A rank's share of a layer. Owns what had to be gathered; the rest are views of the tensors that were sliced.
struct LayerSlice {
  LayerConfig config;
  LayerWeights weights;
  ConstTensorView bias;  // undefined without a bias, and where another slice adds it

  LayerSlice() = default;
  LayerSlice(LayerSlice&&) noexcept = default;
  LayerSlice& operator=(LayerSlice&&) noexcept = default;

  std::vector<std::uint8_t> owned_codes;
  std::vector<float> owned_scales;
  std::vector<float> owned_bias;
};

// Slices a layer. Fused parts (logical_widths) are split one by one along N. A slice may begin inside a scale block;
// its offset is then in block_offset_n or block_offset_k. Per-tensor scales, input scales and zero points go to every
// slice, channel scales too along K. Along K the bias belongs to slice 0. Shapes: as LayerWeights; bias [N] f32, bf16
// or f16. Errors: InvalidArgument when an extent is not divisible, with both numbers; when a fused part would begin
// inside a scale block that another part does not fill, with the rows and the block border.
LayerSlice slice(const LayerConfig& config, const LayerWeights& weights, ConstTensorView bias, const Split& split);

}  // namespace scaledmm
