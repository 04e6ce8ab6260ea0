// The extension module scaledmm._core: the library's contract in Python, without logic of its own.
#include "array.hpp"
#include "bindings.hpp"

NB_MODULE(_core, module) {
  using namespace scaledmm::python;
  nanobind::set_leak_warnings(false);  // objects that live until the interpreter ends are the user's business
  bind_errors(module);
  bind_scheme(module);
  bind_array(module);
  bind_registry(module);
  bind_quantize(module);
  bind_dense(module);
  bind_linear(module);
  bind_checkpoint(module);
  bind_threads(module);
}
