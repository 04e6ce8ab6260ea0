#include "kernels/cpu/huge_buffer.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace scaledmm {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kCacheLine = 64;

constexpr std::size_t round_up(std::size_t bytes, std::size_t step) { return (bytes + step - 1) / step * step; }

// Whole huge pages from the system, zero and untouched. Their beginning is found inside a mapping one page longer.
std::byte* map_pages(std::size_t bytes) {
  void* mapped = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(mapped);
  const std::size_t before =
      round_up(reinterpret_cast<std::uintptr_t>(mapped), kHugePage) - reinterpret_cast<std::uintptr_t>(mapped);
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePage - before);
  // Advice only: without huge pages the buffer works as well.
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  return begin + before;
}

}  // namespace

HugeBuffer::HugeBuffer(std::int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const auto size = static_cast<std::size_t>(bytes);
  if (size >= kHugePage) {
    data_ = map_pages(round_up(size, kHugePage));
    return;
  }
  // Small layers share pages with each other; rounding each of them up to 2 MiB would waste more than it gains.
  const std::size_t rounded = round_up(size, kCacheLine);
  data_ = std::aligned_alloc(kCacheLine, rounded);
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_, 0, rounded);
}

HugeBuffer::HugeBuffer(std::span<const std::byte> bytes, std::shared_ptr<const void> memory)
    : data_(const_cast<std::byte*>(bytes.data())),
      bytes_(static_cast<std::int64_t>(bytes.size())),
      is_owner_(false),
      memory_(std::move(memory)) {}

HugeBuffer::~HugeBuffer() {
  if (!is_owner_) return;
  if (static_cast<std::size_t>(bytes_) >= kHugePage) {
    munmap(data_, round_up(static_cast<std::size_t>(bytes_), kHugePage));
  } else {
    std::free(data_);
  }
}

}  // namespace scaledmm
