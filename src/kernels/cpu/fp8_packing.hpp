// Packed FP8 weights, as the CPU kernels of fp8_w8a16 and fp8_w8a8 share them, and the layers that these kernels take.
//
// Weights stay bytes, FP8 codes or their numbers (fp8_numbering.hpp), in panels of 16 output features. Scale blocks of
// K follow each other in a panel, each padded with zero codes to a multiple of the kernel's k_step; within a panel the
// kernel's Order holds.
//   scales[n / 16][block][n % 16] = sw[n, block]
// A column that holds a NaN code anywhere has the scale NaN: its outputs are NaN for every x, and the loops need not
// look.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/fp8_numbering.hpp"
#include "kernels/cpu/huge_buffer.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm::fp8 {

inline constexpr std::int64_t kPanelColumns = 16;  // f32 lanes of one AVX-512 or two AVX registers

// The part of K under one scale, and where it begins in a panel.
struct KBlock {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t position = 0;
};

// Where code (k, n) of a panel stands, counted from the panel's first byte.
enum class Order : std::uint8_t {
  kRows,   // k * 16 + n
  kPairs,  // numbers, 64 for 4 k, such that unpacking them in 16-byte lanes gives two rows of pairs [16][2] of 16-bit
           // weights
  kQuads,  // rows of fours [16][4]: sixteen of them are one AMX tile of bytes
};
constexpr std::int64_t code_offset(Order order, std::int64_t k, std::int64_t n) {
  if (order == Order::kRows) return k * kPanelColumns + n;
  if (order == Order::kQuads) return k / 4 * 64 + n * 4 + k % 4;
  const std::int64_t word = n * 2 + k % 2;  // of a row of pairs
  return k / 4 * 64 + word / 8 * 16 + k % 4 / 2 * 8 + word % 8;
}

// What a kernel wants of its packing.
struct Packing {
  std::int64_t k_step = 1;  // k is padded to this in each scale block
  Order order = Order::kRows;
  std::int64_t chunk_k = 0;  // most steps of K in a chunk
};

// Steps of K under one scale. A scale block longer than a chunk is cut into several pieces.
struct Piece {
  std::int64_t position = 0;  // the first step
  std::int64_t steps = 0;     // k, a multiple of k_step
  std::int64_t block = 0;
  bool begins_block = true;  // sums are zero, not in memory
  bool ends_block = true;    // scale the sums and add them to totals; else leave them in sums
};

// Pieces that follow each other, of which a kernel works on all rows before it goes on.
using Chunk = std::vector<Piece>;
using Chunks = std::vector<Chunk>;
inline std::int64_t chunk_begin(const Chunk& chunk) { return chunk.front().position; }
inline std::int64_t chunk_length(const Chunk& chunk) {
  return chunk.back().position + chunk.back().steps - chunk.front().position;
}

class PackedFp8 final : public PackedWeights {
 public:
  std::int64_t size_bytes() const override;
  std::vector<PackedSection> sections() const override;

  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t panels = 0;
  std::int64_t padded_k = 0;
  DType dtype = DType::kE4M3FN;
  Order order = Order::kRows;
  bool per_channel = true;
  std::vector<KBlock> blocks;
  std::int64_t first_scale = 0;  // the scale column of blocks[0]: a slice may begin past the first block
  Chunks whole;                  // K as one chunk
  Chunks chunks;                 // K in chunks of at most chunk_k
  HugeBuffer codes;
  HugeBuffer scales;
  std::optional<float> input_scale;  // of static activations
  std::optional<float> input_scale_ub;
  bool ue8m0_input_scales = false;

  const std::uint8_t* panel_codes(std::int64_t panel, std::int64_t position) const {
    return codes.as<std::uint8_t>() + (panel * padded_k + position) * kPanelColumns;
  }
  const float* panel_scales(std::int64_t panel, std::size_t block) const {
    return scales.as<float>() +
           (panel * static_cast<std::int64_t>(blocks.size()) + static_cast<std::int64_t>(block)) * kPanelColumns;
  }
};

// What a byte of a panel stands for.
inline std::uint8_t code_of(Order order, DType weights, std::uint8_t byte) {
  return order == Order::kPairs ? fp8_numbering(weights).code_of[byte] : byte;
}
// The power of two that weights are multiplied by when they are widened.
inline float power_of(Order order, DType weights) {
  return order == Order::kPairs ? fp8_numbering(weights).power : 1.0f;
}

// Any block shape, offset and row pitch.
std::unique_ptr<PackedFp8> pack(const Packing& packing, const CheckedWeights& weights, Context& context);
std::vector<std::uint8_t> unpack(const PackedFp8& packed);

// LinearKernel::packed_layout() and adopt() of a kernel that packs so.
std::string packed_layout(const Packing& packing);
std::unique_ptr<PackedFp8> adopt(const Packing& packing, const CheckedWeights& weights,
                                 std::span<const PackedSection> sections, const std::shared_ptr<const void>& memory);

// The FP8 layers that the fp8_w8a16 kernels take: any block, any activation key (activations stay as they are).
Support can_implement_w8a16(const LayerConfig& config);
// The FP8 layers that the fp8_w8a8 kernels take: activations per tensor, per token, or in groups of the weights' K
// blocks.
Support can_implement_w8a8(const LayerConfig& config);
// How these kernels quantize activations: the config's key, in e4m3fnuz where the weights are.
std::optional<QuantKey> activation_key(const LayerConfig& config);

}  // namespace scaledmm::fp8
