// int8_w8a8_sm90
//   y[m, n] = (sum over k of (q[m, k] - zx[m]) * w[n, k]) * sx[m] * sw[n] (+ bias[n])     docs/quantization.md 4
//   x [M, K] f32, bf16 or f16, or int8 quantized before; w [N, K] int8; y [M, N] f32, bf16 or f16; any M and N, K <
//   2^17
// x is quantized (static per tensor or dynamic per token, symmetric or with a zero point), then TMA and wgmma on Hopper
// multiply: in one launch for few rows, else in two. Zero points are corrected by the sums of W's rows. Exactness: sums
// are exact in int32, corrected in int64 where K or a caller's zero points need it, so the result has the bits of every
// other INT8 kernel.
#include "kernels/cuda/gpu_kernel.hpp"
#include "kernels/kernel_list.hpp"

namespace scaledmm::native {

const LinearKernel& int8_w8a8_sm90() {
  static const GpuKernel kernel(
      {.name = "int8_w8a8_sm90",
       .upstream = "CutlassInt8ScaledMMLinearKernel, TritonInt8ScaledMMLinearKernel",
       .device = DeviceKind::kCuda,
       .computes = "w8a8",
       .guarantees = {.accumulator = "int32", .exactness = "integer sums exact; equal to the reference bit for bit"}},
      DType::kInt8, GpuGemm::kSm90);
  return kernel;
}

}  // namespace scaledmm::native
