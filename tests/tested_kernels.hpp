// The kernels a contract runs over: the native ones that this machine can run, and the emulated copy of every twin.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "kernels/kernel_list.hpp"
#include "scaledmm/device.hpp"

namespace scaledmm {

struct TestedKernel {
  const LinearKernel* kernel = nullptr;
  bool emulated = false;

  std::string label() const { return std::string(kernel->name()) + (emulated ? "_emulated" : ""); }
};

inline void PrintTo(const TestedKernel& tested, std::ostream* out) { *out << tested.label(); }

// Every kernel of the list, native.
inline std::vector<const LinearKernel*> native_kernels() {
  return {
#define SCALEDMM_KERNEL(name) &native::name(),
#define SCALEDMM_TWIN_KERNEL(name) &native::name(),
#include "kernels/kernels.inc"
#undef SCALEDMM_KERNEL
#undef SCALEDMM_TWIN_KERNEL
  };
}

// The second, emulated copies.
inline std::vector<const LinearKernel*> emulated_kernels() {
  return {
#define SCALEDMM_KERNEL(name)
#define SCALEDMM_TWIN_KERNEL(name) &emulated::name(),
#include "kernels/kernels.inc"
#undef SCALEDMM_KERNEL
#undef SCALEDMM_TWIN_KERNEL
  };
}

inline std::vector<TestedKernel> tested_kernels() {
  std::vector<TestedKernel> result;
  for (const LinearKernel* kernel : native_kernels()) {
    if (kernel->is_supported(this_cpu())) result.push_back({kernel, false});
  }
  for (const LinearKernel* kernel : emulated_kernels()) result.push_back({kernel, true});
  return result;
}

}  // namespace scaledmm
