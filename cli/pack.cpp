// scaledmm pack: the packed weights of a checkpoint's layers in one file, and whether such a file still fits.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cli/commands.hpp"
#include "cli/layer_options.hpp"
#include "cli/output.hpp"
#include "scaledmm/scaledmm.hpp"

namespace scaledmm::cli {
namespace {

struct PackOptions {
  std::string checkpoint;
  std::string output;
  std::string check;
  std::string kernel;
  std::string dtype;
  std::string out_dtype;
  std::vector<std::string> fuse;
  int threads = 0;
  bool content = false;
  bool time = false;
  bool json = false;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

// Quantized layers in the checkpoint's order; siblings that --fuse names stand together, where the first one was.
std::vector<std::vector<std::string>> layer_groups(const Checkpoint& checkpoint, const PackOptions& options) {
  std::unordered_set<std::string> quantized;
  for (const LayerRecord& layer : checkpoint.layers()) {
    if (layer.quantized) quantized.insert(layer.name);
  }
  std::unordered_map<std::string, std::vector<std::string>> fused;  // by the first part
  std::unordered_set<std::string> others;
  for (const std::string& list : options.fuse) {
    const std::vector<std::string> words = split(list, ',');
    if (std::unordered_set<std::string>(words.begin(), words.end()).size() != words.size() || words.size() < 2) {
      throw UsageError(fmt::format("--fuse {}: expected two or more different names", list));
    }
    bool found = false;
    for (const LayerRecord& layer : checkpoint.layers()) {
      const std::size_t dot = layer.name.rfind('.');
      const std::string parent = dot == std::string::npos ? "" : layer.name.substr(0, dot + 1);
      if (layer.name != parent + words.front()) continue;
      std::vector<std::string> parts;
      for (const std::string& word : words) {
        if (quantized.contains(parent + word)) parts.push_back(parent + word);
      }
      if (parts.size() != words.size()) continue;
      found = true;
      others.insert(parts.begin() + 1, parts.end());
      fused[parts.front()] = std::move(parts);
    }
    if (!found) throw UsageError(fmt::format("--fuse {}: no quantized layers of these names stand together", list));
  }
  std::vector<std::vector<std::string>> groups;
  for (const LayerRecord& layer : checkpoint.layers()) {
    if (!layer.quantized || others.contains(layer.name)) continue;
    const auto at = fused.find(layer.name);
    groups.push_back(at == fused.end() ? std::vector<std::string>{layer.name} : at->second);
  }
  if (groups.empty()) throw Unsupported(fmt::format("{}: has no quantized layer", options.checkpoint));
  return groups;
}

Json layers_json(const std::vector<PackedLayer>& layers) {
  Json list = Json::array();
  for (const PackedLayer& layer : layers) {
    list.push_back(
        {{"name", layer.name}, {"kernel", layer.kernel}, {"layout", layer.layout}, {"bytes", layer.size_bytes}});
  }
  return list;
}

// Milliseconds that a start takes: loading; a first call of every layer on one row, which touches all weights; and the
// same calls again, when every page is there.
using StartTimes = std::array<double, 3>;
constexpr std::array<const char*, 3> kStartNames = {"load_ms", "first_calls_ms", "later_calls_ms"};

void call_all(const std::vector<Linear>& linears, Context& context) {
  for (const Linear& linear : linears) {
    const auto [n, k] = weight_shape(linear.config());
    const DType in = input_dtype(linear.config()), out = out_dtype(linear.config());
    std::vector<std::byte> x(static_cast<std::size_t>(k * size_bytes(in)));
    std::vector<std::byte> y(static_cast<std::size_t>(n * size_bytes(out)));
    linear.apply({x.data(), in, {1, k}}, {y.data(), out, {1, n}}, context);
  }
}

// With the packed file when it is to be mapped, the opening included.
StartTimes time_start(const Checkpoint& checkpoint, const std::vector<PackedLayer>& layers, bool is_mapped,
                      const PackOptions& options) {
  using Clock = std::chrono::steady_clock;
  LinearOptions linear_options;
  linear_options.select = force_kernel(options.kernel);
  linear_options.threading.threads = options.threads;
  Context context(linear_options.threading);
  std::vector<Linear> linears;
  StartTimes times{};
  auto start = Clock::now();
  const auto lap = [&] {
    const std::chrono::duration<double, std::milli> passed = Clock::now() - start;
    start = Clock::now();
    return passed.count();
  };
  if (is_mapped) {
    linear_options.packed = std::make_shared<const PackedFile>(PackedFile::open(options.check, checkpoint));
  }
  for (const PackedLayer& layer : layers) {
    linears.push_back(Linear::load_fused(checkpoint, split(layer.name, '+'), linear_options));
  }
  times[0] = lap();
  call_all(linears, context);
  times[1] = lap();
  call_all(linears, context);
  times[2] = lap();
  return times;
}

// Both ways in turn, the median of each figure.
Json start_times(const Checkpoint& checkpoint, const std::vector<PackedLayer>& layers, const PackOptions& options) {
  constexpr std::size_t kRounds = 5;
  std::vector<StartTimes> packing, mapped;
  for (std::size_t round = 0; round < kRounds; ++round) {
    mapped.push_back(time_start(checkpoint, layers, true, options));
    packing.push_back(time_start(checkpoint, layers, false, options));
  }
  Json result;
  for (const auto& [name, rounds] : {std::pair{"packing", &packing}, std::pair{"mapped", &mapped}}) {
    for (std::size_t i = 0; i < kStartNames.size(); ++i) {
      std::ranges::sort(*rounds, {}, [i](const StartTimes& times) { return times[i]; });
      result[name][kStartNames[i]] = (*rounds)[kRounds / 2][i];
    }
  }
  return result;
}

int check(const Checkpoint& checkpoint, const PackOptions& options) {
  const PackedFile packed = PackedFile::open(
      options.check, checkpoint, {options.content ? SourceCheck::kContent : SourceCheck::kTime, options.content});
  std::uint64_t bytes = 0;
  for (const PackedLayer& layer : packed.layers()) bytes += layer.size_bytes;
  Json document = {{"file", options.check}, {"fits", true}, {"layers", layers_json(packed.layers())}};
  if (options.time) document["start"] = start_times(checkpoint, packed.layers(), options);
  if (options.json) {
    print_json(document);
    return kOk;
  }
  print(fmt::format("fits: {}, {}\n", count_of(packed.layers().size(), "packed layer"), megabytes(bytes)));
  if (options.time) {
    for (const auto& [name, ms] : document["start"].items()) {
      print(fmt::format(
          "{:<8} {:9.1f} ms to load, {:9.1f} ms for a first call of every layer, {:9.1f} ms for the next\n", name,
          ms["load_ms"].get<double>(), ms["first_calls_ms"].get<double>(), ms["later_calls_ms"].get<double>()));
    }
  }
  return kOk;
}

int write(const Checkpoint& checkpoint, const PackOptions& options) {
  check_output("--output", options.output, checkpoint_files(checkpoint));
  LinearOptions linear_options;
  linear_options.select = force_kernel(options.kernel);
  linear_options.threading.threads = options.threads;
  const std::vector<std::vector<std::string>> groups = layer_groups(checkpoint, options);
  // Before the first layer is packed, which may take long.
  for (const std::vector<std::string>& group : groups) {
    for (const std::string& layer : group) select_kernel(checkpoint.layer(layer), this_cpu(), options.kernel);
  }
  std::vector<Linear> linears;
  PackedFileReport report;
  {
    Progress progress;
    for (const std::vector<std::string>& group : groups) {
      progress.update(linears.size(), groups.size(), group.front());
      for (const std::string& layer : group) check_values(checkpoint, checkpoint.layer(layer));
      linears.push_back(Linear::load_fused(checkpoint, group, linear_options));
    }
    progress.update(groups.size(), groups.size(), options.output);
    std::vector<const Linear*> pointers;
    for (const Linear& linear : linears) pointers.push_back(&linear);
    report = write_packed(options.output, checkpoint, pointers);
  }
  if (options.json) {
    print_json({{"file", options.output},
                {"bytes", report.file_bytes},
                {"layers", layers_json(report.layers)},
                {"left_out", report.left_out}});
  } else {
    print_line(fmt::format("{}: {}, {}", options.output, count_of(report.layers.size(), "packed layer"),
                           megabytes(report.file_bytes)));
  }
  if (!report.left_out.empty()) {
    note(fmt::format("left out: {}{}", report.left_out.front(),
                     report.left_out.size() == 1
                         ? ""
                         : fmt::format(" (and {})", count_of(report.left_out.size() - 1, "more layer"))));
  }
  return kOk;
}

int pack(const PackOptions& options) {
  if (options.output.empty() == options.check.empty()) throw UsageError("pack takes one of --output and --check");
  if ((options.content || options.time) && options.check.empty()) {
    throw UsageError("--content and --time belong to --check");
  }
  CheckpointOptions checkpoint_options;
  checkpoint_options.input_dtype = dtype_from_name(options.dtype);
  checkpoint_options.out_dtype = dtype_from_name(options.out_dtype);
  const Checkpoint checkpoint = Checkpoint::open(options.checkpoint, checkpoint_options);
  return options.check.empty() ? write(checkpoint, options) : check(checkpoint, options);
}

}  // namespace

void add_pack(CLI::App& app, Command& command) {
  auto options = std::make_shared<PackOptions>();
  CLI::App* sub = app.add_subcommand("pack", "Keep the packed weights of a checkpoint in a file, for faster starts");
  sub->add_option("checkpoint", options->checkpoint, "Checkpoint folder")->required();
  sub->add_option("--output", options->output, "The file to write; one that is there is replaced when all is well");
  sub->add_option("--check", options->check, "Say whether this packed file still fits the checkpoint and this library");
  sub->add_flag("--content", options->content,
                "With --check: compare hashes of all bytes instead of times of change, and of the packed weights");
  sub->add_flag("--time", options->time, "With --check: time a start with the file and one that packs, in turn");
  add_kernel_option(*sub, options->kernel);
  sub->add_option("--fuse", options->fuse,
                  "Siblings that run as one layer, such as q_proj,k_proj,v_proj; repeatable (default: none)")
      ->take_all()
      ->expected(1);
  add_dtype_option(*sub, "--dtype", options->dtype, "Activation dtype (default: config.json's dtype)");
  add_dtype_option(*sub, "--out-dtype", options->out_dtype, "Output dtype (default: as the activations)");
  sub->add_option("--threads", options->threads, "Threads (default: all usable CPUs)")->check(CLI::Range(1, 1024));
  sub->add_flag("--json", options->json, "One JSON document instead of text");
  sub->footer(
      "\nA program that loads the checkpoint with this file maps the weights instead of packing them. The file fits "
      "one\n"
      "checkpoint, one version of the library and one kernel for each layer; otherwise it is stale, and is refused "
      "with\n"
      "the field that differs (exit 1). All packed weights are held in memory while it is written.\n"
      "\nExamples:\n"
      "  scaledmm pack model-int8/ --output model-int8.packed\n"
      "  scaledmm pack model-int8/ --check model-int8.packed --content\n"
      "  scaledmm run model-int8/ --packed model-int8.packed");
  sub->callback([options, &command] { command = [options] { return pack(*options); }; });
}

}  // namespace scaledmm::cli
