// The parts of the extension module, in the order in which they are bound.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "scaledmm/checkpoint.hpp"
#include "scaledmm/linear.hpp"
#include "scaledmm/registry.hpp"

namespace scaledmm::python {

void bind_errors(nanobind::module_& module);
void bind_scheme(nanobind::module_& module);
void bind_registry(nanobind::module_& module);
void bind_checkpoint(nanobind::module_& module);
void bind_dense(nanobind::module_& module);
void bind_linear(nanobind::module_& module);
void bind_quantize(nanobind::module_& module);
void bind_threads(nanobind::module_& module);

// This thread's context for calls on `threads` threads; 0: what set_num_threads said, else the library's default.
Context& thread_context(int threads);
// The same number for packing.
Threading threading(int threads);

// How a kernel is chosen, as the keyword arguments of Python have it.
struct Choice {
  std::optional<std::string> kernel;
  std::optional<std::string> backend;
  std::optional<std::vector<std::string>> disabled;
  bool require_batch_invariant = false;

  SelectOptions options() const;
};

}  // namespace scaledmm::python
