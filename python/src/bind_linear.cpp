// scaledmm.Linear.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "array.hpp"
#include "borrowed.hpp"
#include "linear_object.hpp"
#include "scaledmm/error.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace scaledmm::python {
namespace {

constexpr const char* kLinearDoc = R"(A quantized linear layer, packed once for the kernel that was selected for it.

Threads may share it; packing and applying release the GIL.)";

constexpr const char* kInitDoc = R"(Selects a kernel and packs the weights. The arrays may be freed afterwards.

Shapes: weight [N, K] int8 or FP8 with a contiguous last dimension (uint8 codes are read as the configuration's dtype);
weight_scale [] or [1] per tensor, [parts] for each logical width, [N], [N, 1] or [1, N] per channel,
[ceil(N / bn), ceil(K / bk)] in blocks, f32, bf16, f16 or e8m0 (in blocks also uint8 exponents); bias [N] f32, bf16 or
f16; input_scale and input_zero_point one value, or one for each logical width.
Units: weights are scale * codes; input_scale_ub bounds the largest magnitude of a token; block offsets are rows and
columns; threads is for packing, 0 for the default. device is a name ("cpu", "cuda:0") or a torch.device; None: where the
weight is. For a layer on a GPU the arrays may be in its memory or in the processor's.
Errors: ValueError with both shapes, UnsupportedError with every kernel's reason.)";

constexpr const char* kApplyDoc = R"(y = x W^T (+ bias).

Shapes: x [..., K] in the layer's input_dtype, y [..., N] in its out_dtype. Any leading dimensions and row strides; the
last dimension must be contiguous. y is new and of x's framework, or `out`, which is returned. On a GPU x and out are in
its memory, and the work is put on `stream` and not waited for: an integer or an object with __cuda_stream__, cuda_stream
or ptr; None: the current stream of x's framework, else torch's.
Errors: ValueError for shapes, dtypes and strides, with both numbers.)";

constexpr const char* kApplyQuantizedDoc =
    R"(The same for activations that were quantized before, as input_quant_key says.

Shapes: q [..., K]; scale f32 with one value, one for each row, or one for each group of a row; zero_point int32 likewise.
Units: x is scale * (q - zero_point).
Errors: ValueError also for a kernel that takes none.)";

constexpr const char* kRefillDoc =
    R"(Replaces the weights by others of the same shapes and scheme, with the same kernel.

Arguments and errors are those of the constructor. Calls in other threads finish with the old weights first.)";

using Widths = std::vector<std::int64_t>;
using Names = std::optional<std::vector<std::string>>;

void construct(LinearObject* self, const LayerConfig& config, nb::object weight, nb::object weight_scale,
               nb::object bias, nb::object input_scale, nb::object input_zero_point,
               std::optional<float> input_scale_ub, bool ue8m0_input_scales, Widths logical_widths,
               std::int64_t block_offset_n, std::int64_t block_offset_k, std::optional<std::string> kernel,
               std::optional<std::string> backend, Names disabled, bool require_batch_invariant, nb::object device,
               int threads) {
  const LayerArguments arguments{weight,
                                 weight_scale,
                                 bias,
                                 input_scale,
                                 input_zero_point,
                                 input_scale_ub,
                                 ue8m0_input_scales,
                                 std::move(logical_widths),
                                 block_offset_n,
                                 block_offset_k};
  const Choice choice{std::move(kernel), std::move(backend), std::move(disabled), require_batch_invariant};
  new (self) LinearObject(config, arguments, choice, device, threads);
}

void refill(LinearObject& self, nb::object weight, nb::object weight_scale, nb::object bias, nb::object input_scale,
            nb::object input_zero_point, std::optional<float> input_scale_ub, bool ue8m0_input_scales,
            Widths logical_widths, std::int64_t block_offset_n, std::int64_t block_offset_k, int threads) {
  self.refill({weight, weight_scale, bias, input_scale, input_zero_point, input_scale_ub, ue8m0_input_scales,
               std::move(logical_widths), block_offset_n, block_offset_k},
              threads);
}

const LayerConfig& config_of(const LinearObject& self) { return self.state().linear.config(); }

DType weight_dtype(const LayerConfig& config) {
  if (std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config)) return DType::kInt8;
  return std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.dtype;
}

Array unpack(const LinearObject& self) {
  const Linear& linear = self.state().linear;
  const auto [n, k] = weight_shape(linear.config());
  Array codes = Array::allocate(weight_dtype(linear.config()), Shape{n, k});
  const nb::gil_scoped_release released;
  const std::shared_lock lock(self.state().mutex);
  const std::vector<std::uint8_t> bytes = linear.kernel().unpack(linear.layer());
  std::memcpy(codes.view.data, bytes.data(), bytes.size());
  return codes;
}

std::optional<Array> bias(const LinearObject& self) {
  const ConstTensorView view = self.state().linear.bias();
  if (!view.defined()) return std::nullopt;
  Array copy = Array::allocate(view.dtype, view.shape);
  std::memcpy(copy.view.data, view.data, static_cast<std::size_t>(view.shape.elements() * size_bytes(view.dtype)));
  return copy;
}

std::string device_name(const LinearObject& self) {
  const std::optional<Device>& device = self.state().device;
  if (!device) return "cpu";
  const std::string kind(name(device->kind));
  return device->kind == DeviceKind::kCpu ? kind + ":" + std::string(name(device->isa))
                                          : kind + ":" + std::to_string(device->index);
}

Selection explain_layer(const LinearObject& self, std::optional<std::string> device) {
  return explain(config_of(self), device_from_name(device.value_or(device_name(self))));
}

std::string text(const LinearObject& self) {
  const std::string& name = self.state().linear.layer().name();
  return "<Linear" + (name.empty() ? "" : " " + name) + ": " + describe(config_of(self)) + ", " +
         std::string(self.state().linear.kernel().name()) + ">";
}

LinearObject by_handle(nb::handle handle, std::int64_t n) {
  const Borrowed bytes(handle, {.what = "handle", .dtype = DType::kUInt8});
  if (bytes.view().shape != Shape{sizeof(std::int64_t)} || !bytes.view().is_packed()) {
    throw InvalidArgument("handle has shape " + bytes.view().shape.text() + ", expected [8]");
  }
  std::int64_t number = 0;
  std::memcpy(&number, bytes.view().data, sizeof number);
  LinearObject linear = LinearObject::find(number);
  if (weight_shape(config_of(linear)).n != n) {
    throw InvalidArgument("the layer has N = " + std::to_string(weight_shape(config_of(linear)).n) +
                          ", the call says " + std::to_string(n));
  }
  return linear;
}

nb::object apply_handle(nb::handle handle, nb::handle x, std::int64_t n, nb::handle bias) {
  const LinearObject linear = by_handle(handle, n);
  return bias.is_none() ? linear.apply(x, nb::none(), 0, nb::none()) : linear.apply_with_bias(x, bias);
}

nb::object apply_handle_quantized(nb::handle handle, nb::handle q, nb::handle scale, nb::handle zero_point,
                                  std::int64_t n) {
  return by_handle(handle, n).apply_quantized(q, scale, zero_point, nb::none(), 0, nb::none());
}

void bind_calls(nb::class_<LinearObject>& type) {
  constexpr const char* kCallSig =
      "def __call__(self, x: ArrayLike, out: ArrayLike | None = None, *, threads: int = 0, stream: typing.Any = None) "
      "-> typing.Any";
  constexpr const char* kApplySig =
      "def apply(self, x: ArrayLike, out: ArrayLike | None = None, *, threads: int = 0, stream: typing.Any = None) "
      "-> typing.Any";
  type.def("__call__", &LinearObject::apply, "x"_a, "out"_a = nb::none(), nb::kw_only(), "threads"_a = 0,
           "stream"_a = nb::none(), nb::sig(kCallSig), kApplyDoc)
      .def("apply", &LinearObject::apply, "x"_a, "out"_a = nb::none(), nb::kw_only(), "threads"_a = 0,
           "stream"_a = nb::none(), nb::sig(kApplySig), kApplyDoc)
      .def("apply_quantized", &LinearObject::apply_quantized, "q"_a, "scale"_a, "zero_point"_a = nb::none(),
           "out"_a = nb::none(), nb::kw_only(), "threads"_a = 0, "stream"_a = nb::none(),
           nb::sig("def apply_quantized(self, q: ArrayLike, scale: ArrayLike | float, zero_point: ArrayLike | int | "
                   "None = None, "
                   "out: ArrayLike | None = None, *, threads: int = 0, stream: typing.Any = None) -> typing.Any"),
           kApplyQuantizedDoc);
}

void bind_properties(nb::class_<LinearObject>& type) {
  type.def_prop_ro("config", config_of)
      .def_prop_ro("name", [](const LinearObject& l) { return l.state().linear.layer().name(); })
      .def_prop_ro(
          "n", [](const LinearObject& l) { return weight_shape(config_of(l)).n; }, "Output features.")
      .def_prop_ro(
          "k", [](const LinearObject& l) { return weight_shape(config_of(l)).k; }, "Input features.")
      .def_prop_ro("input_dtype", [](const LinearObject& l) { return name(input_dtype(config_of(l))); })
      .def_prop_ro("out_dtype", [](const LinearObject& l) { return name(out_dtype(config_of(l))); })
      .def_prop_ro("device", device_name, "Where it runs: cpu, or cuda:0.")
      .def_prop_ro(
          "kernel", [](const LinearObject& l) { return l.state().linear.kernel().name(); }, "Name of the kernel.")
      .def_prop_ro(
          "computes", [](const LinearObject& l) { return l.state().linear.kernel().info().computes; }, "w8a8 or w8a16.")
      .def_prop_ro(
          "input_quant_key",
          [](const LinearObject& l) { return l.state().linear.kernel().input_quant_key(config_of(l)); },
          "The key of quantized activations that apply_quantized takes; None: none.")
      .def_prop_ro(
          "packed_bytes", [](const LinearObject& l) { return l.state().linear.layer().packed().size_bytes(); },
          "Bytes of packed weights.")
      .def_prop_ro(
          "warnings", [](const LinearObject& l) { return l.state().linear.warnings(); },
          "What was done to fuse parts that differ.")
      .def_prop_ro("bias", bias, "f32 [N], a copy.")
      .def_prop_ro(
          "handle", [](const LinearObject& l) { return l.state().handle; },
          "A number that names this layer in this process for as long as it lives.");
}

}  // namespace

void bind_linear(nb::module_& module) {
  nb::class_<LinearObject> type(module, "Linear", kLinearDoc);
  type.def(
      "__init__", construct, "config"_a, "weight"_a, "weight_scale"_a, nb::kw_only(), "bias"_a = nb::none(),
      "input_scale"_a = nb::none(), "input_zero_point"_a = nb::none(), "input_scale_ub"_a = nb::none(),
      "ue8m0_input_scales"_a = false, "logical_widths"_a = Widths(), "block_offset_n"_a = 0, "block_offset_k"_a = 0,
      "kernel"_a = nb::none(), "backend"_a = nb::none(), "disabled"_a = nb::none(), "require_batch_invariant"_a = false,
      "device"_a = nb::none(), "threads"_a = 0,
      nb::sig(
          "def __init__(self, config: LayerConfig, weight: ArrayLike, weight_scale: ArrayLike | float, *, "
          "bias: ArrayLike | None = None, input_scale: ArrayLike | float | None = None, "
          "input_zero_point: ArrayLike | int | None = None, input_scale_ub: float | None = None, "
          "ue8m0_input_scales: bool = False, logical_widths: collections.abc.Sequence[int] = ..., "
          "block_offset_n: int = 0, block_offset_k: int = 0, kernel: str | None = None, backend: str | None = None, "
          "disabled: collections.abc.Sequence[str] | None = None, require_batch_invariant: bool = False, "
          "device: typing.Any = None, threads: int = 0) -> None"),
      kInitDoc);
  bind_calls(type);
  bind_properties(type);
  type.def("refill", refill, "weight"_a, "weight_scale"_a, nb::kw_only(), "bias"_a = nb::none(),
           "input_scale"_a = nb::none(), "input_zero_point"_a = nb::none(), "input_scale_ub"_a = nb::none(),
           "ue8m0_input_scales"_a = false, "logical_widths"_a = Widths(), "block_offset_n"_a = 0,
           "block_offset_k"_a = 0, "threads"_a = 0,
           nb::sig(
               "def refill(self, weight: ArrayLike, weight_scale: ArrayLike | float, *, bias: ArrayLike | None = None, "
               "input_scale: ArrayLike | float | None = None, input_zero_point: ArrayLike | int | None = None, "
               "input_scale_ub: float | None = None, ue8m0_input_scales: bool = False, "
               "logical_widths: collections.abc.Sequence[int] = ..., block_offset_n: int = 0, block_offset_k: int = 0, "
               "threads: int = 0) -> None"),
           kRefillDoc)
      .def("unpack", unpack, "The checkpoint's weight codes, [N, K].")
      .def("explain", explain_layer, "device"_a = nb::none(),
           "Every kernel's answer for this layer's configuration, on its own device or on another.")
      .def("__repr__", text);
  module.def(
      "apply_handle", apply_handle, "handle"_a, "x"_a, "n"_a, "bias"_a = nb::none(),
      nb::sig("def apply_handle(handle: ArrayLike, x: ArrayLike, n: int, bias: ArrayLike | None = None) -> typing.Any"),
      "Linear.apply for the layer whose handle is in eight uint8 elements; bias [N] is for a layer that has none. "
      "Errors: "
      "ValueError also when the layer is gone or has another N.");
  module.def("apply_handle_quantized", apply_handle_quantized, "handle"_a, "q"_a, "scale"_a, "zero_point"_a.none(),
             "n"_a,
             nb::sig("def apply_handle_quantized(handle: ArrayLike, q: ArrayLike, scale: ArrayLike, "
                     "zero_point: ArrayLike | None, n: int) -> typing.Any"),
             "The same for Linear.apply_quantized.");
}

}  // namespace scaledmm::python
