// The CUDA module, opened on first use.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/module_api.hpp"
#include "scaledmm/device.hpp"

namespace scaledmm {

// The devices, or why there are none: no module, a module of another version, no driver, no device.
const BackendStatus& cuda_backend();

// The module's functions. Errors: DeviceError with cuda_backend()'s reason.
const cuda::ModuleApi& cuda_api();

// Errors: DeviceError with the text of a call that failed.
void check_cuda(cuda::Failure failure);

// Errors: InvalidArgument for a device that is no GPU of this machine.
void require_found_gpu(const Device& device);

// So many bytes before the scratch memory of a GPU's context are zeros; a call may change them, and leaves them zero.
inline constexpr std::int64_t kZeroedBytes = 256;

}  // namespace scaledmm
