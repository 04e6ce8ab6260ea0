// Packed weights of the GPU kernels, and which layers these kernels take.
//   codes[n * pitch + k] = w[n, k]      zeros behind K and, where a kernel wants N padded, in rows behind N
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "scaledmm/device_memory.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

class GpuWeights final : public PackedWeights {
 public:
  std::int64_t size_bytes() const override;

  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t padded_n = 0;
  std::int64_t pitch = 0;  // bytes, a multiple of 16
  DeviceBuffer codes;
  DeviceBuffer scales;       // f32 [padded_n]
  DeviceBuffer column_sums;  // INT8: int32 [padded_n]
  DeviceBuffer input;        // static activations: f32 scale, int32 zero point
  std::optional<float> input_scale;
  std::int32_t input_zero_point = 0;
  std::optional<float> input_scale_ub;
  bool one_scale = false;                                         // all rows have the first row's
  std::unique_ptr<void, void (*)(void*)> gemm{nullptr, nullptr};  // the module's, of the sm90 kernels
};

// Codes to the context's device. N is padded to a multiple of `step_n`.
std::unique_ptr<GpuWeights> pack_on_gpu(const CheckedWeights& weights, std::int64_t step_n, Context& context);
// The [N, K] bytes that were packed.
std::vector<std::uint8_t> unpack_from_gpu(const GpuWeights& weights);

// The device is a CUDA one of a compute capability from `least` to `most`.
Support is_capability(const Device& device, int least, int most);
// INT8 with one scale for each row of W and of x, or static; K up to 131071.
Support can_implement_gpu_int8(const LayerConfig& config);
// e4m3fn weights and activations, no scales along K.
Support can_implement_gpu_fp8(const LayerConfig& config);

}  // namespace scaledmm
