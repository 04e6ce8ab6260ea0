// scaledmm.DenseLinear.
#include "scaledmm/dense.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include "bindings.hpp"
#include "borrowed.hpp"
#include "result.hpp"
#include "scaledmm/error.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace scaledmm::python {
namespace {

constexpr const char* kDenseDoc = R"(A layer that a checkpoint leaves dense in bf16, packed once for this CPU.

Products are exact, sums are f32 and rounded once. A row's bits depend neither on the batch nor on the threads.)";

constexpr const char* kDenseInitDoc = R"(Packs weight [N, K], bf16, which may be freed afterwards.

threads is for packing, 0 for the default. Errors: ValueError with the shape or dtype.)";

constexpr const char* kDenseCallDoc = R"(y = x W^T (+ bias).

Shapes: x [..., K] f32, bf16 or f16, packed where it has more than two dimensions; bias [N] f32, bf16 or f16; y [..., N] of
x's dtype and framework. Errors: ValueError with both shapes.)";

void construct(DenseLinear* self, nb::handle weight, int threads) {
  const Borrowed held(weight, {.what = "weight"});
  Context& context = thread_context(threads);
  const nb::gil_scoped_release released;
  new (self) DenseLinear(held.view(), context);
}

// Rows with the leading dimensions flattened.
template <class View>
View as_rows(const View& view, const char* what) {
  const std::size_t rank = view.shape.rank();
  if (rank == 2) return view;
  if (rank == 0 || !view.is_packed()) {
    throw InvalidArgument(std::string(what) + " has shape " + view.shape.text() +
                          ", it must have two dimensions or be packed");
  }
  const std::int64_t columns = view.shape.back();
  return View(view.data, view.dtype, Shape{columns == 0 ? 0 : view.shape.elements() / columns, columns});
}

nb::object apply(const DenseLinear& self, nb::handle x, nb::handle bias, int threads) {
  const Borrowed input(x, {.what = "x"});
  const Borrowed added = Borrowed::optional(bias, {.what = "bias"});
  const ConstTensorView rows = as_rows<ConstTensorView>(input.view(), "x");
  Shape shape = input.view().shape;
  shape[shape.rank() - 1] = self.n();
  Result result(x, input.view().dtype, shape);
  Context& context = thread_context(threads);
  {
    const nb::gil_scoped_release released;
    self.apply(rows, added.view(), as_rows(result.view(), "y"), context);
  }
  return result.finish();
}

}  // namespace

void bind_dense(nb::module_& module) {
  nb::class_<DenseLinear>(module, "DenseLinear", kDenseDoc)
      .def("__init__", construct, "weight"_a, nb::kw_only(), "threads"_a = 0,
           nb::sig("def __init__(self, weight: ArrayLike, *, threads: int = 0) -> None"), kDenseInitDoc)
      .def(
          "__call__", apply, "x"_a, "bias"_a = nb::none(), nb::kw_only(), "threads"_a = 0,
          nb::sig("def __call__(self, x: ArrayLike, bias: ArrayLike | None = None, *, threads: int = 0) -> typing.Any"),
          kDenseCallDoc)
      .def_prop_ro("n", &DenseLinear::n, "Output features.")
      .def_prop_ro("k", &DenseLinear::k, "Input features.")
      .def_prop_ro("kernel", &DenseLinear::kernel, "Name of the kernel.")
      .def_prop_ro("packed_bytes", &DenseLinear::size_bytes, "Bytes of packed weights.");
}

}  // namespace scaledmm::python
