#include "result.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "array.hpp"
#include "dtypes.hpp"
#include "frameworks.hpp"
#include "scaledmm/error.hpp"

namespace nb = nanobind;

namespace scaledmm::python {
namespace {

void set_error(void*, const char* kind, const char* message) {
  PyErr_Format(PyExc_MemoryError, "%s: %s", kind, message);
}

DlManagedTensorVersioned* allocate(const DlExchangeApi& api, DType dtype, const Shape& shape, int gpu) {
  Shape sizes = shape, strides = TensorView(nullptr, dtype, shape).strides;
  DlTensor prototype{};
  prototype.device = gpu == kHost ? DlDevice{kDlCpu, 0} : DlDevice{kDlCuda, gpu};
  prototype.rank = static_cast<std::int32_t>(shape.rank());
  prototype.dtype = dl_type(dtype);
  prototype.shape = &sizes[0];
  prototype.strides = &strides[0];
  DlManagedTensorVersioned* managed = nullptr;
  if (api.allocate(&prototype, &managed, nullptr, set_error) != 0) throw nb::python_error();
  return managed;
}

nb::tuple sizes_of(const Shape& shape) {
  nb::list list;
  for (const std::int64_t size : shape.sizes()) list.append(size);
  return nb::tuple(list);
}

}  // namespace

Result::Result(nb::handle like, DType dtype, const Shape& shape, int gpu) {
  api_ = exchange_api(like);
  if (api_ != nullptr) {
    managed_ = allocate(*api_, dtype, shape, gpu);
    view_ = TensorView(static_cast<std::byte*>(managed_->tensor.data) + managed_->tensor.byte_offset, dtype, shape);
    return;
  }
  if (is_instance_of(like, "torch", "Tensor")) {
    const nb::object torch = loaded_module("torch");
    object_ = torch.attr("empty")(sizes_of(shape), nb::arg("dtype") = torch.attr(framework_name(dtype)),
                                  nb::arg("device") = gpu == kHost ? "cpu" : place_name(gpu));
    view_ = TensorView(reinterpret_cast<void*>(nb::cast<std::uintptr_t>(object_.attr("data_ptr")())), dtype, shape);
    return;
  }
  if (gpu != kHost) {
    if (!is_instance_of(like, "cupy", "ndarray")) {
      throw InvalidArgument("results on a GPU are made for torch and cupy; for a " +
                            std::string(nb::type_name(like.type()).c_str()) + " pass `out`");
    }
    object_ = loaded_module("cupy").attr("empty")(sizes_of(shape), framework_name(dtype));
    view_ =
        TensorView(reinterpret_cast<void*>(nb::cast<std::uintptr_t>(object_.attr("data").attr("ptr"))), dtype, shape);
    return;
  }
  const Array array = Array::allocate(dtype, shape);
  view_ = array.view;
  if (is_instance_of(like, "numpy", "ndarray")) {
    object_ = array.numpy();
  } else {
    object_ = nb::cast(array);
    as_jax_ = is_instance_of(like, "jax", "Array");
  }
}

Result::~Result() {
  if (managed_ != nullptr && managed_->deleter != nullptr) managed_->deleter(managed_);
}

nb::object Result::finish() {
  if (managed_ != nullptr) {
    void* object = nullptr;
    DlManagedTensorVersioned* given = std::exchange(managed_, nullptr);
    if (api_->object_from_managed(given, &object) != 0) throw nb::python_error();
    return nb::steal(static_cast<PyObject*>(object));
  }
  if (as_jax_) return loaded_module("jax").attr("dlpack").attr("from_dlpack")(object_);
  return object_;
}

}  // namespace scaledmm::python
