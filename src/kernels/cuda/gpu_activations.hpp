// Activations of the GPU kernels: codes and scales in the context's scratch memory, or the caller's own where they fit.
#pragma once

#include <cstdint>
#include <optional>

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
  std::optional<cuda::FusedRows> fused;  // x is quantized by the GEMM: the above is where the results go
  std::byte* rest = nullptr;             // of the scratch memory, as many bytes as were asked for
};

// What a kernel asks of its activations.
struct ActivationNeeds {
  std::int64_t rows;        // M, or more where it reads whole tiles
  bool own_copy;            // rows are exactly the weights' pitch apart
  bool may_fuse;            // it can quantize few rows itself
  std::int64_t rest_bytes;  // of scratch memory
};

// Quantizes x, takes it as it is, or leaves it to the GEMM. Puts work on the context's stream.
GpuActivations quantize_on_gpu(const LayerConfig& config, const GpuWeights& weights, const ApplyArguments& arguments,
                               const ActivationNeeds& needs, Context& context);

// What pre-quantized activations must be.
std::optional<QuantKey> gpu_int8_input_key(const LayerConfig& config);
std::optional<QuantKey> gpu_fp8_input_key(const LayerConfig& config);

inline cuda::Place place_of(const Context& context) { return {context.device().index, context.stream()}; }

}  // namespace scaledmm
