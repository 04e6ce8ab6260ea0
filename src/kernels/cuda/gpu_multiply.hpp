// Quantize and multiply: the two launches of the sm90 kernels, and cuBLASLt's.
#pragma once

#include "kernels/cuda/gpu_weights.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

// Adds the module's GEMM for these weights.
void prepare_sm90(GpuWeights& weights, bool is_int8, const Context& context);
void multiply_sm90(const LayerConfig& config, const GpuWeights& weights, const ApplyArguments& arguments,
                   Context& context);

// N of the weights is padded to a multiple of this for cuBLASLt.
inline constexpr std::int64_t kVendorStepN = 16;
// Compute capability 8.9 or later, and on this machine the library can be opened.
Support is_vendor_supported(const Device& device);
void multiply_vendor(const LayerConfig& config, const GpuWeights& weights, const ApplyArguments& arguments,
                     Context& context);

}  // namespace scaledmm
