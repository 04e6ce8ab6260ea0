// The library's own threads: one pool a process, sleeping when idle.
#pragma once

#include <cstdint>

namespace scaledmm {

// Runs fn(context, task) for every task in [0, tasks) on at most `threads` threads, the caller among them, and returns
// when all have run. Tasks are claimed one by one from a counter, so a worker that wakes late costs nothing: the caller
// finishes without it. A call from inside a task, or while another thread uses the pool, runs on the caller alone.
void pool_parallel_for(int threads, std::int64_t tasks, void (*fn)(void* context, std::int64_t task), void* context);

// 0 on a thread that is not the pool's, else 1, 2 ...: the same number as long as the thread lives.
int pool_thread_index();

// SCALEDMM_NUM_THREADS, else the CPUs of the affinity mask and the cgroup quota.
// Errors: InvalidArgument when the variable is not a number from 1 to 4096.
int default_threads();

}  // namespace scaledmm
