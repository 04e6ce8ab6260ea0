// Packed INT8 weights, as the CPU kernels of int8_w8a8 share them, and the layers that these kernels take.
//
//   codes[n / 16][p / q][n % 16][p % q] = w[n, k]       p = place of k in the packed row, q = products summed by one
//   instruction
//
// K is cut where a weight scale ends. Each segment begins at a place that the kernel's K step divides; zeros fill the
// gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/huge_buffer.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

inline constexpr std::int64_t kInt8PanelN = 16;  // output features of one panel of packed weights

// 128 * 128 * K stays below 2^31, so int32 sums cannot wrap.
inline constexpr std::int64_t kInt8LargestK = (1 << 17) - 1;

// Columns [begin, begin + length) of w have one scale a row and stand at [place, place + padded) of the packed row.
struct Int8Segment {
  std::int64_t begin = 0;
  std::int64_t length = 0;
  std::int64_t place = 0;
  std::int64_t padded = 0;
};

// What a kernel wants of its packing.
struct Int8Tile {
  std::int64_t n = kInt8PanelN;  // N is padded to a multiple, itself a multiple of kInt8PanelN
  std::int64_t k = 2;            // segments are padded to a multiple, itself a multiple of products
  std::int64_t products = 2;     // the q of the layout
};

class Int8Weights final : public PackedWeights {
 public:
  std::int64_t size_bytes() const override;
  std::vector<PackedSection> sections() const override;
  const std::int8_t* panel(std::int64_t panel) const {
    return codes.as<std::int8_t>() + panel * packed_k * kInt8PanelN;
  }
  const float* scales_of(std::int64_t segment) const { return scales.as<float>() + segment * padded_n; }
  const std::int32_t* column_sums_of(std::int64_t segment) const {
    return column_sums.as<std::int32_t>() + segment * padded_n;
  }
  std::int64_t panels() const { return padded_n / kInt8PanelN; }

  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t padded_n = 0;
  std::int64_t packed_k = 0;
  bool block_scaled = false;
  Int8Tile tile;
  std::vector<Int8Segment> segments;  // one, unless block-scaled
  HugeBuffer codes;
  HugeBuffer scales;                 // f32 [segments, padded_n], 0 in the padding
  HugeBuffer column_sums;            // int32 [segments, padded_n]: sum of w over the segment
  std::optional<float> input_scale;  // static activations
  std::int32_t input_zero_point = 0;
};

// INT8 weights and activations, K up to kInt8LargestK; block scales with dynamic activations.
Support can_implement_int8(const LayerConfig& config);

// Codes with one scale for all rows (static) or one a row (dynamic).
std::optional<QuantKey> int8_input_quant_key(const LayerConfig& config);

std::unique_ptr<Int8Weights> pack_int8(const CheckedWeights& weights, const Int8Tile& tile, Context& context);

// LinearKernel::packed_layout() and adopt() of a kernel that packs with this tile.
std::string int8_layout(const Int8Tile& tile);
std::unique_ptr<Int8Weights> adopt_int8(const CheckedWeights& weights, const Int8Tile& tile,
                                        std::span<const PackedSection> sections,
                                        const std::shared_ptr<const void>& memory);

// The [N, K] bytes that were packed.
std::vector<std::uint8_t> unpack_int8(const Int8Weights& weights);

}  // namespace scaledmm
