#include "kernels/cpu/huge_buffer.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace scaledmm {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kCacheLine = 64;

}  // namespace

HugeBuffer::HugeBuffer(std::int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  // Small layers share pages with each other; rounding each of them up to 2 MiB would waste more than it gains.
  const std::size_t alignment = static_cast<std::size_t>(bytes) >= kHugePage ? kHugePage : kCacheLine;
  const std::size_t rounded = (static_cast<std::size_t>(bytes) + alignment - 1) / alignment * alignment;
  data_ = std::aligned_alloc(alignment, rounded);
  if (data_ == nullptr) throw std::bad_alloc();
  // Advice only: without huge pages the buffer works as well.
  if (alignment == kHugePage) madvise(data_, rounded, MADV_HUGEPAGE);
  std::memset(data_, 0, rounded);
}

HugeBuffer::~HugeBuffer() { std::free(data_); }

}  // namespace scaledmm
