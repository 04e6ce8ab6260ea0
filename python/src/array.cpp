#include "array.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "borrowed.hpp"
#include "dtypes.hpp"
#include "scaledmm/error.hpp"

namespace nb = nanobind;

namespace scaledmm::python {
namespace {

nb::tuple tuple_of(const Shape& values) {
  nb::list list;
  for (const std::int64_t value : values.sizes()) list.append(value);
  return nb::tuple(list);
}

// A DLPack tensor with what it points to. Managed: DlManagedTensor or DlManagedTensorVersioned.
template <class Managed>
struct Export {
  Managed managed{};
  Shape shape;
  Shape strides;
  std::shared_ptr<const void> owner;
};

template <class Managed>
Managed* make_managed(const Array& array) {
  auto exported = std::make_unique<Export<Managed>>();
  exported->shape = array.view.shape;
  exported->strides = array.view.strides;
  exported->owner = array.owner;
  DlTensor& tensor = exported->managed.tensor;
  tensor.data = array.view.data;
  tensor.device = {kDlCpu, 0};
  tensor.rank = static_cast<std::int32_t>(array.view.shape.rank());
  tensor.dtype = array.as_carrier ? carrier_type(array.view.dtype) : dl_type(array.view.dtype);
  tensor.shape = &exported->shape[0];
  tensor.strides = &exported->strides[0];
  exported->managed.manager = exported.get();
  exported->managed.deleter = [](Managed* self) { delete static_cast<Export<Managed>*>(self->manager); };
  return &exported.release()->managed;
}

// Deletes what nobody took over.
template <class Managed>
void drop_unused(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

nb::object checked(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

Array copy_of(const Array& array) {
  Array copy = Array::allocate(array.view.dtype, array.view.shape);
  copy.as_carrier = array.as_carrier;
  const Shape& shape = array.view.shape;
  const std::int64_t bytes = size_bytes(array.view.dtype), count = shape.elements();
  for (std::int64_t flat = 0; flat < count; ++flat) {
    std::int64_t rest = flat, offset = 0;
    for (std::size_t i = shape.rank(); i-- > 0; rest /= shape[i]) offset += rest % shape[i] * array.view.strides[i];
    std::memcpy(static_cast<std::byte*>(copy.view.data) + flat * bytes,
                static_cast<const std::byte*>(array.view.data) + offset * bytes, static_cast<std::size_t>(bytes));
  }
  return copy;
}

nb::object to_dlpack(const Array& array, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                     nb::handle copy) {
  if (!stream.is_none()) throw InvalidArgument("stream must be None: the array is in the processor's memory");
  if (!dl_device.is_none() && nb::cast<std::int32_t>(nb::int_(dl_device[0])) != kDlCpu) {
    throw nb::buffer_error("the array is in the processor's memory and is not copied to other devices");
  }
  const bool copied = copy.is(Py_True);
  const Array source = copied ? copy_of(array) : array;
  const bool versioned = !max_version.is_none() && nb::cast<std::int64_t>(max_version[0]) >= kDlVersion.major;
  if (!versioned) {
    if (source.read_only) throw nb::buffer_error("the array is read-only, which DLPack can say from version 1 only");
    return checked(PyCapsule_New(make_managed<DlManagedTensor>(source), "dltensor",
                                 [](PyObject* capsule) { drop_unused<DlManagedTensor>(capsule, "dltensor"); }));
  }
  auto* managed = make_managed<DlManagedTensorVersioned>(source);
  managed->version = kDlVersion;
  managed->flags = (source.read_only ? kDlReadOnly : 0) | (copied ? kDlIsCopied : 0);
  return checked(PyCapsule_New(managed, "dltensor_versioned", [](PyObject* capsule) {
    drop_unused<DlManagedTensorVersioned>(capsule, "dltensor_versioned");
  }));
}

// ml_dtypes' scalar type of that name, or nothing when the package is not installed.
nb::object ml_dtype(DType dtype) {
  try {
    return nb::module_::import_("ml_dtypes").attr(framework_name(dtype));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ImportError)) throw;
    return {};
  }
}

bool numpy_has(DType dtype) {
  return dl_type(dtype).code == kDlInt || dl_type(dtype).code == kDlUInt || dl_type(dtype).code == kDlFloat;
}

nb::object as_numpy(const Array& array, nb::handle dtype, nb::handle copy) {
  nb::object result = array.numpy();
  if (!dtype.is_none()) return result.attr("astype")(dtype, nb::arg("copy") = copy.is(Py_True));
  return copy.is(Py_True) ? result.attr("copy")() : result;
}

Array array_of(nb::handle object, nb::handle dtype) {
  const Borrowed borrowed(object, {.what = "x", .dtype = optional_dtype_from(dtype), .outlives_call = true});
  return {borrowed.view(), borrowed.read_only(), borrowed.owner()};
}

std::string described(const Array& array) {
  return "scaledmm.Array(" + std::string(name(array.view.dtype)) + ", shape " + array.view.shape.text() +
         (array.read_only ? ", read-only)" : ")");
}

}  // namespace

Array Array::allocate(DType dtype, const Shape& shape) {
  constexpr std::size_t kAlignment = 64;
  const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(shape.elements() * size_bytes(dtype), 1));
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) throw std::bad_alloc();
  return {TensorView(memory, dtype, shape), false, std::shared_ptr<const void>(memory, std::free)};
}

nb::object Array::numpy() const {
  const nb::module_ numpy = nb::module_::import_("numpy");
  if (numpy_has(view.dtype)) return numpy.attr("from_dlpack")(*this);
  Array carrier = *this;
  carrier.as_carrier = true;
  const nb::object integers = numpy.attr("from_dlpack")(carrier);
  const nb::object dtype = ml_dtype(view.dtype);
  return dtype.is_valid() ? integers.attr("view")(dtype) : integers;
}

void bind_array(nb::module_& module) {
  nb::class_<Array>(module, "Array",
                    "Memory with a shape and a dtype that numpy may lack, exchanged without copies: numpy(), "
                    "torch.from_dlpack(), jax.dlpack.from_dlpack().")
      .def_prop_ro(
          "shape", [](const Array& a) { return tuple_of(a.view.shape); }, nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro(
          "strides", [](const Array& a) { return tuple_of(a.view.strides); },
          nb::sig("def strides(self) -> tuple[int, ...]"), "Elements from one index to the next, by dimension.")
      .def_prop_ro(
          "dtype", [](const Array& a) { return std::string(name(a.view.dtype)); }, "f32, bf16, e4m3fn, ...")
      .def_prop_ro("ndim", [](const Array& a) { return a.view.shape.rank(); })
      .def_prop_ro("nbytes", [](const Array& a) { return a.view.shape.elements() * size_bytes(a.view.dtype); })
      .def_prop_ro(
          "data_ptr", [](const Array& a) { return reinterpret_cast<std::uintptr_t>(a.view.data); },
          "Address of the first element.")
      .def_prop_ro("read_only", [](const Array& a) { return a.read_only; })
      .def("numpy", &Array::numpy, nb::sig("def numpy(self) -> typing.Any"),
           "A numpy array of the same memory. bf16 and the 8-bit floats have ml_dtypes' dtypes when that package is "
           "installed, else they are uint16 and uint8 codes.")
      .def("__array__", as_numpy, nb::arg("dtype") = nb::none(), nb::kw_only(), nb::arg("copy") = nb::none(),
           nb::sig("def __array__(self, dtype: typing.Any = None, *, copy: bool | None = None) -> typing.Any"))
      .def("__dlpack__", to_dlpack, nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
           nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: typing.Any = None, max_version: tuple[int, int] | None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"))
      .def(
          "__dlpack_device__", [](const Array&) { return std::pair<int, int>(kDlCpu, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def("__repr__", described);
  module.def(
      "array", array_of, nb::arg("x"), nb::arg("dtype") = nb::none(),
      nb::sig("def array(x: ArrayLike, dtype: DTypeLike | None = None) -> Array"),
      "Sees an array without a copy. `dtype` says what the elements of an integer array of the same size are: e4m3fn "
      "in "
      "uint8 or int8, bf16 in uint16. Errors: ValueError for memory of another device and for element types that "
      "quantized layers never have; BufferError for arrays that their framework does not export.");
  module.def(
      "dtype_name", [](nb::handle dtype) { return std::string(name(dtype_from(dtype))); }, nb::arg("dtype"),
      nb::sig("def dtype_name(dtype: DTypeLike) -> str"), "Our name of a dtype: bf16 for torch.bfloat16.");
}

}  // namespace scaledmm::python
