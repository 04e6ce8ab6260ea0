#include "cli/selection_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

namespace scaledmm::cli {

std::vector<std::string> feature_names(const CpuFeatures& cpu) {
  const std::pair<bool, const char*> all[] = {
      {cpu.avx2, "avx2"},
      {cpu.avx_vnni, "avx_vnni"},
      {cpu.avx512, "avx512"},
      {cpu.avx512_vnni, "avx512_vnni"},
      {cpu.avx512_vbmi, "avx512_vbmi"},
      {cpu.avx512_bf16, "avx512_bf16"},
      {cpu.avx512_fp16, "avx512_fp16"},
      {cpu.amx_int8, "amx_int8"},
      {cpu.amx_bf16, "amx_bf16"},
      {cpu.amx_fp8, "amx_fp8"},
  };
  std::vector<std::string> names;
  for (const auto& [has, feature] : all) {
    if (has) names.emplace_back(feature);
  }
  return names;
}

Json device_json(const Device& device) {
  Json json;
  json["kind"] = name(device.kind);
  json["index"] = device.index;
  json["description"] = device.description;
  if (device.kind == DeviceKind::kCpu) {
    json["isa"] = name(device.isa);
    json["features"] = feature_names(device.cpu);
    json["threads"] = device.threads;
    json["l1d_bytes"] = device.l1d_bytes;
    json["l2_bytes"] = device.l2_bytes;
    json["l3_bytes"] = device.l3_bytes;
  }
  if (device.capability) json["capability"] = *device.capability;
  if (device.found) {
    json["multiprocessors"] = device.multiprocessors;
    json["memory_bytes"] = device.memory_bytes;
  }
  json["notes"] = device.notes;
  return json;
}

Json layer_json(std::string_view name, const Selection& selection, const std::vector<std::string>& warnings) {
  const WeightShape shape = weight_shape(selection.config);
  Json json;
  json["name"] = name;
  json["scheme"] = scheme_name(selection.config);
  json["n"] = shape.n;
  json["k"] = shape.k;
  json["selected"] = selection.kernel == nullptr ? Json(nullptr) : Json(selection.kernel->name());
  json["candidates"] = Json::array();
  for (const Candidate& candidate : selection.candidates) {
    const KernelInfo& info = candidate.kernel->info();
    json["candidates"].push_back({{"kernel", info.name},
                                  {"upstream", info.upstream},
                                  {"computes", info.computes},
                                  {"ok", candidate.ok},
                                  {"reason", candidate.reason}});
  }
  json["warnings"] = warnings;
  for (const std::string& warning : selection.warnings) json["warnings"].push_back(warning);
  return json;
}

std::string device_line(const Device& device) {
  std::string line = fmt::format("{}: {}", name(device.kind), device.description);
  if (device.kind == DeviceKind::kCpu) {
    line += fmt::format(", {}, {}", name(device.isa), count_of(static_cast<std::size_t>(device.threads), "thread"));
  }
  if (device.found) {
    line += fmt::format(", compute capability {}.{}, {}, {} GB", *device.capability / 10, *device.capability % 10,
                        count_of(static_cast<std::size_t>(device.multiprocessors), "multiprocessor"),
                        device.memory_bytes >> 30);
  }
  return line;
}

std::string rejections_text(const Selection& selection) {
  std::size_t width = 0;
  for (const Candidate& candidate : selection.candidates) width = std::max(width, candidate.kernel->name().size());
  std::string text;
  for (const Candidate& candidate : selection.candidates) {
    if (candidate.kernel == selection.kernel) continue;
    std::string why = printable(candidate.reason);
    if (candidate.ok) {
      why = candidate.better.empty() ? "could run it too, but stands later in the list"
                                     : fmt::format("could run it too, but comes after {}: {}", candidate.better, why);
    }
    text += fmt::format("  {:<{}}  {}\n", candidate.kernel->name(), width, why);
  }
  return text;
}

std::string no_kernel_text(const Selection& selection, const std::string& forced) {
  std::vector<std::string> able;
  std::vector<std::string> reasons;
  std::string forced_reason;
  for (const Candidate& candidate : selection.candidates) {
    if (candidate.ok) able.emplace_back(candidate.kernel->name());
    if (candidate.kernel->name() == forced) forced_reason = candidate.reason;
    if (!candidate.ok) reasons.push_back(fmt::format("{}: {}", candidate.kernel->name(), candidate.reason));
  }
  if (forced.empty()) return one_line(selection.error());
  if (forced_reason.empty()) forced_reason = fmt::format("it is not for {}", device_line(selection.device));
  return fmt::format(
      "kernel {} cannot run this layer: {}; {}", forced, forced_reason,
      able.empty() ? std::string("no kernel can") : fmt::format("kernels that can: {}", fmt::join(able, ", ")));
}

std::string layer_pattern(std::string_view name) {
  std::string pattern;
  while (true) {
    const std::size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    pattern += number ? std::string_view("*") : part;
    if (dot == std::string_view::npos) return pattern;
    pattern += '.';
    name.remove_prefix(dot + 1);
  }
}

}  // namespace scaledmm::cli
