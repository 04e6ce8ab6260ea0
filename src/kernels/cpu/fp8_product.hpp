// What the fp8 kernels of all x86 instruction sets share: the loop over tiles.
//   y[m, n] = bias[n] + sum over K blocks b of sx[m, b] * sw[n, b] * sum over k in b of x[m, k] * w[n, k]
// W8A16: x as it is, without sx. W8A8: x are the values of FP8 codes, and sx their scales.
//
// One output is one chain of f32 additions in K order inside a scale block; block sums are scaled and added in K order.
// Tiles, chunks and threads cut between chains, or store a chain in memory and go on, so they never change a bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/fp8_activation.hpp"
#include "kernels/cpu/fp8_packing.hpp"
#include "kernels/cpu/fp8_rows.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm::fp8 {

// Where a tile gets its weights: from the codes; from the codes, leaving them widened for other tiles; or widened.
enum class Weights : std::uint8_t { kCodes, kCodesAndKeep, kKept };

// One tile times one or more panels, over the pieces of a chunk.
struct TileCall {
  const std::byte* x = nullptr;  // the packed tile
  DType x_dtype = DType::kBF16;  // of the activations, or of their codes
  std::span<const Piece> pieces;
  const std::uint8_t* codes = nullptr;  // of the first panel, at the first piece
  std::int64_t panel_codes = 0;         // bytes from panel to panel
  std::byte* kept = nullptr;            // widened weights [panel][chunk_k][16]; with kCodes free for any use
  std::int64_t panel_kept = 0;          // bytes from panel to panel
  float* sums = nullptr;                // [panel][tile_rows][16]: the scale block so far
  // The same for the blocks before, scaled; zero before block 0, not in memory. Without `scales` the sums as they are.
  float* totals = nullptr;
  std::int64_t panel_sums = 0;        // floats from panel to panel in sums and totals
  const float* scales = nullptr;      // [panel][block][16]; null where there is one block, scaled when it is stored
  std::int64_t panel_scales = 0;      // floats from panel to panel
  float inverse_power = 1.0f;         // of what weights are multiplied by when they are widened
  const float* row_scales = nullptr;  // of row r, block b at r * row_scales_stride + b * row_scales_step
  std::int64_t row_scales_stride = 0;
  std::int64_t row_scales_step = 0;  // both 0: one value, 1
  const StoreCall* store = nullptr;  // of kernels that store: outputs take the place of the last block's totals
  std::int64_t parts = 1;            // tile rows of an output row

  std::int64_t length() const { return pieces.back().position + pieces.back().steps - pieces.front().position; }
  float row_scale(std::int64_t row, std::int64_t block) const {
    return row_scales[row * row_scales_stride + block * row_scales_step];
  }
};

// What a kernel brings. Rows are cut into tiles, tiles into row blocks that reuse a widened chunk of the weights.
struct TileKernels {
  std::int64_t tile_rows = 0;            // most rows of a tile
  std::int64_t row_unit = 1;             // tiles have multiples of this, but the last
  Packing packing;                       // a chunk should stay in L1
  std::int64_t kept_panels = 1;          // panels of a chunk
  std::int64_t group_panels = 8;         // that reuse a chunk of x from L2 before it is left, at most
  std::int64_t x_eighths = 3;            // of the second-level cache, for the chunk of x of one row block
  bool stores_outputs = false;           // multiply stores y from sums that are still in L1
  std::int64_t x_bytes = 4;              // of an activation in a packed tile
  std::int64_t kept_bytes = 4;           // of a widened weight; 0 where every tile takes the codes
  CodeForm code_form = CodeForm::kBF16;  // what pack_row takes of quantized activations
  // Tile rows of a row of activations that are not quantized, for kernels that multiply bf16; nullptr for 1.
  std::int64_t (*parts)(DType x) = nullptr;
  // Panels that one call with Weights::kCodes takes for so many rows: 1, 2 or 4. Fewer may come at the end.
  std::int64_t (*panels_at_once)(std::int64_t rows) = nullptr;
  // Packs one row of a tile. Returns what its totals are multiplied by; 0 asks for the row to be computed plainly
  // instead. Quantized rows give 1.
  float (*pack_row)(const TileRows& rows, std::int64_t row) = nullptr;
  void (*multiply)(DType weights, Weights source, std::int64_t rows, std::int64_t panels,
                   const TileCall& call) = nullptr;
  // Around a thread's calls of multiply; nullptr for nothing.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

// W8A16.
void multiply(const TileKernels& kernels, const PackedFp8& packed, const ApplyArguments& arguments, Context& context);

// W8A8: activations are quantized as the config says.
void multiply_quantized(const TileKernels& kernels, const LayerConfig& config, const PackedFp8& packed,
                        const ApplyArguments& arguments, Context& context);

}  // namespace scaledmm::fp8
