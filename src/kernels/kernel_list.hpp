// Declares the exported function of every kernel.
#pragma once

#include "scaledmm/linear.hpp"

namespace scaledmm {

namespace native {
#define SCALEDMM_KERNEL(name) const LinearKernel& name();
#define SCALEDMM_TWIN_KERNEL(name) const LinearKernel& name();
#include "kernels/kernels.inc"
#undef SCALEDMM_KERNEL
#undef SCALEDMM_TWIN_KERNEL
}  // namespace native

// Linked into test programs only.
namespace emulated {
#define SCALEDMM_KERNEL(name)
#define SCALEDMM_TWIN_KERNEL(name) const LinearKernel& name();
#include "kernels/kernels.inc"
#undef SCALEDMM_KERNEL
#undef SCALEDMM_TWIN_KERNEL
}  // namespace emulated

}  // namespace scaledmm
