// fp8_w8a8_sm90
//   y[m, n] = (sum over k of q[m, k] * w[n, k]) * sx[m] * sw[n] (+ bias[n])                docs/quantization.md 4
//   x [M, K] f32, bf16 or f16, or e4m3fn quantized before; w [N, K] e4m3fn; y [M, N] f32, bf16 or f16; any M, N and K
// x is quantized (static or dynamic, per tensor or per token), then TMA and wgmma on Hopper multiply: in one launch for
// few rows, else in two. Exactness: products are exact; the tensor core adds 128 of them with about 13 bits, and these
// sums are added in f32 in one order for each N and K, whatever M is (cuda/gemm.hpp).
#include "kernels/cuda/gpu_kernel.hpp"
#include "kernels/kernel_list.hpp"

namespace scaledmm::native {

const LinearKernel& fp8_w8a8_sm90() {
  static const GpuKernel kernel(
      {.name = "fp8_w8a8_sm90",
       .upstream =
           "CutlassFP8ScaledMMLinearKernel, FlashInferFP8ScaledMMLinearKernel, RowWiseTorchFP8ScaledMMLinearKernel, "
           "PerTensorTorchFP8ScaledMMLinearKernel",
       .device = DeviceKind::kCuda,
       .computes = "w8a8",
       .guarantees = {.accumulator = "f32, sums of 128 in the tensor core",
                      .exactness = "within (2^-24 (K + 12) + 2^-9) sum|a w s| of the exact product"}},
      DType::kE4M3FN, GpuGemm::kSm90);
  return kernel;
}

}  // namespace scaledmm::native
