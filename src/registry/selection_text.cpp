// A selection in words.
#include <algorithm>

#include "scaledmm/registry.hpp"

namespace scaledmm {
namespace {

std::string upstream_of(const Candidate& candidate) { return std::string(candidate.kernel->info().upstream); }

std::size_t name_width(const Selection& selection) {
  std::size_t width = 0;
  for (const Candidate& c : selection.candidates) width = std::max(width, c.kernel->name().size());
  return width;
}

std::string padded(std::string_view text, std::size_t width) {
  return std::string(text) + std::string(width - std::min(width, text.size()), ' ');
}

std::string device_name(const Device& device) {
  if (device.kind == DeviceKind::kCpu) return device.description + " (" + std::string(name(device.isa)) + ")";
  return device.description;
}

}  // namespace

std::string Selection::text() const {
  std::string result = describe(config) + "\non " + device_name(device) + "\n";
  const std::size_t width = name_width(*this);
  for (const Candidate& candidate : candidates) {
    result += candidate.kernel == kernel ? "  * " : candidate.ok ? "  + " : "  - ";
    result += padded(candidate.kernel->name(), width) + "  ";
    if (candidate.ok) {
      result += "computes " + std::string(candidate.kernel->info().computes);
      if (!upstream_of(candidate).empty()) result += ", stands for " + upstream_of(candidate);
      if (!candidate.better.empty()) result += "; after " + candidate.better + ": " + candidate.reason;
    } else {
      result += candidate.reason;
    }
    result += "\n";
  }
  for (const std::string& warning : warnings) result += "  ! " + warning + "\n";
  if (kernel == nullptr) result += error() + "\n";
  return result;
}

std::string Selection::error() const {
  if (forced != nullptr) {
    const auto it = std::ranges::find(candidates, forced, &Candidate::kernel);
    std::string result =
        "kernel " + std::string(forced->name()) + " was forced and cannot run this layer: " + it->reason;
    std::string others;
    for (const Candidate& candidate : candidates) {
      if (candidate.ok) others += (others.empty() ? "" : ", ") + std::string(candidate.kernel->name());
    }
    return result + (others.empty() ? "; no other kernel can" : "; these could: " + others);
  }
  if (candidates.empty()) return "this build has no kernel for " + device_name(device);
  std::string result = "no kernel can run " + describe(config) + " on " + device_name(device);
  for (const Candidate& candidate : candidates) {
    result += "\n  " + std::string(candidate.kernel->name()) + ": " + candidate.reason;
  }
  return result;
}

}  // namespace scaledmm
