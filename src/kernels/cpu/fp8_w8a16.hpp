// What the fp8_w8a16 kernels of all x86 instruction sets share: the packed weights, and the loop over tiles.
//   y[m, n] = bias[n] + sum over K blocks b of sw[n, b] * sum over k in b of x[m, k] * w[n, k]
//
// Packed weights stay FP8 bytes, in panels of 16 output features. Scale blocks of K follow each other in a panel, each
// padded with zero codes to a multiple of the kernel's k_step; within a panel the kernel's Order holds.
//   scales[n / 16][block][n % 16] = sw[n, block]
// A column that holds a NaN code anywhere has the scale NaN: its outputs are NaN for every x, and the loops need not
// look.
//
// One output is one chain of f32 additions in K order inside a scale block; block sums are scaled and added in K order.
// Tiles, chunks and threads cut between chains, or store a chain in memory and go on, so they never change a bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/fp8_w8a16_rows.hpp"
#include "kernels/cpu/huge_buffer.hpp"
#include "scaledmm/linear.hpp"

// Before loops over registers. The emulated copies need no registers, and compile much faster with the loops kept.
#if defined(SCALEDMM_EMULATE)
#define SCALEDMM_UNROLL
#elif defined(__clang__)
#define SCALEDMM_UNROLL _Pragma("unroll")
#else
#define SCALEDMM_UNROLL _Pragma("GCC unroll 8")
#endif

namespace scaledmm::fp8_w8a16 {

// Where code (k, n) of a panel stands, counted from the panel's first byte.
enum class Order : std::uint8_t {
  kRows,   // k * 16 + n
  kPairs,  // 64 bytes for 4 k, such that unpacking them in 16-byte lanes gives two rows of pairs [16][2] of 16-bit
           // weights
};
constexpr std::int64_t code_offset(Order order, std::int64_t k, std::int64_t n) {
  if (order == Order::kRows) return k * kPanelColumns + n;
  const std::int64_t word = n * 2 + k % 2;  // of a row of pairs
  return k / 4 * 64 + word / 8 * 16 + k % 4 / 2 * 8 + word % 8;
}

// Steps of K under one scale. A scale block longer than a chunk is cut into several pieces.
struct Piece {
  std::int64_t position = 0;  // the first step
  std::int64_t steps = 0;     // k, a multiple of k_step
  std::int64_t block = 0;
  bool begins_block = true;  // sums are zero, not in memory
  bool ends_block = true;    // scale the sums and add them to totals; else leave them in sums
};

using Chunks = std::vector<std::vector<Piece>>;

class PackedFp8 final : public PackedWeights {
 public:
  std::int64_t size_bytes() const override;

  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t panels = 0;
  std::int64_t padded_k = 0;
  DType dtype = DType::kE4M3FN;
  Order order = Order::kRows;
  std::vector<KBlock> blocks;
  Chunks whole;   // K as one chunk
  Chunks chunks;  // K in chunks of at most chunk_k
  HugeBuffer codes;
  HugeBuffer scales;

  const std::uint8_t* panel_codes(std::int64_t panel, std::int64_t position) const {
    return codes.as<std::uint8_t>() + (panel * padded_k + position) * kPanelColumns;
  }
  const float* panel_scales(std::int64_t panel, std::size_t block) const {
    return scales.as<float>() +
           (panel * static_cast<std::int64_t>(blocks.size()) + static_cast<std::int64_t>(block)) * kPanelColumns;
  }
};

// Where a tile gets its weights: from the codes; from the codes, leaving them widened for other tiles; or widened.
enum class Weights : std::uint8_t { kCodes, kCodesAndKeep, kKept };

// One tile times one or more panels, over pieces of K that follow each other.
struct TileCall {
  const std::byte* x = nullptr;  // the packed tile
  std::int64_t padded_k = 0;     // of the packed tile and the panels
  std::span<const Piece> pieces;
  const std::uint8_t* codes = nullptr;  // of the first panel, at the first piece
  std::int64_t panel_codes = 0;         // bytes from panel to panel
  std::byte* kept = nullptr;            // widened weights [panel][chunk_k][16]; with kCodes free for any use
  std::int64_t panel_kept = 0;          // bytes from panel to panel
  float* sums = nullptr;                // [panel][tile_rows][16]: the scale block so far
  float* totals = nullptr;              // the same for the blocks before, scaled; zero before block 0, not in memory
  std::int64_t panel_sums = 0;          // floats from panel to panel in sums and totals
  const float* scales = nullptr;        // [panel][block][16]
  std::int64_t panel_scales = 0;        // floats from panel to panel
};

// What a kernel brings. Rows are cut into tiles, tiles into row blocks that reuse a widened chunk of the weights.
struct TileKernels {
  std::int64_t tile_rows = 0;   // most rows of a tile
  std::int64_t row_unit = 1;    // tiles begin at multiples of this
  std::int64_t block_rows = 0;  // most rows of a row block: their chunk of x should stay in L2
  std::int64_t k_step = 1;      // k is padded to this in each scale block
  Order order = Order::kRows;
  std::int64_t chunk_k = 0;        // k of a widened chunk: it should stay in L1
  std::int64_t kept_panels = 1;    // panels of a widened chunk
  std::int64_t small_x_bytes = 0;  // packed rows of this size stay in L2 over the whole of K
  std::int64_t x_bytes = 4;        // of an activation in a packed tile
  std::int64_t kept_bytes = 4;     // of a widened weight
  // Panels that one call with Weights::kCodes takes for so many rows: 1, 2 or 4. Fewer may come at the end.
  std::int64_t (*panels_at_once)(std::int64_t rows) = nullptr;
  // Packs one row of a tile. Returns what its totals are multiplied by; 0 asks for the row to be computed plainly
  // instead.
  float (*pack_row)(const TileRows& rows, std::int64_t row, std::byte* tile) = nullptr;
  void (*multiply)(DType weights, Weights source, std::int64_t rows, std::int64_t panels,
                   const TileCall& call) = nullptr;
  // Around a thread's calls of multiply; nullptr for nothing.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

// Packs for `kernels`. Any block shape, offset and row pitch.
std::unique_ptr<PackedFp8> pack(const TileKernels& kernels, const CheckedWeights& weights, Context& context);
std::vector<std::uint8_t> unpack(const PackedFp8& packed);
void multiply(const TileKernels& kernels, const PackedFp8& packed, const ApplyArguments& arguments, Context& context);

// The FP8 layers that these kernels take: any block, any activation key (activations stay as they are).
Support can_implement(const LayerConfig& config);
// The same with bf16 activations only.
Support can_implement_bf16(const LayerConfig& config);

}  // namespace scaledmm::fp8_w8a16
