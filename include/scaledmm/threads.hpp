// Threads for CPU kernels: a pool of our own, or the caller's.
#pragma once

#include <cstdint>

namespace scaledmm {

// Runs fn(context, task) for every task in [0, tasks), on any threads, and returns when all have run. A host with a
// pool of its own supplies one. fn does not throw. May be called from several threads at once.
using ParallelFor = void (*)(void* pool, std::int64_t tasks, void (*fn)(void* context, std::int64_t task),
                             void* context);

struct Threading {
  int threads = 0;                     // 0: SCALEDMM_NUM_THREADS, else the CPUs of the affinity mask and cgroup quota
  ParallelFor parallel_for = nullptr;  // nullptr: the library's own pool
  void* pool = nullptr;                // passed to parallel_for
};

}  // namespace scaledmm
