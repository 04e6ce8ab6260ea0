#include <cstdlib>
#include <new>

#include "device/thread_pool.hpp"
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

}  // namespace

struct Context::Impl {
  Threading threading;
  int threads = 1;
  Buffer scratch;
  Buffer staging;
};

Context::Context(Threading threading) : impl_(std::make_unique<Impl>()) {
  if (threading.threads < 0) {
    throw InvalidArgument("threads = " + std::to_string(threading.threads) + " is negative");
  }
  impl_->threading = threading;
  impl_->threads = threading.threads > 0 ? threading.threads : default_threads();
}

Context::~Context() = default;

int Context::threads() const { return impl_->threads; }

std::byte* Context::scratch(std::int64_t bytes) { return impl_->scratch.at_least(bytes); }

std::byte* Context::staging(std::int64_t bytes) { return impl_->staging.at_least(bytes); }

void Context::run(std::int64_t tasks, void (*fn)(void*, std::int64_t), void* fn_context) {
  if (impl_->threading.parallel_for != nullptr) {
    impl_->threading.parallel_for(impl_->threading.pool, tasks, fn, fn_context);
  } else {
    pool_parallel_for(impl_->threads, tasks, fn, fn_context);
  }
}

}  // namespace scaledmm
