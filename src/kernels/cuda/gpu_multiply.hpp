// Quantize and multiply: the sm90 kernels, in one launch for few rows and in two for more, and cuBLASLt.
#pragma once

#include "kernels/cuda/gpu_weights.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

// Adds the module's GEMM for these weights.
void prepare_sm90(GpuWeights& weights, bool is_int8, const Context& context);
// fast: FP8 sums stay in the tensor core's accumulator.
void multiply_sm90(const LayerConfig& config, const GpuWeights& weights, bool fast, const ApplyArguments& arguments,
                   Context& context);

// N of the weights is padded to a multiple of this for cuBLASLt.
inline constexpr std::int64_t kVendorStepN = 16;
// Compute capability 8.9 or later, and on this machine the library can be opened.
Support is_vendor_supported(const Device& device);
void multiply_vendor(const LayerConfig& config, const GpuWeights& weights, const ApplyArguments& arguments,
                     Context& context);

}  // namespace scaledmm
