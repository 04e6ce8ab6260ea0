// What this machine can do at most, measured: multiply-add operations from registers, and bytes read from memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "scaledmm/linear.hpp"

namespace scaledmm::cli {

// Operations (a multiply-add is two) a second of the best usable instructions on `context.threads()` threads; int8:
// sums of int8 products that are exact, float: f32 sums of f32, bf16 or dequantized products. 0 where no instruction is
// probed.
struct PeakRates {
  double int8_ops = 0;
  double float_ops = 0;
};
PeakRates measure_peak(Context& context);

// Bytes a second that the threads read together from a buffer of `bytes`: cache speed when it fits, memory speed when
// not.
double measure_bandwidth(std::int64_t bytes, Context& context);

}  // namespace scaledmm::cli
