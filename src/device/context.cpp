#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "device/cuda_module.hpp"
#include "device/thread_pool.hpp"
#include "scaledmm/device_memory.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {
namespace {

// Aligned memory that only grows. Contents are lost when it grows.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  std::byte* at_least(std::int64_t bytes) {
    if (bytes > capacity_) {
      constexpr std::int64_t kAlignment = 64;
      const std::int64_t rounded = (bytes + bytes / 4 + kAlignment - 1) / kAlignment * kAlignment;
      std::free(data_);
      capacity_ = 0;
      data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<std::size_t>(rounded)));
      if (data_ == nullptr) throw std::bad_alloc();
      capacity_ = rounded;
    }
    return data_;
  }

 private:
  std::byte* data_ = nullptr;
  std::int64_t capacity_ = 0;
};

// Memory of a GPU that only grows. What it outgrew is kept: work on the stream and captured graphs may still use it.
class DeviceMemory {
 public:
  std::byte* at_least(std::int64_t bytes, const Device& device, void* stream) {
    const std::int64_t capacity = buffers_.empty() ? 0 : buffers_.back().size_bytes();
    if (bytes > capacity) {
      bool captured = false;
      check_cuda(cuda_api().is_captured({device.index, stream}, &captured));
      if (captured) {
        throw DeviceError("the context's scratch memory of " + std::to_string(capacity) + " bytes must grow to " +
                          std::to_string(bytes) + " while its stream is captured; make a call of that size before");
      }
      buffers_.emplace_back(device, std::max(bytes, 2 * capacity));
    }
    return buffers_.empty() ? nullptr : buffers_.back().as<std::byte>();
  }

 private:
  std::vector<DeviceBuffer> buffers_;
};

}  // namespace

struct Context::Impl {
  Device device;
  void* stream = nullptr;
  Threading threading;
  int threads = 1;
  Buffer scratch;
  Buffer staging;
  DeviceMemory device_scratch;
  DeviceMemory device_staging;
};

Context::Context(Threading threading) : Context(this_cpu(), threading) {}

Context::Context(const Device& device, Threading threading) : impl_(std::make_unique<Impl>()) {
  if (device.kind != DeviceKind::kCpu) require_found_gpu(device);
  impl_->device = device;
  if (threading.threads < 0) {
    throw InvalidArgument("threads = " + std::to_string(threading.threads) + " is negative");
  }
  impl_->threading = threading;
  impl_->threads = threading.threads > 0 ? threading.threads : default_threads();
}

Context::~Context() = default;

int Context::threads() const { return impl_->threads; }

const Device& Context::device() const { return impl_->device; }

void Context::set_stream(void* stream) { impl_->stream = stream; }

void* Context::stream() const { return impl_->stream; }

std::byte* Context::scratch(std::int64_t bytes) {
  if (impl_->device.kind == DeviceKind::kCpu) return impl_->scratch.at_least(bytes);
  return impl_->device_scratch.at_least(bytes, impl_->device, impl_->stream);
}

std::byte* Context::staging(std::int64_t bytes) {
  if (impl_->device.kind == DeviceKind::kCpu) return impl_->staging.at_least(bytes);
  return impl_->device_staging.at_least(bytes, impl_->device, impl_->stream);
}

void Context::run(std::int64_t tasks, void (*fn)(void*, std::int64_t), void* fn_context) {
  if (impl_->threading.parallel_for != nullptr) {
    impl_->threading.parallel_for(impl_->threading.pool, tasks, fn, fn_context);
  } else {
    pool_parallel_for(impl_->threads, tasks, fn, fn_context);
  }
}

}  // namespace scaledmm
