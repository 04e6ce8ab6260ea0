// From sums to outputs, in f32. docs/quantization.md 4. Every INT8 kernel gives these very bits for every M.
#pragma once

#include <cmath>
#include <cstdint>

#include "numerics/host_device.hpp"

namespace scaledmm {

// sum over k of (x - zx) * w, from sum = sum of x * w and column_sum = sum of w. 120, 20, 10 -> -80.
constexpr std::int64_t correct_zero_point(std::int64_t sum, std::int32_t zx, std::int64_t column_sum) {
  return sum - zx * column_sum;
}

// y = (f32(sum) * sx) * sw for a corrected sum, rounded after each step. 446, 0.5, 0.25 -> 55.75.
SCALEDMM_HOST_DEVICE inline float rescale_int8(std::int64_t sum, float sx, float sw) {
  return static_cast<float>(sum) * sx * sw;
}

// y = fma(f32(sum) * sx, sw, bias). 438, 0.5, 0.25, 1 -> 55.75.
SCALEDMM_HOST_DEVICE inline float rescale_int8(std::int64_t sum, float sx, float sw, float bias) {
  return std::fma(static_cast<float>(sum) * sx, sw, bias);
}

// INT8 block scales: the corrected sum of one K block joins the total of the blocks before it. 1.5, 10, 0.25 -> 4.
SCALEDMM_HOST_DEVICE inline float add_int8_block(float total, std::int64_t sum, float sw) {
  return std::fma(static_cast<float>(sum), sw, total);
}

// INT8 block scales: y = total * sx, or fma(total, sx, bias). 4, 0.5 -> 2.
SCALEDMM_HOST_DEVICE inline float finish_int8_block(float total, float sx) { return total * sx; }
SCALEDMM_HOST_DEVICE inline float finish_int8_block(float total, float sx, float bias) {
  return std::fma(total, sx, bias);
}

// FP8: y = (sum * sx) * sw, or fma(sum * sx, sw, bias). sx is 1 where the activations are not quantized. 448, 2, 0.5 ->
// 448.
SCALEDMM_HOST_DEVICE inline float rescale_fp8(float sum, float sx, float sw) { return sum * sx * sw; }
SCALEDMM_HOST_DEVICE inline float rescale_fp8(float sum, float sx, float sw, float bias) {
  return std::fma(sum * sx, sw, bias);
}

// FP8 block scales: the sum of one K block joins the total of the blocks before it. 1, 448, 2, 0.5 -> 449.
SCALEDMM_HOST_DEVICE inline float add_fp8_block(float total, float sum, float sx, float sw) {
  return std::fma(sum * sx, sw, total);
}

}  // namespace scaledmm
