// Rows of the fp8 kernels: activations into tiles, sums out to y. Written with AVX2, which every kernel's machine has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/fp8_packing.hpp"
#include "scaledmm/dtype.hpp"

namespace scaledmm::fp8 {

// Where packed activations lie: chunk after chunk of K, in each the tiles. What a thread works on together is so one
// piece of memory: tiles a power of two apart would share cache sets (AMX, K = 4096: twice the time).
struct PackedX {
  std::byte* data = nullptr;
  std::int64_t tiles = 0;
  std::int64_t k_bytes = 0;  // of one k in one tile

  std::byte* tile(std::int64_t tile, const Chunk& chunk) const {
    return data + (tiles * chunk_begin(chunk) + tile * chunk_length(chunk)) * k_bytes;
  }
};

// Rows of x for one tile: activations, or FP8 codes of quantized ones as bf16 values or as bytes.
struct TileRows {
  const void* x = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::span<const KBlock> blocks;
  std::span<const Chunk> chunks;
  PackedX packed;
  std::int64_t tile = 0;
  DType weight_dtype = DType::kE4M3FN;
  bool finds_power = true;  // of two, for a bf16 row; otherwise rows are packed as they are

  std::int64_t k() const { return blocks.back().begin + blocks.back().count; }
};

// The functions below pack one row of a tile and return the factor that its totals need. k counts from the chunk's
// first position.
//
// f32: tile[k][row] = x[row, k] * 2^p, where 2^p (256 for e4m3fn, 128 for e4m3fnuz, 1 for e5m2) undoes the power
// of two of codes that were widened as half-precision bits. A row so large that a sum might overflow goes without, and
// its totals get the power at the end.
float pack_f32_row(const TileRows& rows, std::int64_t row);

// bf16 for VDPBF16PS: tile[k / 2][row][k % 2]. The instruction takes denormals, of inputs and sums, as zero, and the
// weights were multiplied by a power of two. So a row with magnitudes below 2^-80 or above 2^64 is multiplied by a
// power of two, which is exact, and its totals by the inverse. A row that spans more than that can mend gets the factor
// 0.
float pack_bf16_pairs(const TileRows& rows, std::int64_t row);

// The power of two that such a row is multiplied by, from the exponent fields of its smallest magnitude but zero (below
// 0 for denormals) and of its largest. 0 when none will do; what is not finite has no power.
float bf16_row_power(int smallest, int largest);

// The same for AMX tiles: tile[row / 16][k / 32][row % 16][k % 32]; missing rows are zero (the last row writes them).
float pack_bf16_tiles(const TileRows& rows, std::int64_t row);

// Codes for AMX-FP8 tiles: tile[row / 16][k / 64][row % 16][k % 64], missing rows as above.
float pack_byte_tiles(const TileRows& rows, std::int64_t row);

// Rows of outputs of panels that follow each other: y = fma(totals, factor, bias), or with scales fma(totals * factor,
// scales, bias).
struct StoreCall {
  const float* totals = nullptr;   // [panel][rows][16]
  std::int64_t panel_totals = 0;   // floats from panel to panel
  const float* scales = nullptr;   // [panel][16]
  const float* factors = nullptr;  // of the rows
  std::int64_t rows = 0;
  const float* bias = nullptr;  // of the first column, or nullptr
  void* y = nullptr;            // the first row and column
  std::int64_t y_stride = 0;    // elements
  DType dtype = DType::kBF16;
  std::int64_t columns = 0;
};

void store_rows(const StoreCall& call);

}  // namespace scaledmm::fp8
