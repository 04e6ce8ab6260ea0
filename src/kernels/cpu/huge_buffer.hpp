// Zeroed memory for packed weights: aligned to 2 MiB and backed by huge pages where the system gives them, so that
// streaming through it costs no TLB misses. Large buffers are not touched here: a page belongs to the memory node of
// the thread that writes it first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace scaledmm {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Errors: std::bad_alloc.
  explicit HugeBuffer(std::int64_t bytes);
  // Bytes that lie elsewhere, to be read only: in a mapped file, which `memory` keeps.
  HugeBuffer(std::span<const std::byte> bytes, std::shared_ptr<const void> memory);
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        is_owner_(std::exchange(other.is_owner_, true)),
        memory_(std::move(other.memory_)) {}
  HugeBuffer& operator=(HugeBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(is_owner_, other.is_owner_);
    std::swap(memory_, other.memory_);
    return *this;
  }

  std::int64_t size_bytes() const { return bytes_; }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), static_cast<std::size_t>(bytes_)};
  }
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
  bool is_owner_ = true;
  std::shared_ptr<const void> memory_;  // keeps the bytes of another owner
};

}  // namespace scaledmm
