#include "borrowed.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>

#include "array.hpp"
#include "dtypes.hpp"
#include "scaledmm/error.hpp"

namespace nb = nanobind;

namespace scaledmm::python {
namespace {

std::string class_name(nb::handle object) { return nb::type_name(object.type()).c_str(); }

// getattr(object, name), or null without an error.
nb::object attribute(nb::handle object, const char* name) {
  PyObject* value = PyObject_GetAttrString(object.ptr(), name);
  if (value == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw nb::python_error();
    PyErr_Clear();
  }
  return nb::steal(value);
}

[[noreturn]] void not_exported(const char* what, nb::handle object, const std::string& reason) {
  throw nb::buffer_error((std::string(what) + ": " + class_name(object) + " is not exportable: " + reason).c_str());
}

// Errors: InvalidArgument for memory that is not where it must be.
void check_place(int gpu, const BorrowOptions& options) {
  if (options.gpu == kAnywhere || options.gpu == gpu) return;
  throw InvalidArgument(std::string(options.what) + " is in the memory of " + place_name(gpu) +
                        ", must be in that of " + place_name(options.gpu) + ": copy it there first");
}

int checked_place(DlDevice device, const BorrowOptions& options) {
  int gpu = kHost;
  if (device.type == kDlCuda || device.type == kDlCudaManaged) {
    gpu = device.id;
  } else if (device.type != kDlCpu && device.type != kDlCudaHost) {
    throw InvalidArgument(std::string(options.what) + " is in the memory of DLPack device type " +
                          std::to_string(device.type) + ", which no layer runs on");
  }
  check_place(gpu, options);
  return gpu;
}

// The table skips the question that torch's own __dlpack__ asks.
void check_no_gradient(nb::handle object, const char* what) {
  const nb::object wants = attribute(object, "requires_grad");
  if (wants.is_valid() && wants.is(Py_True)) {
    not_exported(what, object, "it requires a gradient, and layers are for inference; pass x.detach()");
  }
}

template <class Managed>
std::shared_ptr<const void> own(Managed* managed) {
  return {managed, [](Managed* self) {
            if (self->deleter != nullptr) self->deleter(self);
          }};
}

template <class Managed>
Managed* open_capsule(const nb::object& capsule, const char* name, const char* used_name) {
  if (PyCapsule_IsValid(capsule.ptr(), name) == 0) return nullptr;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (PyCapsule_SetName(capsule.ptr(), used_name) != 0) throw nb::python_error();
  return managed;
}

// object.__dlpack__(max_version=(1, 3)); producers from before the argument existed are called without. On a GPU the
// producer makes its work visible to the stream: the default one is called 1 there.
nb::object dlpack_capsule(nb::handle object, int gpu, void* stream) {
  nb::dict arguments;
  if (gpu != kHost) arguments["stream"] = stream == nullptr ? 1 : reinterpret_cast<std::uintptr_t>(stream);
  arguments["max_version"] = nb::make_tuple(kDlVersion.major, kDlVersion.minor);
  try {
    return object.attr("__dlpack__")(**arguments);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  nb::del(arguments["max_version"]);
  return object.attr("__dlpack__")(**arguments);
}

// numpy exports only its own dtypes; those of ml_dtypes are seen through an integer view of the same array.
nb::object carrier_of(nb::handle object, std::optional<DType>& dtype) {
  const nb::object dtype_object = attribute(object, "dtype"), view = attribute(object, "view");
  if (!dtype_object.is_valid() || !view.is_valid()) return {};
  const std::optional<DType> named = dtype_from_any_name(nb::str(dtype_object).c_str());
  if (!named || (*named != DType::kBF16 && size_bytes(*named) != 1)) return {};
  if (!dtype) dtype = named;
  return view(size_bytes(*named) == 1 ? "uint8" : "uint16");
}

// Of the type itself, not of a base: subclasses may hold their data elsewhere (torch's fake tensors have none).
const DlExchangeApi* find_exchange_api(nb::handle type) {
  const nb::object own = type.attr("__dict__").attr("get")("__dlpack_c_exchange_api__");
  if (PyCapsule_IsValid(own.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  auto* api = static_cast<const DlExchangeApi*>(PyCapsule_GetPointer(own.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->version.major != kDlVersion.major) api = api->previous;
  return api;
}

}  // namespace

std::string place_name(int gpu) { return gpu == kHost ? "the processor" : "cuda:" + std::to_string(gpu); }

const DlExchangeApi* exchange_api(nb::handle object) {
  // By type. The types are kept, so that no other one gets their address.
  static std::unordered_map<PyObject*, const DlExchangeApi*> known;
  const nb::handle type = object.type();
  if (const auto found = known.find(type.ptr()); found != known.end()) return found->second;
  type.inc_ref();
  return known[type.ptr()] = find_exchange_api(type);
}

std::shared_ptr<const void> hold(nb::object object) {
  PyObject* reference = object.release().ptr();
  return {reference, [](PyObject* self) {
            if (!nb::is_alive()) return;
            const nb::gil_scoped_acquire gil;
            Py_DECREF(self);
          }};
}

Borrowed::Borrowed(nb::handle object, const BorrowOptions& options) {
  if (nb::isinstance<Array>(object)) {
    const Array& array = *nb::inst_ptr<Array>(object);
    view_ = array.view;
    read_only_ = array.read_only;
    owner_ = array.owner;
    check_place(kHost, options);
    if (options.dtype && *options.dtype != view_.dtype) {
      if (!is_carrier(dl_type(view_.dtype), *options.dtype)) {
        throw InvalidArgument(std::string(options.what) + " is " + std::string(name(view_.dtype)) + ", not " +
                              std::string(name(*options.dtype)));
      }
      view_.dtype = *options.dtype;
    }
  } else if (const DlExchangeApi* api = exchange_api(object)) {
    check_no_gradient(object, options.what);
    take_table(*api, object, options);
  } else {
    take_protocol(object, options);
  }
  if (options.writable && read_only_) throw InvalidArgument(std::string(options.what) + " is read-only");
}

Borrowed Borrowed::array_or_number(nb::handle object, const BorrowOptions& options) {
  if (PyNumber_Check(object.ptr()) == 0 || attribute(object, "__dlpack__").is_valid()) return {object, options};
  const bool real = PyIndex_Check(object.ptr()) == 0;
  auto value = std::make_shared<float>();
  static_assert(sizeof(float) == sizeof(std::int32_t));
  if (real) {
    *value = nb::cast<float>(nb::float_(object));
  } else {
    const auto whole = nb::cast<std::int32_t>(nb::int_(object));
    std::memcpy(value.get(), &whole, sizeof whole);
  }
  Borrowed result;
  result.view_ = TensorView(value.get(), real ? DType::kF32 : DType::kInt32, Shape{1});
  result.read_only_ = true;
  result.owner_ = std::move(value);
  return result;
}

Borrowed Borrowed::optional(nb::handle object, const BorrowOptions& options) {
  if (object.is_none()) return {};
  return array_or_number(object, options);
}

void Borrowed::take_table(const DlExchangeApi& api, nb::handle object, const BorrowOptions& options) {
  if (api.tensor_from_object != nullptr && !options.writable && !options.outlives_call) {
    DlTensor tensor{};
    if (api.tensor_from_object(object.ptr(), &tensor) != 0) throw nb::python_error();
    describe(tensor, options);
    return;
  }
  DlManagedTensorVersioned* managed = nullptr;
  if (api.managed_from_object(object.ptr(), &managed) != 0) throw nb::python_error();
  take_managed(managed, options);
}

void Borrowed::take_managed(DlManagedTensorVersioned* managed, const BorrowOptions& options) {
  owner_ = own(managed);
  if (managed->version.major != kDlVersion.major) {
    throw nb::buffer_error((std::string(options.what) + " comes in DLPack version " +
                            std::to_string(managed->version.major) + ", this build reads version 1")
                               .c_str());
  }
  read_only_ = (managed->flags & kDlReadOnly) != 0;
  describe(managed->tensor, options);
}

void Borrowed::take_protocol(nb::handle object, const BorrowOptions& options) {
  if (!attribute(object, "__dlpack__").is_valid()) {
    throw nb::type_error((std::string(options.what) + " is a " + class_name(object) +
                          ", which has no __dlpack__; pass a numpy, torch, jax or scaledmm array")
                             .c_str());
  }
  int gpu = kHost;
  if (const nb::object device = attribute(object, "__dlpack_device__"); device.is_valid()) {
    const nb::object pair = device();
    gpu =
        checked_place({nb::cast<std::int32_t>(nb::int_(pair[0])), nb::cast<std::int32_t>(nb::int_(pair[1]))}, options);
  }
  BorrowOptions resolved = options;
  nb::object capsule;
  try {
    capsule = dlpack_capsule(object, gpu, options.stream);
  } catch (nb::python_error& error) {
    const nb::object carrier = carrier_of(object, resolved.dtype);
    if (!carrier.is_valid()) not_exported(options.what, object, error.what());
    capsule = dlpack_capsule(carrier, gpu, options.stream);
  }
  if (auto* versioned =
          open_capsule<DlManagedTensorVersioned>(capsule, "dltensor_versioned", "used_dltensor_versioned")) {
    take_managed(versioned, resolved);
  } else if (auto* legacy = open_capsule<DlManagedTensor>(capsule, "dltensor", "used_dltensor")) {
    owner_ = own(legacy);
    describe(legacy->tensor, resolved);
  } else {
    not_exported(options.what, object, "its __dlpack__ gave no DLPack capsule");
  }
}

void Borrowed::describe(const DlTensor& tensor, const BorrowOptions& options) {
  gpu_ = checked_place(tensor.device, options);
  const std::optional<DType> own_dtype = dtype_from_dl(tensor.dtype);
  std::optional<DType> dtype = options.dtype ? options.dtype : own_dtype;
  if (options.dtype && options.dtype != own_dtype && !is_carrier(tensor.dtype, *options.dtype)) {
    throw InvalidArgument(std::string(options.what) + " is " + text(tensor.dtype) + ", not " +
                          std::string(name(*options.dtype)));
  }
  if (!dtype) {
    throw InvalidArgument(std::string(options.what) + " is " + text(tensor.dtype) +
                          ", which is no element type of quantized layers");
  }
  const auto rank = static_cast<std::size_t>(std::max(tensor.rank, 0));
  const Shape shape(std::span<const std::int64_t>(tensor.shape, rank));
  view_ = TensorView(static_cast<std::byte*>(tensor.data) + tensor.byte_offset, *dtype, shape);
  if (tensor.data == nullptr) view_.data = nullptr;
  for (std::size_t i = 0; tensor.strides != nullptr && i < rank; ++i) view_.strides[i] = tensor.strides[i];
}

}  // namespace scaledmm::python
