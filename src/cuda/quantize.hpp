// Activations to codes. Formats: module_api.hpp; formulas: docs/quantization.md 2, 3.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/module_api.hpp"

namespace scaledmm::cuda {

cudaError_t launch_quantize_int8(const QuantizeInt8& arguments, cudaStream_t stream);
cudaError_t launch_quantize_fp8(const QuantizeFp8& arguments, cudaStream_t stream);

}  // namespace scaledmm::cuda
