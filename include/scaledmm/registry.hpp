// The list of kernels, and the choice among them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scaledmm/linear.hpp"

namespace scaledmm {

// Every kernel of this build, best first within a device kind, `reference` last.
std::span<const LinearKernel* const> kernels();

// By name; nullptr when there is none.
const LinearKernel* find_kernel(std::string_view name);

// The names of a comma-separated list, without spaces: "a, b" -> a, b.
std::vector<std::string> split_kernel_names(std::string_view text);

// What the user wants of a selection. A field left empty takes the environment's value, then the default.
struct SelectOptions {
  std::optional<std::string> force;                  // SCALEDMM_FORCE_KERNEL: this kernel or an error
  std::optional<std::vector<std::string>> disabled;  // SCALEDMM_DISABLED_KERNELS: comma-separated names
  // SCALEDMM_BACKEND: prefer kernels whose name, device kind, ISA tier or what they compute (w8a8, w8a16) equals or
  // begins with this word; when none of them fits the full list is tried, and the selection says so.
  std::optional<std::string> backend;
  bool require_deterministic = false;
  bool require_batch_invariant = false;
  bool require_thread_invariant = false;
};

// One kernel's answer.
struct Candidate {
  const LinearKernel* kernel = nullptr;
  bool ok = false;
  std::string reason;  // why not, or why `better` comes first; else empty
  std::string better;  // a kernel that comes before this one where both can run; empty: none
};

// The outcome, as data: every candidate of the device in order of preference, what was taken, and what the user should
// know.
struct Selection {
  LayerConfig config;
  Device device;
  const LinearKernel* kernel = nullptr;  // nullptr: nothing fits
  const LinearKernel* forced = nullptr;  // what the user forced; then `kernel` is this one or nullptr
  std::vector<Candidate> candidates;
  std::vector<std::string> warnings;

  // A table for people: a line for each candidate with its reason.
  std::string text() const;
  // One message with every reason, a line each. For a selection without a kernel.
  std::string error() const;
};

// All candidates with their answers. Never throws for "nothing fits". A forced kernel stands alone in `kernel`, or
// nobody does. Errors: InvalidArgument for an unknown kernel name in force or disabled.
Selection explain(const LayerConfig& config, const Device& device, const SelectOptions& options = {});

// Where select() tells what it chose and why not another, a line for each choice. Nothing: SCALEDMM_VERBOSE=1 sends it
// to standard error. A function wins over the environment, an empty one silences.
using SelectionLog = std::function<void(const std::string& line)>;
void set_verbose(std::optional<SelectionLog> log);

// The first kernel that fits, or the forced one. Errors: Unsupported with every reason.
const LinearKernel& select(const LayerConfig& config, const Device& device, const SelectOptions& options = {});

}  // namespace scaledmm
