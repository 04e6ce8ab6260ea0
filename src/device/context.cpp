#include <sys/mman.h>

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
      constexpr std::int64_t kCacheLine = 64;
      constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
      const std::int64_t alignment = bytes < kHugePage ? kCacheLine : kHugePage;
      const std::int64_t rounded = (bytes + bytes / 4 + alignment - 1) / alignment * alignment;
      std::free(data_);
      capacity_ = 0;
      data_ = static_cast<std::byte*>(
          std::aligned_alloc(static_cast<std::size_t>(alignment), static_cast<std::size_t>(rounded)));
      if (data_ == nullptr) throw std::bad_alloc();
      // Advice only. In small pages a block of activations falls on cache sets by chance, some of them too often.
      if (alignment == kHugePage) madvise(data_, static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
      capacity_ = rounded;
    }
    return data_;
  }

 private:
  std::byte* data_ = nullptr;
  std::int64_t capacity_ = 0;
};

// Memory of a GPU that only grows, behind kZeroedBytes of zeros. What it outgrew is kept: work on the stream and
// captured graphs may still use it.
class DeviceMemory {
 public:
  std::byte* at_least(std::int64_t bytes, const Device& device, void* stream) {
    const std::int64_t capacity = buffers_.empty() ? 0 : buffers_.back().size_bytes() - kZeroedBytes;
    if (bytes > capacity) {
      bool captured = false;
      check_cuda(cuda_api().is_captured({device.index, stream}, &captured));
      if (captured) {
        throw DeviceError("the context's scratch memory of " + std::to_string(capacity) + " bytes must grow to " +
                          std::to_string(bytes) + " while its stream is captured; make a call of that size before");
      }
      constexpr std::byte kZeros[kZeroedBytes]{};
      buffers_.emplace_back(device, kZeroedBytes + std::max(bytes, 2 * capacity));
      buffers_.back().copy_from_host(kZeros, kZeroedBytes);
    }
    return buffers_.empty() ? nullptr : buffers_.back().as<std::byte>() + kZeroedBytes;
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
