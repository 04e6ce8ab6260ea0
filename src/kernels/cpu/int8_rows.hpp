// What comes before and after the products of the INT8 kernels: rows of x to codes, and sums to y. Both give the bits
// of numerics/int8.hpp and numerics/epilogue.hpp. AVX2, compiled once; every kernel that includes this needs AVX2 at
// least.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/target.hpp"
#include "kernels/cpu/int8_packing.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

// x[m, k] ~ scale * (code - zero_point)
struct Int8RowScale {
  float scale;
  std::int32_t zero_point;
};

enum class CodeLayout : std::uint8_t {
  kInt16,        // int16, row after row
  kOffsetBytes,  // code + 128 as uint8, row after row
  kTiles,        // int8, [m / 16][p / 64][m % 16][p % 64]: the tiles of AMX
};

// Where codes go. A row has the places of the packed weights' rows; padding gets some code, which meets weights of 0.
struct CodeRows {
  CodeLayout layout = CodeLayout::kInt16;
  std::int64_t row_bytes = 0;  // kTiles: a sixteenth of one row of tiles
  std::byte* data = nullptr;   // row 0

  static CodeRows plan(CodeLayout layout, const Int8Weights& weights);
  std::byte* row(std::int64_t m) const;
};

// Quantizes row m of x into a row of codes; takes over codes that are already int8.
Int8RowScale quantize_int8_row(const LayerConfig& config, const Int8Weights& weights, const ApplyArguments& arguments,
                               std::int64_t m, CodeLayout layout, std::byte* row);

// A rectangle of int32 sums: row r, column c at sums[r * stride + c] is the sum over k of code * w for row
// scales[r] of x and output feature n + c. Columns come in eights; those past N are ignored. With `offset`, codes were
// stored plus 128, and the sums may have wrapped.
struct Int8Sums {
  const std::int32_t* sums = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t n = 0;
  std::int64_t columns = 0;
  const Int8RowScale* scales = nullptr;
  bool offset = false;
};

// totals[r * stride + c] += (corrected sum) * sw of this segment. Block scales.
void add_int8_segment(const Int8Weights& weights, std::int64_t segment, const Int8Sums& sums, float* totals);

// y rows [m, m + rows) from sums (per channel).
void write_int8_sums(const Int8Weights& weights, const ApplyArguments& arguments, std::int64_t m, const Int8Sums& sums);

// The same from totals, at [r * sums.stride + c] (block scales). sums.sums is not read.
void write_int8_totals(const Int8Weights& weights, const ApplyArguments& arguments, std::int64_t m,
                       const Int8Sums& sums, const float* totals);

// The four functions above in the form of one instruction set; every form gives the same bits. A rectangle's columns
// come in sixteens for the AVX-512 form.
struct Int8RowFunctions {
  Int8RowScale (*quantize_row)(const LayerConfig&, const Int8Weights&, const ApplyArguments&, std::int64_t m,
                               CodeLayout, std::byte* row);
  void (*add_segment)(const Int8Weights&, std::int64_t segment, const Int8Sums&, float* totals);
  void (*write_sums)(const Int8Weights&, const ApplyArguments&, std::int64_t m, const Int8Sums&);
  void (*write_totals)(const Int8Weights&, const ApplyArguments&, std::int64_t m, const Int8Sums&, const float* totals);
};

const Int8RowFunctions& int8_rows_avx2();

namespace SCALEDMM_KERNEL_NAMESPACE {
const Int8RowFunctions& int8_rows_avx512();
}  // namespace SCALEDMM_KERNEL_NAMESPACE

}  // namespace scaledmm
