// Checkpoint folders.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "array.hpp"
#include "bindings.hpp"
#include "dtypes.hpp"
#include "linear_object.hpp"
#include "scaledmm/checkpoint.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace scaledmm::python {
namespace {

using CheckpointPointer = std::shared_ptr<const Checkpoint>;

// An open folder. Its tensors keep it open.
struct CheckpointObject {
  CheckpointPointer checkpoint;
};

CheckpointObject open_folder(const std::filesystem::path& path, nb::object dtype, nb::object out_dtype, bool use_mmap,
                             bool follow_symlinks, bool lenient) {
  CheckpointOptions options;
  options.use_mmap = use_mmap;
  options.follow_symlinks = follow_symlinks;
  options.lenient = lenient;
  options.input_dtype = optional_dtype_from(dtype);
  options.out_dtype = optional_dtype_from(out_dtype);
  const nb::gil_scoped_release released;
  return {std::make_shared<const Checkpoint>(Checkpoint::open(path, options))};
}

Array tensor(const CheckpointObject& self, const std::string& name) {
  const ConstTensorView view = self.checkpoint->tensor(name);
  return {TensorView(const_cast<void*>(view.data), view.dtype, view.shape, view.strides), true, self.checkpoint};
}

LinearObject linear(const CheckpointObject& self, const std::vector<std::string>& layers,
                    std::optional<std::string> kernel, std::optional<std::string> backend,
                    std::optional<std::vector<std::string>> disabled, bool require_batch_invariant,
                    const std::string& device, int threads) {
  const Choice choice{std::move(kernel), std::move(backend), std::move(disabled), require_batch_invariant};
  LinearOptions options;
  options.select = choice.options();
  if (device != "cpu") options.device = device_from_name(device);
  options.threading = threading(threads);
  const nb::gil_scoped_release released;
  return {Linear::load_fused(*self.checkpoint, layers, options), options.device};
}

nb::list shape_list(const Shape& shape) {
  nb::list list;
  for (const std::int64_t size : shape.sizes()) list.append(size);
  return list;
}

void bind_records(nb::module_& module) {
  nb::class_<StoredTensor>(module, "StoredTensor", "A tensor of a checkpoint's safetensors files.")
      .def_ro("name", &StoredTensor::name)
      .def_ro("stored_dtype", &StoredTensor::stored_dtype, "The container's spelling: F8_E4M3.")
      .def_prop_ro(
          "dtype",
          [](const StoredTensor& t) -> std::optional<std::string> {
            if (!t.dtype) return std::nullopt;
            return std::string(name(*t.dtype));
          },
          "Ours; None for types that linear layers never use.")
      .def_prop_ro(
          "shape", [](const StoredTensor& t) { return nb::tuple(shape_list(t.shape)); },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_ro("nbytes", &StoredTensor::size_bytes)
      .def_ro("file", &StoredTensor::file)
      .def("__repr__",
           [](const StoredTensor& t) { return "<" + t.name + ": " + t.stored_dtype + " " + t.shape.text() + ">"; });
  nb::class_<LayerRecord>(module, "LayerRecord", "A linear layer as the checkpoint describes it.")
      .def_ro("name", &LayerRecord::name)
      .def_ro("quantized", &LayerRecord::quantized)
      .def_ro("scheme", &LayerRecord::scheme, "int8, fp8_w8a8, ..., or dense.")
      .def_prop_ro(
          "config",
          [](const LayerRecord& r) -> std::optional<LayerConfig> {
            if (!r.quantized) return std::nullopt;
            return r.config;
          },
          "None for a dense layer.")
      .def_ro("n", &LayerRecord::n, "Output features.")
      .def_ro("k", &LayerRecord::k, "Input features.")
      .def_ro("format", &LayerRecord::format, "The dialect.")
      .def_ro("weight", &LayerRecord::weight, "Name of the tensor; empty where there is none, as in the fields below.")
      .def_ro("weight_scale", &LayerRecord::weight_scale)
      .def_ro("input_scale", &LayerRecord::input_scale)
      .def_ro("input_zero_point", &LayerRecord::input_zero_point)
      .def_ro("bias", &LayerRecord::bias)
      .def_ro("warnings", &LayerRecord::warnings)
      .def("__repr__", [](const LayerRecord& r) { return "<" + r.name + ": " + r.scheme + ">"; });
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  bind_records(module);
  nb::class_<CheckpointObject>(module, "CheckpointFolder", "An open checkpoint folder; see scaledmm.load.")
      .def_prop_ro("path", [](const CheckpointObject& c) { return c.checkpoint->directory(); })
      .def_prop_ro("config_json", [](const CheckpointObject& c) { return c.checkpoint->config_json(); })
      .def_prop_ro("quant_method", [](const CheckpointObject& c) { return c.checkpoint->quant_method(); })
      .def_prop_ro("model_dtype", [](const CheckpointObject& c) { return name(c.checkpoint->model_dtype()); })
      .def_prop_ro("tensors", [](const CheckpointObject& c) { return c.checkpoint->tensors(); })
      .def_prop_ro("layers", [](const CheckpointObject& c) { return c.checkpoint->layers(); })
      .def_prop_ro("warnings", [](const CheckpointObject& c) { return c.checkpoint->warnings(); })
      .def(
          "layer", [](const CheckpointObject& c, const std::string& name) { return c.checkpoint->layer(name); },
          "name"_a)
      .def(
          "has_tensor",
          [](const CheckpointObject& c, const std::string& name) { return c.checkpoint->has_tensor(name); }, "name"_a)
      .def("tensor", tensor, "name"_a, "The mapped tensor, read-only and without a copy.")
      .def(
          "verify",
          [](const CheckpointObject& c) {
            const nb::gil_scoped_release released;
            return c.checkpoint->verify();
          },
          "One line for each value that breaks a rule.")
      .def("linear", linear, "layers"_a, nb::kw_only(), "kernel"_a = nb::none(), "backend"_a = nb::none(),
           "disabled"_a = nb::none(), "require_batch_invariant"_a = false, "device"_a = "cpu", "threads"_a = 0,
           "The layer of that name, or several side by side as one.");
  module.def("open_checkpoint", open_folder, "path"_a, nb::kw_only(), "dtype"_a = nb::none(),
             "out_dtype"_a = nb::none(), "use_mmap"_a = true, "follow_symlinks"_a = true, "lenient"_a = false,
             nb::sig("def open_checkpoint(path: str | os.PathLike[str], *, dtype: DTypeLike | None = None, "
                     "out_dtype: DTypeLike | None = None, use_mmap: bool = True, follow_symlinks: bool = True, "
                     "lenient: bool = False) -> CheckpointFolder"));
}

}  // namespace scaledmm::python
