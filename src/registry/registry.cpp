// The list of kernels and the choice among them. Knows no kernel by name.
#include "scaledmm/registry.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>
#include <utility>

#include "device/environment.hpp"
#include "kernels/kernel_list.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

using KernelFunction = const LinearKernel& (*)();

constexpr KernelFunction kKernelFunctions[] = {
#define SCALEDMM_KERNEL(name) &native::name,
#define SCALEDMM_TWIN_KERNEL(name) &native::name,
#include "kernels/kernels.inc"
#undef SCALEDMM_KERNEL
#undef SCALEDMM_TWIN_KERNEL
};

// A kernel's name that the user spelled, or an error with the known ones.
const LinearKernel& known_kernel(const std::string& wanted, std::string_view setting) {
  if (const LinearKernel* kernel = find_kernel(wanted)) return *kernel;
  std::string text = std::string(setting) + " names an unknown kernel " + wanted + "; known are";
  for (const LinearKernel* kernel : kernels()) text += " " + std::string(kernel->name());
  throw InvalidArgument(text);
}

// What was asked for, the environment filled in, names resolved.
struct Settings {
  const LinearKernel* forced = nullptr;
  std::vector<const LinearKernel*> disabled;
  std::optional<std::string> backend;
};

Settings resolve(const SelectOptions& options) {
  Settings settings;
  const std::optional<std::string> force =
      options.force ? options.force : environment_variable("SCALEDMM_FORCE_KERNEL");
  if (force && !force->empty()) {
    settings.forced = &known_kernel(*force, options.force ? "force" : "SCALEDMM_FORCE_KERNEL");
  }
  std::vector<std::string> disabled;
  const char* source = "disabled";
  if (options.disabled) {
    disabled = *options.disabled;
  } else if (const auto text = environment_variable("SCALEDMM_DISABLED_KERNELS")) {
    disabled = split_kernel_names(*text);
    source = "SCALEDMM_DISABLED_KERNELS";
  }
  for (const std::string& kernel_name : disabled) settings.disabled.push_back(&known_kernel(kernel_name, source));
  settings.backend = options.backend ? options.backend : environment_variable("SCALEDMM_BACKEND");
  if (settings.backend && (settings.backend->empty() || *settings.backend == "auto")) settings.backend.reset();
  return settings;
}

bool in_backend(const KernelInfo& info, std::string_view backend) {
  return info.name.starts_with(backend) || name(info.device) == backend || info.computes == backend ||
         (info.device == DeviceKind::kCpu && name(info.isa) == backend);
}

std::string_view missing_guarantee(const Guarantees& has, const SelectOptions& options) {
  if (options.require_deterministic && !has.deterministic) return "deterministic";
  if (options.require_batch_invariant && !has.batch_invariant) return "batch_invariant";
  if (options.require_thread_invariant && !has.thread_invariant) return "thread_invariant";
  return {};
}

Support answer(const LinearKernel& kernel, const LayerConfig& config, const Device& device, const Settings& settings,
               const SelectOptions& options) {
  if (std::ranges::find(settings.disabled, &kernel) != settings.disabled.end()) {
    return Support::no("disabled by the user");
  }
  if (const Support support = kernel.is_supported(device); !support) return support;
  if (const std::string_view missing = missing_guarantee(kernel.info().guarantees, options); !missing.empty()) {
    return Support::no("it is not " + std::string(missing) + ", which was required");
  }
  return kernel.can_implement(config);
}

const LinearKernel* first_ok(const Selection& selection, const std::optional<std::string>& backend) {
  for (const Candidate& candidate : selection.candidates) {
    if (candidate.ok && (!backend || in_backend(candidate.kernel->info(), *backend))) return candidate.kernel;
  }
  return nullptr;
}

// Moves candidates that name a better one behind it, where it can run.
void put_better_first(std::vector<Candidate>& candidates) {
  for (std::size_t i = candidates.size(); i-- > 0;) {
    const auto at = candidates.begin() + static_cast<std::ptrdiff_t>(i);
    const auto better =
        std::find_if(at, candidates.end(), [&](const Candidate& c) { return c.kernel->name() == at->better; });
    if (better != candidates.end() && better->ok) std::rotate(at, at + 1, better + 1);
  }
}

std::mutex verbose_mutex;
std::optional<SelectionLog> verbose_log;

// Empty: nobody listens.
SelectionLog selection_log() {
  const std::lock_guard lock(verbose_mutex);
  if (verbose_log) return *verbose_log;
  const std::optional<std::string> verbose = environment_variable("SCALEDMM_VERBOSE");
  if (!verbose || *verbose == "0") return {};
  return [](const std::string& line) { std::fprintf(stderr, "scaledmm: %s\n", line.c_str()); };
}

// "w8a8 int8 ... [4096, 4096]: int8_w8a8_avx2; not int8_w8a8_amx: the CPU has no AMX"
std::string line_of(const Selection& selection) {
  const auto [n, k] = weight_shape(selection.config);
  std::string line = scheme_name(selection.config) + " [" + std::to_string(n) + ", " + std::to_string(k) +
                     "]: " + std::string(selection.kernel->name());
  for (const Candidate& candidate : selection.candidates) {
    if (candidate.kernel == selection.kernel) break;
    if (!candidate.ok) line += "; not " + std::string(candidate.kernel->name()) + ": " + candidate.reason;
  }
  return line;
}

}  // namespace

std::span<const LinearKernel* const> kernels() {
  static const auto list = [] {
    std::array<const LinearKernel*, std::size(kKernelFunctions)> all{};
    std::ranges::transform(kKernelFunctions, all.begin(), [](KernelFunction function) { return &function(); });
    return all;
  }();
  return list;
}

const LinearKernel* find_kernel(std::string_view name) {
  const auto all = kernels();
  const auto found = std::ranges::find_if(all, [&](const LinearKernel* kernel) { return kernel->name() == name; });
  return found == all.end() ? nullptr : *found;
}

std::vector<std::string> split_kernel_names(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view piece = text.substr(begin, end - begin);
    const std::size_t first = piece.find_first_not_of(' ');
    if (first != std::string_view::npos) {
      names.emplace_back(piece.substr(first, piece.find_last_not_of(' ') - first + 1));
    }
    begin = end + 1;
  }
  return names;
}

Selection explain(const LayerConfig& config, const Device& device, const SelectOptions& options) {
  const Settings settings = resolve(options);
  is_block_scaled(config);  // refuses keys that contradict each other
  Selection selection;
  selection.config = config;
  selection.device = device;
  for (const LinearKernel* kernel : kernels()) {
    const bool here = kernel->info().device == device.kind || kernel == settings.forced;
    if (!here) continue;
    const Support support = answer(*kernel, config, device, settings, options);
    selection.candidates.push_back({kernel, support.ok(), support.reason(), support.better()});
  }
  put_better_first(selection.candidates);
  if (settings.forced != nullptr) {
    const auto forced = std::ranges::find(selection.candidates, settings.forced, &Candidate::kernel);
    if (forced->ok) selection.kernel = settings.forced;
    selection.forced = settings.forced;
    return selection;
  }
  selection.kernel = first_ok(selection, settings.backend);
  if (selection.kernel == nullptr && settings.backend) {
    selection.kernel = first_ok(selection, std::nullopt);
    if (selection.kernel != nullptr) {
      selection.warnings.push_back("no usable kernel of backend " + *settings.backend + "; took " +
                                   std::string(selection.kernel->name()) + " from the full list");
    }
  }
  return selection;
}

const LinearKernel& select(const LayerConfig& config, const Device& device, const SelectOptions& options) {
  const Selection selection = explain(config, device, options);
  if (selection.kernel == nullptr) throw Unsupported(selection.error());
  if (const SelectionLog log = selection_log()) log(line_of(selection));
  return *selection.kernel;
}

void set_verbose(std::optional<SelectionLog> log) {
  const std::lock_guard lock(verbose_mutex);
  verbose_log = std::move(log);
}

}  // namespace scaledmm
