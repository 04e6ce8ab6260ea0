// cublaslt_fp8
//   y[m, n] = (sum over k of q[m, k] * w[n, k]) * sx[m] * sw[n] (+ bias[n])                docs/quantization.md 4
//   x [M, K] f32, bf16 or f16, or e4m3fn quantized before; w [N, K] e4m3fn; y [M, N] f32, bf16 or f16; any M, N and K
// cuBLASLt multiplies codes padded with zeros, by the algorithm that its heuristic chooses once for each shape. With
// one scale for x and one for W, no bias and aligned rows it writes y; otherwise it writes f32 sums, and a third launch
// scales them. Exactness: its sums are promoted to f32 as often as the library sees fit, without its fast accumulation.
#include "kernels/cuda/gpu_kernel.hpp"
#include "kernels/kernel_list.hpp"

namespace scaledmm::native {

const LinearKernel& cublaslt_fp8() {
  static const GpuKernel kernel(
      {.name = "cublaslt_fp8",
       .upstream = "PerTensorTorchFP8ScaledMMLinearKernel, ChannelWiseTorchFP8ScaledMMLinearKernel",
       .device = DeviceKind::kCuda,
       .computes = "w8a8",
       .guarantees = {.batch_invariant = false,
                      .accumulator = "f32, as cuBLASLt forms it",
                      .exactness = "within (2^-24 (K + 12) + 2^-9) sum|a w s| of the exact product"}},
      DType::kE4M3FN, GpuGemm::kVendor);
  return kernel;
}

}  // namespace scaledmm::native
