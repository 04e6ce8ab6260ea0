// Quantizers as functions on arrays.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <cstring>

#include "bindings.hpp"
#include "borrowed.hpp"
#include "dtypes.hpp"
#include "gpu.hpp"
#include "result.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/quantize.hpp"
#include "scaledmm/to_f32.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace scaledmm::python {
namespace {

constexpr const char* kInt8Doc = R"(Quantizes activations to int8.

Shapes: x [..., K] f32, bf16 or f16, any row stride; returns (q [..., K] int8, scale, zero_point). Dynamic (no scale):
scale is f32 [..., 1], one for each row, and zero_point int32 [..., 1] unless symmetric, else None. Static: scale and
zero_point are one value each and are returned as they came.
Units: x is about scale * (q - zero_point).
Errors: ValueError for shapes and dtypes, and a scale that is not finite and positive.)";

constexpr const char* kFp8Doc = R"(Quantizes activations to FP8.

Shapes: x [..., K] f32, bf16 or f16, any row stride; returns (q [..., K] e4m3fn or e4m3fnuz, scale). Dynamic scales are
f32: group (-1, -1) gives [1], (1, -1) [..., 1], (1, g) [..., ceil(K / g)]. A static scale is one value for all and is
returned as it came.
Units: x is about scale * q; scale_ub bounds the largest magnitude of a row; ue8m0 rounds group scales up to powers of two.
Errors: ValueError for shapes and dtypes, and a scale that is not finite and positive.)";

constexpr const char* kWeightDoc = R"(Quantizes a weight matrix for a layer, symmetrically.

Shapes: w [N, K] f32, bf16 or f16, any row stride; returns (codes [N, K], scale f32): [1] for group (-1, -1), [N, 1] for
(-1, 1), [ceil(N / bn), ceil(K / bk)] for (bn, bk).
Units: w is about scale * codes.
Errors: ValueError for shapes and dtypes, and for a weight that is not finite, with its position.)";

// One value, given as a number or as an array of one element.
std::optional<float> number(nb::handle object, const char* what) {
  if (object.is_none()) return std::nullopt;
  const Borrowed value = Borrowed::array_or_number(object, {.what = what});
  const TensorView& view = value.view();
  if (view.shape.elements() != 1) {
    throw InvalidArgument(std::string(what) + " has shape " + view.shape.text() + ", must be one value");
  }
  if (view.dtype == DType::kInt32) return static_cast<float>(*static_cast<const std::int32_t*>(view.data));
  float result = 0;
  to_f32(view, TensorView(&result, DType::kF32, view.shape));
  return result;
}

std::optional<std::int32_t> whole_number(nb::handle object, const char* what) {
  if (object.is_none()) return std::nullopt;
  const Borrowed value = Borrowed::array_or_number(object, {.what = what});
  const TensorView& view = value.view();
  if (view.shape.elements() != 1 || (view.dtype != DType::kInt32 && view.dtype != DType::kInt8)) {
    throw InvalidArgument(std::string(what) + " is " + std::string(name(view.dtype)) + " of shape " +
                          view.shape.text() + ", must be one int32 or int8");
  }
  if (view.dtype == DType::kInt8) return *static_cast<const std::int8_t*>(view.data);
  return *static_cast<const std::int32_t*>(view.data);
}

// Where x is, on its framework's current stream.
Place place_of(nb::handle x) { return {Borrowed(x, {.what = "x", .gpu = kAnywhere}).gpu(), nb::none(), x}; }

// x's shape with `last` in the place of K: what holds scales.
Shape with_last(const Shape& x, std::int64_t last) {
  if (x.rank() == 0) throw InvalidArgument("x has rank 0, must be at least 1");
  Shape shape = x;
  shape[x.rank() - 1] = last;
  return shape;
}

nb::tuple int8_quant(nb::object x, nb::object scale, nb::object zero_point, bool symmetric) {
  const Place place = place_of(x);
  const Borrowed input(x, place.array("x"));
  Int8QuantOptions options;
  options.scale = number(scale, "scale");
  options.zero_point = whole_number(zero_point, "zero_point");
  options.symmetric = symmetric;
  const Shape& shape = input.view().shape;
  const Shape scales = with_last(shape, 1);
  Result q(x, DType::kInt8, shape, place.gpu);
  if (options.scale) {
    {
      const nb::gil_scoped_release released;
      scaled_int8_quant(input.view(), options, q.view(), {}, {}, place.context);
    }
    return nb::make_tuple(q.finish(), scale, zero_point);
  }
  Result scale_out(x, DType::kF32, scales, place.gpu);
  std::optional<Result> zero_point_out;
  if (!symmetric) zero_point_out.emplace(x, DType::kInt32, scales, place.gpu);
  {
    const nb::gil_scoped_release released;
    scaled_int8_quant(input.view(), options, q.view(), scale_out.view(),
                      zero_point_out ? zero_point_out->view() : TensorView(), place.context);
  }
  return nb::make_tuple(q.finish(), scale_out.finish(), zero_point_out ? zero_point_out->finish() : nb::none());
}

nb::tuple fp8_quant(nb::object x, nb::object scale, GroupShape group, std::optional<float> scale_ub, nb::object dtype,
                    bool ue8m0) {
  const Place place = place_of(x);
  const Borrowed input(x, place.array("x"));
  Fp8QuantOptions options;
  options.scale = number(scale, "scale");
  options.group = group;
  options.scale_ub = scale_ub;
  options.ue8m0 = ue8m0;
  const Shape& shape = input.view().shape;
  const std::int64_t groups = group.is_per_group() ? (shape.back() + group.col - 1) / group.col : 1;
  const Shape scales = group.is_per_tensor() ? Shape{1} : with_last(shape, groups);
  Result q(x, dtype_from(dtype), shape, place.gpu);
  std::optional<Result> scale_out;
  if (!options.scale) scale_out.emplace(x, DType::kF32, scales, place.gpu);
  {
    const nb::gil_scoped_release released;
    scaled_fp8_quant(input.view(), options, q.view(), scale_out ? scale_out->view() : TensorView(), place.context);
  }
  return nb::make_tuple(q.finish(), scale_out ? scale_out->finish() : scale);
}

nb::tuple weight_quant(nb::object w, nb::object dtype, GroupShape group) {
  const Borrowed input(w, {.what = "w"});
  const DType type = dtype_from(dtype);
  QuantizedWeight quantized;
  {
    const nb::gil_scoped_release released;
    quantized = quantize_weight(input.view(), type, group);
  }
  Result codes(w, type, Shape{quantized.n, quantized.k});
  Result scales(w, DType::kF32,
                group.is_per_tensor() ? Shape{1} : Shape{quantized.scale_rows, quantized.scale_columns});
  std::memcpy(codes.view().data, quantized.bytes.data(), quantized.bytes.size());
  std::memcpy(scales.view().data, quantized.scales.data(), quantized.scales.size() * sizeof(float));
  return nb::make_tuple(codes.finish(), scales.finish());
}

nb::object to_float32(nb::object x, nb::object dtype) {
  const Borrowed input(x, {.what = "x", .dtype = optional_dtype_from(dtype)});
  Result y(x, DType::kF32, input.view().shape);
  {
    const nb::gil_scoped_release released;
    to_f32(input.view(), y.view());
  }
  return y.finish();
}

}  // namespace

void bind_quantize(nb::module_& module) {
  module.def("scaled_int8_quant", int8_quant, "x"_a, "scale"_a = nb::none(), "zero_point"_a = nb::none(),
             "symmetric"_a = true,
             nb::sig("def scaled_int8_quant(x: ArrayLike, scale: ArrayLike | float | None = None, "
                     "zero_point: ArrayLike | int | None = None, symmetric: bool = True) -> "
                     "tuple[typing.Any, typing.Any, typing.Any]"),
             kInt8Doc);
  module.def("scaled_fp8_quant", fp8_quant, "x"_a, "scale"_a = nb::none(), nb::kw_only(),
             "group"_a = GroupShape::per_token(), "scale_ub"_a = nb::none(), "dtype"_a = "e4m3fn", "ue8m0"_a = false,
             nb::sig("def scaled_fp8_quant(x: ArrayLike, scale: ArrayLike | float | None = None, *, "
                     "group: GroupShape = ..., scale_ub: float | None = None, dtype: DTypeLike = 'e4m3fn', "
                     "ue8m0: bool = False) -> tuple[typing.Any, typing.Any]"),
             kFp8Doc);
  module.def("quantize_weight", weight_quant, "w"_a, "dtype"_a, "group"_a = GroupShape::per_channel(),
             nb::sig("def quantize_weight(w: ArrayLike, dtype: DTypeLike, group: GroupShape = ...) -> "
                     "tuple[typing.Any, typing.Any]"),
             kWeightDoc);
  module.def(
      "to_float32", to_float32, "x"_a, "dtype"_a = nb::none(),
      nb::sig("def to_float32(x: ArrayLike, dtype: DTypeLike | None = None) -> typing.Any"),
      "Floats of any storage type as f32, exact; `dtype` says what the elements of an integer array are. Errors: "
      "ValueError for integers without it.");
}

}  // namespace scaledmm::python
