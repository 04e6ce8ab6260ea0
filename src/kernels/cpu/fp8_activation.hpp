// Activations of the fp8_w8a8 kernels: rows of x become codes of 8-bit floats and their scales, with the bits of
// numerics/fp8_scale.hpp. AVX2, compiled once; every kernel that includes this needs AVX2 at least.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cpu/fp8_packing.hpp"
#include "numerics/fp8_scale.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm::fp8 {

// What a code becomes: its value, which bf16 holds exactly, or its byte.
enum class CodeForm : std::uint8_t { kBF16, kByte };

// How the activations of one call are quantized.
struct Quantizer {
  enum class Scales : std::uint8_t { kGiven, kTensor, kToken, kGroup };

  DType dtype = DType::kE4M3FN;  // of the codes
  Scales scales = Scales::kToken;
  Fp8Scale tensor;            // kTensor
  bool needs_absmax = false;  // kTensor, dynamic: `tensor` comes from finite_absmax of all rows
  float upper_bound = std::numeric_limits<float>::infinity();
  bool ue8m0 = false;
};

Quantizer quantizer_of(const LayerConfig& config, const PackedFp8& packed, const ApplyArguments& arguments);

// The largest finite magnitude of rows [begin, end) of x.
float finite_absmax(const ApplyArguments& arguments, std::int64_t k, std::int64_t begin, std::int64_t end);

// `count` values that begin at element `begin` of x, by one scale. `out` has 2 bytes or 1 for each.
void quantize_values(const void* x, DType x_dtype, std::int64_t begin, std::int64_t count, const Fp8Scale& scale,
                     DType dtype, CodeForm form, std::byte* out);

// Row m of x, or the codes that came instead, to `out`, [K]; and the scale of each K block to sx.
void quantize_row(const Quantizer& quantizer, const PackedFp8& packed, const ApplyArguments& arguments, std::int64_t m,
                  CodeForm form, std::byte* out, float* sx);

}  // namespace scaledmm::fp8
