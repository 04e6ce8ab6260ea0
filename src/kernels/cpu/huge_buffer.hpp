// Zeroed memory for packed weights: aligned to 2 MiB and backed by huge pages where the system gives them, so that
// streaming through it costs no TLB misses. Large buffers are not touched here: a page belongs to the memory node of
// the thread that writes it first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace scaledmm {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Errors: std::bad_alloc.
  explicit HugeBuffer(std::int64_t bytes);
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  HugeBuffer& operator=(HugeBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::int64_t size_bytes() const { return bytes_; }
  template <class T>
  T* as() {
    return static_cast<T*>(data_);
  }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace scaledmm
