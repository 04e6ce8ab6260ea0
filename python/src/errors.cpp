// Exceptions of the library in Python: InvalidArgument is ValueError, IoError is OSError, the others are classes of
// ours.
#include "scaledmm/error.hpp"

#include "bindings.hpp"

namespace nb = nanobind;

namespace scaledmm::python {
namespace {

PyObject* error_type = nullptr;
PyObject* checkpoint_error_type = nullptr;
PyObject* unsupported_error_type = nullptr;
PyObject* device_error_type = nullptr;

PyObject* new_type(nb::module_& module, const char* name, const char* doc, const nb::tuple& bases) {
  const std::string full_name = std::string("scaledmm.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(full_name.c_str(), doc, bases.ptr(), nullptr);
  if (type == nullptr) throw nb::python_error();
  module.attr(name) = nb::borrow(type);
  return type;
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const CheckpointError& error) {
    PyErr_SetString(checkpoint_error_type, error.what());
  } catch (const Unsupported& error) {
    PyErr_SetString(unsupported_error_type, error.what());
  } catch (const IoError& error) {
    PyErr_SetString(PyExc_OSError, error.what());
  } catch (const DeviceError& error) {
    PyErr_SetString(device_error_type, error.what());
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  const nb::handle runtime_error(PyExc_RuntimeError), value_error(PyExc_ValueError);
  error_type = new_type(module, "Error", "Base of this package's own errors.", nb::make_tuple(runtime_error));
  const nb::handle base(error_type);
  checkpoint_error_type =
      new_type(module, "CheckpointError",
               "A checkpoint breaks a rule of its format, or contradicts itself. The text names the file "
               "and the tensor.",
               nb::make_tuple(base, value_error));
  unsupported_error_type = new_type(module, "UnsupportedError",
                                    "The input is understood, but nothing here can run it. The text has every kernel's "
                                    "reason.",
                                    nb::make_tuple(base));
  device_error_type = new_type(module, "DeviceError", "A call into a device's driver failed.", nb::make_tuple(base));
  nb::register_exception_translator(translate);
}

}  // namespace scaledmm::python
