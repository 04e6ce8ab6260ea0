// Group shapes, quantization keys and the two layer configurations.
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include "bindings.hpp"
#include "dtypes.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/scheme.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace scaledmm::python {
namespace {

using Int8Config = Int8ScaledMMLinearLayerConfig;
using Fp8Config = FP8ScaledMMLinearLayerConfig;

std::string dtype_name(DType dtype) { return std::string(name(dtype)); }

// Equal values have equal texts, so the text's hash will do.
template <class T>
nb::object text_hash(const T& value) {
  return nb::steal(PyLong_FromSsize_t(PyObject_Hash(nb::str(value.text().c_str()).ptr())));
}

std::pair<std::int64_t, std::int64_t> pair_of(WeightShape shape) { return {shape.n, shape.k}; }
WeightShape shape_of(std::pair<std::int64_t, std::int64_t> shape) { return {shape.first, shape.second}; }

// The properties that both configurations have.
template <class Config>
void bind_shared(nb::class_<Config>& type) {
  type.def_prop_ro(
          "weight_shape", [](const Config& c) { return pair_of(c.weight_shape); },
          "(N, K): output features, input features.")
      .def_prop_ro(
          "input_dtype", [](const Config& c) { return dtype_name(c.input_dtype); }, "f32, bf16 or f16.")
      .def_prop_ro(
          "out_dtype", [](const Config& c) { return dtype_name(c.out_dtype); }, "f32, bf16 or f16.")
      .def_prop_ro(
          "scheme", [](const Config& c) { return scheme_name(LayerConfig(c)); },
          "int8, fp8_w8a8, fp8_w8a16, or one of these with _block.")
      .def("__repr__", [](const Config& c) { return "<" + describe(LayerConfig(c)) + ">"; })
      .def(
          "__eq__", [](const Config& a, const Config& b) { return a == b; }, nb::is_operator(),
          nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def(
          "__hash__", [](const Config& c) { return nb::hash(nb::str(describe(LayerConfig(c)).c_str())); },
          nb::sig("def __hash__(self) -> int"));
}

void bind_keys(nb::module_& module) {
  nb::class_<GroupShape>(
      module, "GroupShape",
      "One scale covers row x col elements; -1 is the whole extent. Activations [M, K] read (token, "
      "feature), block weights [N, K] read (N block, K block), and (-1, 1) is per channel: one scale "
      "for each output feature.")
      .def(nb::init<std::int64_t, std::int64_t>(), "row"_a = -1, "col"_a = -1)
      .def_ro("row", &GroupShape::row)
      .def_ro("col", &GroupShape::col)
      .def("__repr__",
           [](const GroupShape& g) {
             return "GroupShape(" + std::to_string(g.row) + ", " + std::to_string(g.col) + ")";
           })
      .def("__str__", &GroupShape::text)
      .def(
          "__eq__", [](const GroupShape& a, const GroupShape& b) { return a == b; }, nb::is_operator(),
          nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def("__hash__", text_hash<GroupShape>, nb::sig("def __hash__(self) -> int"))
      .def_prop_ro_static(
          "PER_TENSOR", [](nb::handle) { return GroupShape::per_tensor(); }, "(-1, -1)")
      .def_prop_ro_static(
          "PER_TOKEN", [](nb::handle) { return GroupShape::per_token(); }, "(1, -1)")
      .def_prop_ro_static(
          "PER_CHANNEL", [](nb::handle) { return GroupShape::per_channel(); }, "(-1, 1)");

  nb::class_<ScaleDesc>(
      module, "ScaleDesc",
      "What scales are: their dtype, whether they come with the checkpoint, and what one of them covers.")
      .def(
          "__init__",
          [](ScaleDesc* self, GroupShape shape, bool is_static, nb::object dtype) {
            new (self) ScaleDesc{dtype_from(dtype), is_static, shape};
          },
          "group_shape"_a, "is_static"_a = true, "dtype"_a = "f32",
          nb::sig(
              "def __init__(self, group_shape: GroupShape, is_static: bool = True, dtype: DTypeLike = 'f32') -> None"))
      .def_prop_ro("dtype", [](const ScaleDesc& s) { return dtype_name(s.dtype); })
      .def_ro("is_static", &ScaleDesc::is_static)
      .def_ro("group_shape", &ScaleDesc::group_shape)
      .def("__repr__", [](const ScaleDesc& s) { return "<" + s.text() + ">"; })
      .def(
          "__eq__", [](const ScaleDesc& a, const ScaleDesc& b) { return a == b; }, nb::is_operator(),
          nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def("__hash__", text_hash<ScaleDesc>, nb::sig("def __hash__(self) -> int"));

  nb::class_<QuantKey>(module, "QuantKey", "How a tensor is quantized. Compared by value.")
      .def(
          "__init__",
          [](QuantKey* self, nb::object dtype, ScaleDesc scale, bool symmetric) {
            new (self) QuantKey{dtype_from(dtype), scale, std::nullopt, symmetric};
          },
          "dtype"_a, "scale"_a, "symmetric"_a = true,
          nb::sig("def __init__(self, dtype: DTypeLike, scale: ScaleDesc, symmetric: bool = True) -> None"))
      .def_prop_ro("dtype", [](const QuantKey& k) { return dtype_name(k.dtype); })
      .def_ro("scale", &QuantKey::scale)
      .def_ro("symmetric", &QuantKey::symmetric)
      .def("__repr__", [](const QuantKey& k) { return "<" + k.text() + ">"; })
      .def(
          "__eq__", [](const QuantKey& a, const QuantKey& b) { return a == b; }, nb::is_operator(),
          nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def("__hash__", text_hash<QuantKey>, nb::sig("def __hash__(self) -> int"));
}

void bind_configs(nb::module_& module) {
  nb::class_<Int8Config> int8(
      module, "Int8ScaledMMLinearLayerConfig",
      "A layer with symmetric int8 weights and int8 activations. Activations have one scale from the "
      "checkpoint (is_static_input_scheme) or one for each token, and a zero point unless "
      "input_symmetric. Weights have a scale for each output feature (is_channelwise), for each "
      "logical width, or for blocks (weight_block).");
  int8.def(
          "__init__",
          [](Int8Config* self, std::pair<std::int64_t, std::int64_t> shape, bool is_static, bool channelwise,
             bool symmetric, nb::object input, nb::object out, std::optional<GroupShape> block) {
            new (self) Int8Config{is_static,         channelwise,     symmetric, shape_of(shape),
                                  dtype_from(input), dtype_from(out), block};
          },
          nb::kw_only(), "weight_shape"_a, "is_static_input_scheme"_a = false, "is_channelwise"_a = true,
          "input_symmetric"_a = true, "input_dtype"_a = "bf16", "out_dtype"_a = "bf16", "weight_block"_a = nb::none(),
          nb::sig("def __init__(self, *, weight_shape: tuple[int, int], is_static_input_scheme: bool = False, "
                  "is_channelwise: bool = True, input_symmetric: bool = True, input_dtype: DTypeLike = 'bf16', "
                  "out_dtype: DTypeLike = 'bf16', weight_block: GroupShape | None = None) -> None"))
      .def_ro("is_static_input_scheme", &Int8Config::is_static_input_scheme)
      .def_ro("is_channelwise", &Int8Config::is_channelwise)
      .def_ro("input_symmetric", &Int8Config::input_symmetric)
      .def_ro("weight_block", &Int8Config::weight_block);
  bind_shared(int8);

  nb::class_<Fp8Config> fp8(
      module, "FP8ScaledMMLinearLayerConfig",
      "A layer with FP8 weights. Without an activation key (W8A16) the activations stay as they are.");
  fp8.def(
         "__init__",
         [](Fp8Config* self, std::pair<std::int64_t, std::int64_t> shape, QuantKey weight,
            std::optional<QuantKey> activation, nb::object input, nb::object out) {
           new (self) Fp8Config{weight, activation, shape_of(shape), dtype_from(input), dtype_from(out)};
         },
         nb::kw_only(), "weight_shape"_a, "weight_quant_key"_a, "activation_quant_key"_a = nb::none(),
         "input_dtype"_a = "bf16", "out_dtype"_a = "bf16",
         nb::sig("def __init__(self, *, weight_shape: tuple[int, int], weight_quant_key: QuantKey, "
                 "activation_quant_key: QuantKey | None = None, input_dtype: DTypeLike = 'bf16', "
                 "out_dtype: DTypeLike = 'bf16') -> None"))
      .def_ro("weight_quant_key", &Fp8Config::weight_quant_key)
      .def_ro("activation_quant_key", &Fp8Config::activation_quant_key);
  bind_shared(fp8);
}

}  // namespace

void bind_scheme(nb::module_& module) {
  bind_keys(module);
  bind_configs(module);
}

}  // namespace scaledmm::python
