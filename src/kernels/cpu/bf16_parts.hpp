// Activations as sums of bf16 rows, for kernels that multiply bf16. Each part holds the next 8 significant bits of x,
// so that 1 (bf16), 2 (f16) or 3 (f32) of them are x exactly, and their magnitudes add up to that of x.
#pragma once

#include <cstdint>

#include "scaledmm/dtype.hpp"

namespace scaledmm::bf16 {

std::int64_t parts_of(DType x);

// Splits an f16 or f32 row into [part][K], times a power of two, which is exact. It is chosen as for bf16 rows
// (fp8_rows.hpp): then parts are no denormals, and neither are their products with 8-bit floats and the sums of these,
// all of which are multiples of 2^-119. All of an Inf or NaN is in the first part. Returns what totals are multiplied
// by, 0 where no power will do.
float split_row(const void* x, DType dtype, std::int64_t k, std::uint16_t* parts);

// sums [panel][row][part][16] become [panel][row][16], the smallest part first. Panels stay as far apart as they are.
void add_parts(std::int64_t parts, std::int64_t panels, std::int64_t rows, float* sums, std::int64_t panel_sums);

}  // namespace scaledmm::bf16
