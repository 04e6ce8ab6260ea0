// cuBLASLt behind the module's table, opened when asked for.
#pragma once

#include "cuda/module_api.hpp"

namespace scaledmm::cuda {

Failure open_vendor();
Failure run_vendor_gemm(Place place, const VendorGemm* gemm);

}  // namespace scaledmm::cuda
