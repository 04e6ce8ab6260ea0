// From sums in memory to outputs: the epilogue of GEMMs that have none of their own.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/module_api.hpp"

namespace scaledmm::cuda {

// y[m, n] from sums[m, n], rows `sums_stride` apart, f32 or int32 as the GEMM says.
cudaError_t launch_scale_sums(const VendorGemm& gemm, std::int64_t sums_stride, cudaStream_t stream);

}  // namespace scaledmm::cuda
