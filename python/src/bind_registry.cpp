// The list of kernels, devices, and the choice among kernels.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/registry.hpp"
#include "scaledmm/version.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace scaledmm::python {
namespace {

constexpr const char* kChoiceDoc =
    "kernel forces one kernel by name, disabled takes some out, backend prefers kernels whose name, ISA or computation "
    "begins with "
    "that word; left out, SCALEDMM_FORCE_KERNEL, SCALEDMM_DISABLED_KERNELS and SCALEDMM_BACKEND decide.";

using Names = std::optional<std::vector<std::string>>;

std::vector<KernelInfo> kernel_list() {
  std::vector<KernelInfo> list;
  for (const LinearKernel* kernel : kernels()) list.push_back(kernel->info());
  return list;
}

std::optional<std::string> kernel_name(const LinearKernel* kernel) {
  if (kernel == nullptr) return std::nullopt;
  return std::string(kernel->name());
}

Selection explain_config(const LayerConfig& config, const std::string& device, std::optional<std::string> kernel,
                         std::optional<std::string> backend, Names disabled, bool require_batch_invariant) {
  return explain(config, device_from_name(device),
                 Choice{std::move(kernel), std::move(backend), std::move(disabled), require_batch_invariant}.options());
}

std::string select_kernel(const LayerConfig& config, const std::string& device, std::optional<std::string> kernel,
                          std::optional<std::string> backend, Names disabled, bool require_batch_invariant) {
  const Choice choice{std::move(kernel), std::move(backend), std::move(disabled), require_batch_invariant};
  return std::string(select(config, device_from_name(device), choice.options()).name());
}

void bind_kernel_info(nb::module_& module) {
  nb::class_<KernelInfo>(module, "KernelInfo", "What a kernel is and what it guarantees.")
      .def_ro("name", &KernelInfo::name)
      .def_ro("upstream", &KernelInfo::upstream, "The upstream classes that it stands for.")
      .def_prop_ro(
          "device", [](const KernelInfo& i) { return name(i.device); }, "cpu, cuda, hip or opencl.")
      .def_prop_ro(
          "isa", [](const KernelInfo& i) { return name(i.isa); }, "CPU kernels: the instruction set tier.")
      .def_ro("computes", &KernelInfo::computes, "w8a8 or w8a16: what happens to the activations.")
      .def_prop_ro("deterministic", [](const KernelInfo& i) { return i.guarantees.deterministic; })
      .def_prop_ro(
          "batch_invariant", [](const KernelInfo& i) { return i.guarantees.batch_invariant; },
          "A row's bits depend neither on M nor on its place.")
      .def_prop_ro("thread_invariant", [](const KernelInfo& i) { return i.guarantees.thread_invariant; })
      .def_prop_ro("accumulator", [](const KernelInfo& i) { return i.guarantees.accumulator; })
      .def_prop_ro("exactness", [](const KernelInfo& i) { return i.guarantees.exactness; })
      .def("__repr__", [](const KernelInfo& i) { return "<kernel " + std::string(i.name) + ">"; });
}

void bind_devices(nb::module_& module) {
  nb::class_<Device>(module, "Device", "What a machine can do.")
      .def_prop_ro(
          "kind", [](const Device& d) { return name(d.kind); }, "cpu, cuda, hip or opencl.")
      .def_ro("index", &Device::index)
      .def_ro("description", &Device::description)
      .def_prop_ro(
          "isa", [](const Device& d) { return name(d.isa); }, "CPUs: the highest usable instruction set tier.")
      .def_ro("notes", &Device::notes, "Why higher tiers are not usable.")
      .def_ro("threads", &Device::threads)
      .def_ro("capability", &Device::capability, "NVIDIA GPUs: compute capability as major * 10 + minor.")
      .def("__repr__", [](const Device& d) { return "<" + std::string(name(d.kind)) + " " + d.description + ">"; });
  nb::class_<BackendStatus>(module, "BackendStatus", "A kind of device that was looked for, and what came of it.")
      .def_prop_ro("kind", [](const BackendStatus& s) { return name(s.kind); })
      .def_ro("available", &BackendStatus::available)
      .def_ro("detail", &BackendStatus::detail, "How many there are, or why there is none.")
      .def_ro("devices", &BackendStatus::devices)
      .def("__repr__", [](const BackendStatus& s) { return "<" + std::string(name(s.kind)) + ": " + s.detail + ">"; });
}

void bind_selection(nb::module_& module) {
  nb::class_<Candidate>(module, "Candidate", "One kernel's answer.")
      .def_prop_ro("kernel", [](const Candidate& c) { return c.kernel->name(); })
      .def_ro("ok", &Candidate::ok)
      .def_ro("reason", &Candidate::reason, "Why not; empty when ok.")
      .def_prop_ro("upstream", [](const Candidate& c) { return c.kernel->info().upstream; })
      .def_prop_ro("computes", [](const Candidate& c) { return c.kernel->info().computes; })
      .def("__repr__", [](const Candidate& c) {
        return "<" + std::string(c.kernel->name()) + ": " + (c.ok ? "ok" : c.reason) + ">";
      });
  nb::class_<Selection>(module, "Selection",
                        "The outcome of a choice: every candidate in list order, and the one taken.")
      .def_ro("config", &Selection::config)
      .def_ro("device", &Selection::device)
      .def_prop_ro(
          "kernel", [](const Selection& s) { return kernel_name(s.kernel); }, "None: nothing fits.")
      .def_ro("candidates", &Selection::candidates)
      .def_ro("warnings", &Selection::warnings)
      .def("error", &Selection::error, "Every reason in one message, for a selection without a kernel.")
      .def("__str__", &Selection::text)
      .def("__repr__", [](const Selection& s) {
        return "<Selection: " + kernel_name(s.kernel).value_or("no kernel") + " of " +
               std::to_string(s.candidates.size()) + " candidates>";
      });
}

}  // namespace

SelectOptions Choice::options() const {
  SelectOptions options;
  options.force = kernel;
  options.backend = backend;
  options.disabled = disabled;
  options.require_batch_invariant = require_batch_invariant;
  return options;
}

void bind_registry(nb::module_& module) {
  bind_kernel_info(module);
  bind_devices(module);
  bind_selection(module);
  module.def(
      "version", [] { return std::string(version()); }, "The library's version.");
  module.def("kernels", kernel_list, "Every kernel of this build, best first within a device kind, reference last.");
  module.def("devices", devices, "Everything found on this machine, the CPU first, and why the rest was not found.");
  module.def(
      "device", device_from_name, "name"_a,
      "A device by name: cpu (this machine), cpu:avx2 ... cpu:amx, sm90. Errors: ValueError with the known names.");
  const std::string explain_doc = std::string("Every kernel's answer for a layer. device: see device(). ") +
                                  kChoiceDoc +
                                  " Never raises for \"nothing fits\". Errors: ValueError for an unknown name.";
  module.def("explain", explain_config, "config"_a, "device"_a = "cpu", nb::kw_only(), "kernel"_a = nb::none(),
             "backend"_a = nb::none(), "disabled"_a = nb::none(), "require_batch_invariant"_a = false,
             explain_doc.c_str());
  const std::string select_doc = std::string("The name of the first kernel that fits, or of the forced one. ") +
                                 kChoiceDoc +
                                 " Errors: UnsupportedError with every reason, ValueError for an unknown name.";
  module.def("select", select_kernel, "config"_a, "device"_a = "cpu", nb::kw_only(), "kernel"_a = nb::none(),
             "backend"_a = nb::none(), "disabled"_a = nb::none(), "require_batch_invariant"_a = false,
             select_doc.c_str());
  module.def(
      "input_quant_key",
      [](const std::string& kernel, const LayerConfig& config) -> std::optional<QuantKey> {
        const LinearKernel* found = find_kernel(kernel);
        if (found == nullptr) throw InvalidArgument("there is no kernel " + kernel);
        return found->input_quant_key(config);
      },
      "kernel"_a, "config"_a, "The key of activations that the kernel takes quantized; None: it takes none.");
}

}  // namespace scaledmm::python
