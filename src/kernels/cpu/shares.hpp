// Items dealt to threads in contiguous shares. A thread takes the items of its own share first, the same ones in every
// call, and then what others have left. So the memory that a thread touched first when it packed weights is what it
// reads later: on machines with several memory nodes that is its own node's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "device/thread_pool.hpp"
#include "kernels/cpu/huge_buffer.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

// Multiplications below which waking a thread costs more than it brings: about 10 us of one core.
inline constexpr std::int64_t kWorkPerThread = 1 << 17;
inline constexpr std::int64_t kPackPerThread = 1 << 14;  // the same for activations to pack

class Shares {
 public:
  static constexpr std::int64_t kAlignment = 64;

  // Memory that shares for so many threads need, aligned to kAlignment. It must outlive them.
  static std::int64_t bytes(std::int64_t threads) { return threads * static_cast<std::int64_t>(sizeof(Share)); }

  Shares(std::int64_t items, std::int64_t threads, std::byte* memory)
      : count_(threads), shares_(reinterpret_cast<Share*>(memory)) {
    for (std::int64_t i = 0; i < count_; ++i) {
      auto* share = new (memory + i * static_cast<std::int64_t>(sizeof(Share))) Share;
      share->next = items * i / count_;
      share->end = items * (i + 1) / count_;
    }
  }

  // Calls fn(item) until no item is left. For every thread that takes part.
  template <class Fn>
  void run(const Fn& fn) const {
    const std::int64_t own = pool_thread_index() % count_;
    for (std::int64_t i = 0; i < count_; ++i) {
      Share& share = shares_[(own + i) % count_];
      for (std::int64_t item; (item = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) fn(item);
    }
  }

 private:
  struct alignas(kAlignment) Share {
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };

  std::int64_t count_;
  Share* shares_;
};

// Packs panels: each is touched first by the thread that will read it.
template <class Fn>
void share_panels(std::int64_t panels, Context& context, const Fn& fn) {
  const std::int64_t threads = std::min<std::int64_t>(context.threads(), panels);
  HugeBuffer memory(Shares::bytes(threads));
  const Shares shares(panels, threads, memory.as<std::byte>());
  context.parallel(threads, [&](std::int64_t) { shares.run(fn); });
}

}  // namespace scaledmm
