// Threads of calls that name no number, and a context for each calling thread.
#include <atomic>
#include <cstdint>
#include <map>
#include <utility>

#include "bindings.hpp"
#include "openmp_threads.hpp"
#include "scaledmm/error.hpp"

namespace nb = nanobind;

namespace scaledmm::python {
namespace {

std::atomic<int> default_number{0};

void set_num_threads(int threads) {
  if (threads < 0) throw InvalidArgument("threads = " + std::to_string(threads) + " is negative");
  default_number = threads;
}

}  // namespace

Threading threading(int threads) {
  Threading result;
  result.threads = threads == 0 ? default_number.load() : threads;
  return on_host_threads(result);
}

Context& thread_context(int threads) {
  thread_local std::map<std::pair<int, void*>, Context> contexts;
  const Threading wanted = threading(threads);
  const std::pair key(wanted.threads, wanted.pool);
  const auto found = contexts.find(key);
  if (found != contexts.end()) return found->second;
  return contexts.try_emplace(key, wanted).first->second;
}

void bind_threads(nb::module_& module) {
  module.def(
      "_use_openmp",
      [](std::uintptr_t parallel, std::uintptr_t max_threads) {
        use_openmp({reinterpret_cast<OpenMp::Parallel>(parallel), reinterpret_cast<OpenMp::MaxThreads>(max_threads)});
      },
      nb::arg("parallel"), nb::arg("max_threads"),
      "Runs calls on the threads of an OpenMP runtime: the addresses of its GOMP_parallel and omp_get_max_threads. 0 "
      "and 0: "
      "the library's own threads again; a max_threads of 0: as many as without it.");
  module.def("set_num_threads", set_num_threads, nb::arg("threads"),
             "Threads of calls that name no number. 0: SCALEDMM_NUM_THREADS, else the CPUs that this process may use.");
  module.def(
      "get_num_threads", [] { return thread_context(0).threads(); }, "Threads of calls that name no number.");
}

}  // namespace scaledmm::python
