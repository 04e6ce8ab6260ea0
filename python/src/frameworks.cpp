#include "frameworks.hpp"

namespace nb = nanobind;

namespace scaledmm::python {

nb::object loaded_module(const char* name) {
  PyObject* modules = PyImport_GetModuleDict();
  return nb::borrow(PyDict_GetItemString(modules, name));
}

bool is_instance_of(nb::handle object, const char* module_name, const char* type_name) {
  const nb::object module = loaded_module(module_name);
  if (!module.is_valid()) return false;
  const int answer = PyObject_IsInstance(object.ptr(), nb::object(module.attr(type_name)).ptr());
  if (answer < 0) throw nb::python_error();
  return answer != 0;
}

}  // namespace scaledmm::python
