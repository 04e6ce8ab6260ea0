// Copies of strided rows, widened scales and biases, column sums. Formats: module_api.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/module_api.hpp"

namespace scaledmm::cuda {

cudaError_t launch_gather_rows(const StridedRows& from, void* packed, std::int64_t rows, std::int64_t row_bytes,
                               std::int64_t packed_pitch, cudaStream_t stream);
cudaError_t launch_scatter_rows(const void* packed, const StridedRows& to, std::int64_t rows, std::int64_t row_bytes,
                                cudaStream_t stream);
cudaError_t launch_gather_scalars(const StridedRows& from, DType dtype, bool repeats, void* out, std::int64_t count,
                                  cudaStream_t stream);
cudaError_t launch_sum_columns(const std::int8_t* w, std::int64_t n, std::int64_t k, std::int64_t pitch,
                               std::int32_t* out, cudaStream_t stream);

}  // namespace scaledmm::cuda
