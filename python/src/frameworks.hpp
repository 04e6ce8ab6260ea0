// Frameworks that are loaded; none is imported here.
#pragma once

#include <nanobind/nanobind.h>

namespace scaledmm::python {

// An imported module, or null: an object of a framework exists only after its import.
nanobind::object loaded_module(const char* name);

// Whether an object is one of module_name.type_name.
bool is_instance_of(nanobind::handle object, const char* module_name, const char* type_name);

}  // namespace scaledmm::python
