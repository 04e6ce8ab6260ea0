#include "openmp_threads.hpp"

#include <pthread.h>

#include <atomic>

namespace scaledmm::python {
namespace {

std::atomic<OpenMp::Parallel> parallel = nullptr;
std::atomic<OpenMp::MaxThreads> max_threads = nullptr;

struct Region {
  void (*fn)(void*, std::int64_t);
  void* context;
  std::int64_t tasks;
  std::atomic<std::int64_t> next = 0;
};

// What each thread of a region does: takes the next task that nobody has.
void work(void* data) {
  auto& region = *static_cast<Region*>(data);
  for (std::int64_t task; (task = region.next.fetch_add(1, std::memory_order_relaxed)) < region.tasks;) {
    region.fn(region.context, task);
  }
}

void openmp_parallel_for(void* pool, std::int64_t tasks, void (*fn)(void*, std::int64_t), void* context) {
  Region region{fn, context, tasks};
  if (tasks < 2) {
    work(&region);
    return;
  }
  // 0 is "as many as usual": libgomp ends the threads that a smaller region leaves over, and starts them anew for the
  // next one.
  reinterpret_cast<OpenMp::Parallel>(pool)(work, &region, 0, 0);
}

}  // namespace

void use_openmp(const OpenMp& runtime) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] { parallel = nullptr; });
  max_threads = runtime.max_threads;
  parallel = runtime.parallel;
}

Threading on_host_threads(Threading threading) {
  const OpenMp::Parallel host = parallel;
  if (host == nullptr) return threading;
  const OpenMp::MaxThreads host_threads = max_threads;
  if (threading.threads == 0 && host_threads != nullptr) threading.threads = host_threads();
  threading.parallel_for = openmp_parallel_for;
  threading.pool = reinterpret_cast<void*>(host);
  return threading;
}

}  // namespace scaledmm::python
