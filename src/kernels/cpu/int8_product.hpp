// The loops around the INT8 micro-kernels: quantize rows once, share rectangles of sums among threads, rescale them
// into y.
//
// Rows are taken in blocks whose codes stay in the second-level cache; a task is one block of rows against some
// columns. A kernel brings an Int8Method: how codes lie, and a function that fills one rectangle of int32 sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/int8_packing.hpp"
#include "kernels/cpu/int8_rows.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

// Rows of sums that wait to be written to y.
struct Int8Outputs {
  const Int8RowFunctions* functions = nullptr;
  const Int8Weights* weights = nullptr;
  const ApplyArguments* arguments = nullptr;
  std::int64_t m = 0;  // of the first row
  Int8Sums sums;       // of no row where none wait

  void write(std::int64_t row) const;
};

// sums[r * stride + c] = sum of code * weight over `length` places from `place` on, for `rows` rows of codes and all
// columns of `panels` panels. All sums are written; those of columns past N come from weights of 0.
struct Int8Rectangle {
  const CodeRows* codes = nullptr;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  const Int8Weights* weights = nullptr;
  std::int64_t first_panel = 0;
  std::int64_t panels = 0;
  std::int64_t place = 0;
  std::int64_t length = 0;  // a multiple of the tile's k
  std::int32_t* sums = nullptr;
  std::int64_t stride = 0;
  // Set for methods that can, on block scales: totals[r * stride + c] = fma(f32(sum), sw[c], totals[r * stride + c])
  // takes the place of writing the sums.
  float* totals = nullptr;
  const float* sw = nullptr;
  // For methods that write behind: rows of another rectangle, all to be written meanwhile.
  const Int8Outputs* pending = nullptr;
  // For prefetching. One rectangle has all rows of its block, so the weights are read once, from memory; or else this
  // is its part of the weights that the thread takes next, none at the end.
  bool streams = false;
  const std::int8_t* next = nullptr;
  std::int64_t next_bytes = 0;
  const std::byte* y = nullptr;  // the first output
  std::int64_t y_stride_bytes = 0;
};

struct Int8Method {
  CodeLayout layout = CodeLayout::kInt16;
  const Int8RowFunctions& (*row_functions)() = int8_rows_avx2;
  bool offset = false;             // codes are stored plus 128
  bool adds_to_totals = false;     // where no row has a zero point
  bool writes_behind = false;      // multiply writes the pending outputs
  std::int64_t rows = 1;           // of a rectangle, at most
  std::int64_t row_step = 1;       // sums hold a multiple of so many rows
  std::int64_t panels = 1;         // of a rectangle, at most
  std::int64_t least_panels = 1;   // where N is small; panels / least_panels is a power of two, and N is padded to it
  std::int64_t block_eighths = 0;  // of the second-level cache, for the codes of a block of rows; 0: one rectangle
  // The same where many threads would share each of several blocks; 0: as few.
  std::int64_t shared_block_eighths = 0;
  void (*multiply)(const Int8Rectangle&) = nullptr;
  // Block scales where no row has a zero point: all segments, to totals that were set to zero, for a multiple of
  // row_step rows. The place and the length are those of the first segment. nullptr: segment after segment.
  void (*multiply_blocks)(const Int8Rectangle&) = nullptr;
  void (*enter)() = nullptr;  // called on a thread before and after its rectangles
  void (*leave)() = nullptr;
};

void multiply_int8(const LayerConfig& config, const Int8Weights& weights, const ApplyArguments& arguments,
                   const Int8Method& method, Context& context);

}  // namespace scaledmm
