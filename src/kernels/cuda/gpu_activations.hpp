// Activations of the GPU kernels: codes and scales in the context's scratch memory, or the caller's own where they fit.
#pragma once

#include <cstdint>

#include "cuda/module_api.hpp"
#include "kernels/cuda/gpu_weights.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

struct GpuActivations {
  const void* codes = nullptr;
  std::int64_t pitch = 0;
  const float* scale = nullptr;
  bool scale_per_token = false;
  const std::int32_t* zero_point = nullptr;
  bool zero_point_per_token = false;
  std::byte* rest = nullptr;  // of the scratch memory, as many bytes as were asked for
};

// Quantizes x, or takes it as it is, for weights of `pitch` bytes a row. `rows` is M, or more where a kernel reads
// whole tiles; `own_copy`: the kernel wants rows exactly `pitch` apart. Puts work on the context's stream.
GpuActivations quantize_on_gpu(const LayerConfig& config, const GpuWeights& weights, const ApplyArguments& arguments,
                               std::int64_t rows, bool own_copy, std::int64_t rest_bytes, Context& context);

// What pre-quantized activations must be.
std::optional<QuantKey> gpu_int8_input_key(const LayerConfig& config);
std::optional<QuantKey> gpu_fp8_input_key(const LayerConfig& config);

inline cuda::Place place_of(const Context& context) { return {context.device().index, context.stream()}; }

}  // namespace scaledmm
