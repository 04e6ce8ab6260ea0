// y[m, n] = sums[m, n] through the epilogue of docs/quantization.md 4.
#include "cuda/scale_sums.hpp"
#include "numerics/epilogue.hpp"
#include "numerics/formats.hpp"

namespace scaledmm::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) scale_sums(VendorGemm g, std::int64_t sums_stride) {
  const std::int64_t m = blockIdx.x;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (n >= g.y_columns) return;
  const float sx = g.x_scale[g.x_scale_per_token ? m : 0], sw = g.w_scale[n];
  float y;
  if (g.is_int8) {
    std::int64_t sum = static_cast<const std::int32_t*>(g.sums)[m * sums_stride + n];
    if (g.x_zero_point != nullptr) {
      sum = correct_zero_point(sum, g.x_zero_point[g.x_zero_point_per_token ? m : 0], g.w_column_sum[n]);
    }
    y = g.bias != nullptr ? rescale_int8(sum, sx, sw, g.bias[n]) : rescale_int8(sum, sx, sw);
  } else {
    const float sum = static_cast<const float*>(g.sums)[m * sums_stride + n];
    y = g.bias != nullptr ? rescale_fp8(sum, sx, sw, g.bias[n]) : rescale_fp8(sum, sx, sw);
  }
  store_f32(y, g.y, g.y_dtype, m * g.y_stride + n);
}

}  // namespace

cudaError_t launch_scale_sums(const VendorGemm& gemm, std::int64_t sums_stride, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(gemm.m), static_cast<unsigned>((gemm.y_columns + kThreads - 1) / kThreads));
  scale_sums<<<grid, kThreads, 0, stream>>>(gemm, sums_stride);
  return cudaGetLastError();
}

}  // namespace scaledmm::cuda
