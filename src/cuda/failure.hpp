// How the module's host code reports a failed call, and chooses a device.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/module_api.hpp"

namespace scaledmm::cuda {

// Keeps a text for this thread and returns it.
Failure fail(std::string text);

// nullptr for cudaSuccess, else "call: text (code)".
Failure check(const char* call, cudaError_t error);

// Makes a device current, and the one before it again at the end.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    error_ = cudaGetDevice(&previous_);
    if (error_ == cudaSuccess && previous_ != device) {
      error_ = cudaSetDevice(device);
      switched_ = error_ == cudaSuccess;
    }
  }
  ~DeviceScope() {
    if (switched_) static_cast<void>(cudaSetDevice(previous_));
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cudaError_t error() const { return error_; }

 private:
  cudaError_t error_;
  int previous_ = 0;
  bool switched_ = false;
};

inline cudaStream_t stream_of(Place place) { return static_cast<cudaStream_t>(place.stream); }

// Runs `call`, which returns a cudaError_t, with the device current.
template <class Call>
Failure on_device(int device, const char* name, const Call& call) {
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return check("cudaSetDevice", scope.error());
  return check(name, call());
}

}  // namespace scaledmm::cuda
