// Tasks on the threads of an OpenMP runtime that the process has loaded already: torch's.
//
// A second pool on the same cores loses twice. OpenMP's workers spin between regions, so ours wait for them to go to
// sleep; and where the host binds its threads (vLLM does), the mask of the calling thread is one core, which all our
// workers would inherit.
#pragma once

#include <cstdint>

#include "scaledmm/threads.hpp"

namespace scaledmm::python {

// The entry points that compilers and programs call; libgomp, libomp and libiomp5 all export them.
// Source: GCC, libgomp manual, "Implementing PARALLEL construct"; OpenMP 5.0, omp_get_max_threads.
struct OpenMp {
  using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
  using MaxThreads = int (*)();

  Parallel parallel = nullptr;       // GOMP_parallel
  MaxThreads max_threads = nullptr;  // omp_get_max_threads; nullptr: the number of threads comes from elsewhere
};

// From now on calls run on these threads; a null `parallel` brings the library's own pool back. So does a fork, in the
// child: the runtime would wait for threads that only the parent has.
void use_openmp(const OpenMp& runtime);

// Completes what set_num_threads and the call left open: the runtime's threads, and where no number was named (0) as
// many as the runtime would take for the calling thread.
Threading on_host_threads(Threading threading);

}  // namespace scaledmm::python
