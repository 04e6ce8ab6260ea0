#include "cli/layer_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/selection_report.hpp"

namespace scaledmm::cli {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;

}  // namespace

const std::vector<std::string>& activation_dtypes() {
  static const std::vector<std::string> words = {"f32", "bf16", "f16"};
  return words;
}

void add_device_option(CLI::App& app, std::string& device) {
  app.add_option("--device", device,
                 "Machine to plan for: cpu (this one, the default), cpu:scalar, cpu:avx2, cpu:avx512, cpu:avx512vnni, "
                 "cpu:avx512bf16, cpu:amx, cuda (this one's), or an NVIDIA architecture such as sm90");
}

void add_kernel_option(CLI::App& app, std::string& kernel) {
  app.add_option("--kernel", kernel, "Use this kernel or fail with its reason (names: scaledmm devices)");
}

void add_dtype_option(CLI::App& app, const char* flag, std::string& dtype, const char* help) {
  app.add_option(flag, dtype, help)->check(CLI::IsMember(activation_dtypes()));
}

Device find_device(const std::string& name) { return name.empty() ? this_cpu() : device_from_name(name); }

void check_values(const Checkpoint& checkpoint, const LayerRecord& record) {
  const std::vector<std::string> problems = checkpoint.verify(record);
  if (!problems.empty()) throw CheckpointError(problems.front());
}

std::vector<std::filesystem::path> checkpoint_files(const Checkpoint& checkpoint) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint.directory())) files.push_back(entry.path());
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (files.empty() || files.back() != tensor.file) files.push_back(tensor.file);
  }
  return files;
}

SelectOptions force_kernel(const std::string& kernel) {
  SelectOptions options;
  if (kernel.empty()) return options;
  if (find_kernel(kernel) == nullptr) {
    std::vector<std::string_view> names;
    for (const LinearKernel* known : kernels()) names.push_back(known->name());
    throw UsageError(fmt::format("unknown kernel {}; known are {}", kernel, fmt::join(names, ", ")));
  }
  options.force = kernel;
  return options;
}

Selection select_kernel(const LayerRecord& record, const Device& device, const std::string& kernel) {
  Selection selection = explain(record.config, device, force_kernel(kernel));
  if (selection.kernel != nullptr) return selection;
  throw Unsupported(fmt::format("{}: {}", record.name, no_kernel_text(selection, kernel)));
}

Calibration load_calibration(const std::string& file) {
  Calibration calibration = Calibration::load(file);
  if (calibration.model().empty()) note(fmt::format("{} does not say which model it is of: not compared", file));
  return calibration;
}

std::vector<std::int64_t> parse_sizes(const std::string& text, std::size_t count, const char* form,
                                      std::int64_t minimum) {
  std::vector<std::int64_t> sizes;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    std::int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < minimum || value > kMaxSize) break;
    sizes.push_back(value);
    at = next;
    if (at == end && sizes.size() == count) return sizes;
    if (at == end || *at != ',') break;
    ++at;
  }
  throw UsageError(fmt::format("--shape {}: expected {}, whole numbers from {} to {}", text, form, minimum, kMaxSize));
}

}  // namespace scaledmm::cli
