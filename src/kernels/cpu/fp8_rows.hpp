// Rows of the fp8 kernels: activations into tiles, sums out to y. Written with AVX2, which every kernel's machine has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/fp8_packing.hpp"
#include "scaledmm/dtype.hpp"

namespace scaledmm::fp8 {

// Rows of x for one tile: activations, or FP8 codes of quantized ones as bf16 values or as bytes.
struct TileRows {
  const void* x = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::span<const KBlock> blocks;
  std::int64_t padded_k = 0;
  DType weight_dtype = DType::kE4M3FN;

  std::int64_t k() const { return blocks.back().begin + blocks.back().count; }
};

// The functions below pack one row of a tile and return the factor that its totals need.
//
// f32: tile[k][row] = x[row, k] * 2^p, where 2^p (256 for e4m3fn, 128 for e4m3fnuz, 1 for e5m2) undoes the power
// of two of codes that were widened as half-precision bits. A row so large that a sum might overflow goes without, and
// its totals get the power at the end.
float pack_f32_row(const TileRows& rows, std::int64_t row, std::byte* tile);

// bf16 for VDPBF16PS: tile[k / 2][row][k % 2]. The instruction takes denormals, of inputs and sums, as zero. So a
// row with magnitudes below 2^-80 is multiplied by a power of two, which is exact, and its totals by the inverse. A row
// that spans more than that can mend gets the factor 0.
float pack_bf16_pairs(const TileRows& rows, std::int64_t row, std::byte* tile);

// The same for AMX tiles: tile[row / 16][k / 32][row % 16][k % 32]; missing rows are zero (the last row writes them).
float pack_bf16_tiles(const TileRows& rows, std::int64_t row, std::byte* tile);

// Codes for AMX-FP8 tiles: tile[row / 16][k / 64][row % 16][k % 64], missing rows as above.
float pack_byte_tiles(const TileRows& rows, std::int64_t row, std::byte* tile);

// Of weights widened to bf16, which is exact: 128 low bytes, then 128 high bytes, for the 7 bits below the sign.
const std::uint8_t* bf16_tables(DType weights);

// One row of outputs of one panel: y = fma(totals, factor, bias), or with scales fma(totals * factor, scales, bias).
struct StoreCall {
  const float* totals = nullptr;
  const float* scales = nullptr;
  float factor = 1;
  const float* bias = nullptr;  // of the panel's first column, or nullptr
  void* y = nullptr;            // the panel's first column
  DType dtype = DType::kBF16;
  std::int64_t columns = kPanelColumns;
};

void store_row(const StoreCall& call);

}  // namespace scaledmm::fp8
