#include "device/thread_pool.hpp"

#include <immintrin.h>

#include <pthread.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "device/environment.hpp"
#include "scaledmm/device.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

// A worker looks for work this many pauses long before it sleeps: about 30 us, the gap between two layers of a model.
constexpr int kSpinPauses = 1000;

thread_local bool inside_task = false;
thread_local int thread_index = 0;

// One region: what to run, and how far it is. `generation` in the upper half of `claims` keeps a worker that wakes late
// from claiming tasks of a later region.
class Pool {
 public:
  // False when the pool is taken by another thread.
  bool run(int threads, std::int64_t tasks, void (*fn)(void*, std::int64_t), void* context) {
    const std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy.owns_lock()) return false;
    ensure_workers(threads - 1);
    // Nothing can be claimed while the region changes: a worker still inside the last one would see the new task count.
    claims_.store(std::uint64_t{generation_ + 1} << 32 | 0xffffffffu, std::memory_order_release);
    fn_ = fn;
    context_ = context;
    tasks_.store(static_cast<std::uint32_t>(tasks), std::memory_order_release);
    wanted_.store(threads - 1, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    ++generation_;
    claims_.store(std::uint64_t{generation_} << 32, std::memory_order_release);
    {
      const std::lock_guard lock(mutex_);
      published_.store(generation_, std::memory_order_release);
    }
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_.notify_all();
    work(generation_);
    for (int pauses = 0; done_.load(std::memory_order_acquire) != static_cast<std::uint32_t>(tasks); ++pauses) {
      if (pauses < kSpinPauses) {
        _mm_pause();
      } else {
        std::this_thread::yield();
      }
    }
    return true;
  }

 private:
  void ensure_workers(int count) {
    while (static_cast<int>(workers_.size()) < count) {
      const int index = static_cast<int>(workers_.size());
      try {
        workers_.emplace_back([this, index, seen = generation_] { worker(index, seen); });
      } catch (const std::system_error&) {
        return;  // no more threads to be had: the ones there are do the work
      }
      workers_.back().detach();
    }
  }

  // Claims tasks of one region until none is left.
  void work(std::uint32_t generation) {
    inside_task = true;
    for (std::uint64_t claim = claims_.load(std::memory_order_acquire);;) {
      const auto task = static_cast<std::uint32_t>(claim);
      if (claim >> 32 != generation || task >= tasks_.load(std::memory_order_acquire)) break;
      if (!claims_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel)) continue;
      fn_(context_, std::int64_t{task});
      done_.fetch_add(1, std::memory_order_acq_rel);
      claim = claims_.load(std::memory_order_acquire);
    }
    inside_task = false;
  }

  void worker(int index, std::uint32_t seen) {
    thread_index = index + 1;
    for (;;) {
      for (int pauses = 0; pauses < kSpinPauses && published_.load(std::memory_order_acquire) == seen; ++pauses) {
        _mm_pause();
      }
      if (published_.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] { return published_.load(std::memory_order_acquire) != seen; });
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      }
      seen = published_.load(std::memory_order_acquire);
      if (index < wanted_.load(std::memory_order_relaxed)) work(seen);
    }
  }

  std::mutex busy_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_ = 0;
  std::atomic<int> wanted_ = 0;
  std::uint32_t generation_ = 0;
  std::atomic<std::uint32_t> published_ = 0;
  void (*fn_)(void*, std::int64_t) = nullptr;
  void* context_ = nullptr;
  std::atomic<std::uint32_t> tasks_ = 0;
  alignas(64) std::atomic<std::uint64_t> claims_ = 0;
  alignas(64) std::atomic<std::uint32_t> done_ = 0;
};

// Never destroyed: workers outlive main(). A forked child has no workers, and starts a pool of its own.
std::atomic<Pool*> current_pool = nullptr;

Pool& pool() {
  static const bool made = [] {
    current_pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { current_pool = new (std::nothrow) Pool; });
    return true;
  }();
  static_cast<void>(made);
  return *current_pool;
}

}  // namespace

void pool_parallel_for(int threads, std::int64_t tasks, void (*fn)(void*, std::int64_t), void* context) {
  constexpr std::int64_t kMaxTasks = 1 << 30;
  const int useful = static_cast<int>(std::min<std::int64_t>(threads, tasks));
  if (useful > 1 && tasks <= kMaxTasks && !inside_task && pool().run(useful, tasks, fn, context)) return;
  for (std::int64_t task = 0; task < tasks; ++task) fn(context, task);
}

int pool_thread_index() { return thread_index; }

int default_threads() {
  constexpr int kMaxThreads = 4096;
  const std::optional<std::string> text = environment_variable("SCALEDMM_NUM_THREADS");
  if (!text) return this_cpu().threads;
  int threads = 0;
  const char* end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, threads);
  if (error != std::errc() || rest != end || threads < 1 || threads > kMaxThreads) {
    throw InvalidArgument("SCALEDMM_NUM_THREADS = " + *text + " is not a number from 1 to " +
                          std::to_string(kMaxThreads));
  }
  return threads;
}

}  // namespace scaledmm
