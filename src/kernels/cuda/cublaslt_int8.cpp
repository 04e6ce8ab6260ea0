// cublaslt_int8
//   y[m, n] = (sum over k of (q[m, k] - zx[m]) * w[n, k]) * sx[m] * sw[n] (+ bias[n])      docs/quantization.md 4
//   x [M, K] f32, bf16 or f16, or int8 quantized before; w [N, K] int8; y [M, N] f32, bf16 or f16; any M and N, K <
//   2^17
// cuBLASLt multiplies codes padded with zeros into int32 sums, by the algorithm that its heuristic chooses once for
// each shape; a third launch corrects and scales them. Exactness: sums are exact, so the result has the bits of every
// other INT8 kernel.
#include "kernels/cuda/gpu_kernel.hpp"
#include "kernels/kernel_list.hpp"

namespace scaledmm::native {

const LinearKernel& cublaslt_int8() {
  static const GpuKernel kernel(
      {.name = "cublaslt_int8",
       .upstream = "CutlassInt8ScaledMMLinearKernel",
       .device = DeviceKind::kCuda,
       .computes = "w8a8",
       .guarantees = {.accumulator = "int32", .exactness = "integer sums exact; equal to the reference bit for bit"}},
      DType::kInt8, GpuGemm::kVendor);
  return kernel;
}

}  // namespace scaledmm::native
