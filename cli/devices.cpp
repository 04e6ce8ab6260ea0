// scaledmm devices: what this machine has, what was looked for in vain, and which kernels it can run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/selection_report.hpp"
#include "scaledmm/scaledmm.hpp"

namespace scaledmm::cli {
namespace {

// The first device that can run the kernel; otherwise why the first of its kind cannot.
Support support_of(const LinearKernel& kernel, const std::vector<BackendStatus>& backends) {
  for (const BackendStatus& backend : backends) {
    if (backend.kind != kernel.info().device) continue;
    if (!backend.available || backend.devices.empty()) return Support::no(backend.detail);
    Support first = kernel.is_supported(backend.devices.front());
    for (const Device& device : backend.devices) {
      if (kernel.is_supported(device).ok()) return Support::yes();
    }
    return first;
  }
  return Support::no(fmt::format("this build does not look for {} devices", name(kernel.info().device)));
}

Json kernel_json(const LinearKernel& kernel, const std::vector<BackendStatus>& backends) {
  const KernelInfo& info = kernel.info();
  const Support support = support_of(kernel, backends);
  return {{"name", info.name},
          {"upstream", info.upstream},
          {"device", name(info.device)},
          {"isa", name(info.isa)},
          {"computes", info.computes},
          {"supported", support.ok()},
          {"reason", support.reason()},
          {"guarantees",
           {{"deterministic", info.guarantees.deterministic},
            {"batch_invariant", info.guarantees.batch_invariant},
            {"thread_invariant", info.guarantees.thread_invariant},
            {"accumulator", info.guarantees.accumulator},
            {"exactness", info.guarantees.exactness}}}};
}

// The first of the upstream classes that the kernel stands for, and how many more there are.
std::string upstream_text(std::string_view upstream) {
  const std::size_t comma = upstream.find(", ");
  if (comma == std::string_view::npos) return std::string(upstream);
  return fmt::format("{} and {} more", upstream.substr(0, comma), std::count(upstream.begin(), upstream.end(), ','));
}

int print_devices_json(const std::vector<BackendStatus>& backends) {
  Json document;
  document["version"] = version();
  document["backends"] = Json::array();
  for (const BackendStatus& backend : backends) {
    Json entry = {{"kind", name(backend.kind)}, {"available", backend.available}, {"detail", backend.detail}};
    entry["devices"] = Json::array();
    for (const Device& device : backend.devices) entry["devices"].push_back(device_json(device));
    document["backends"].push_back(entry);
  }
  document["kernels"] = Json::array();
  for (const LinearKernel* kernel : kernels()) document["kernels"].push_back(kernel_json(*kernel, backends));
  print_json(document);
  return kOk;
}

int print_devices(bool json) {
  const std::vector<BackendStatus> backends = devices();
  if (json) return print_devices_json(backends);
  print("Devices\n");
  for (const BackendStatus& backend : backends) {
    if (!backend.available) print_line(fmt::format("  {}: not available: {}", name(backend.kind), backend.detail));
    for (const Device& device : backend.devices) {
      print_line("  " + device_line(device));
      if (device.kind == DeviceKind::kCpu) {
        print(fmt::format("    features: {}\n", fmt::join(feature_names(device.cpu), " ")));
        print(fmt::format("    caches: L1 {} KB, L2 {} KB, L3 {} KB\n", device.l1d_bytes >> 10, device.l2_bytes >> 10,
                          device.l3_bytes >> 10));
      }
      for (const std::string& text : device.notes) print_line("    " + text);
    }
  }
  print("\nKernels, best first\n");
  Table table({"  kernel", "computes", "runs here", "stands for"}, "llll");
  for (const LinearKernel* kernel : kernels()) {
    const Support support = support_of(*kernel, backends);
    table.add({fmt::format("  {}", kernel->name()), std::string(kernel->info().computes),
               support.ok() ? "yes" : "no: " + support.reason(), upstream_text(kernel->info().upstream)});
  }
  print(table.text());
  return kOk;
}

}  // namespace

void add_devices(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("devices", "Show what this machine has and which kernels it can run");
  auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "One JSON document instead of text");
  sub->footer("\nExample:\n  scaledmm devices --json");
  sub->callback([json, &command] { command = [json] { return print_devices(*json); }; });
}

}  // namespace scaledmm::cli
