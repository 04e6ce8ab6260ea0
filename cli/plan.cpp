// scaledmm plan: for every quantized layer of a checkpoint the kernel that will run it, and why the others will not.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/layer_options.hpp"
#include "cli/output.hpp"
#include "cli/selection_report.hpp"
#include "scaledmm/scaledmm.hpp"

namespace scaledmm::cli {
namespace {

struct PlanOptions {
  std::string directory;
  std::string device;
  std::string kernel;
  std::string dtype;
  std::string out_dtype;
  bool json = false;
};

struct PlannedLayer {
  const LayerRecord* layer;
  Selection selection;
};

// Layers that differ in nothing but the block that they belong to.
struct Group {
  std::string pattern;
  std::size_t count = 0;
  const PlannedLayer* first = nullptr;
};

std::vector<Group> group_layers(const std::vector<PlannedLayer>& layers) {
  std::vector<Group> groups;
  std::map<std::string, std::size_t> known;
  for (const PlannedLayer& planned : layers) {
    const std::string pattern = layer_pattern(planned.layer->name);
    const auto [at, is_new] = known.try_emplace(pattern + " " + describe(planned.selection.config), groups.size());
    if (is_new) groups.push_back({pattern, 0, &planned});
    ++groups[at->second].count;
  }
  return groups;
}

void print_text(const Checkpoint& checkpoint, const Device& device, const std::vector<PlannedLayer>& layers) {
  print_line("checkpoint  " + checkpoint.directory().string());
  print_line("format      " + (checkpoint.quant_method().empty() ? "not quantized" : checkpoint.quant_method()));
  print_line("device      " + device_line(device));
  print("\n");
  const std::vector<Group> groups = group_layers(layers);
  Table table({"layer", "count", "scheme", "N", "K", "kernel"}, "lrlrrl");
  // Layers whose answers are the same share one list of reasons.
  std::vector<std::pair<std::string, std::string>> reasons;
  for (const Group& group : groups) {
    const Selection& selection = group.first->selection;
    const std::string kernel(selection.kernel == nullptr ? "none" : selection.kernel->name());
    const std::string scheme = scheme_name(selection.config);
    table.add({group.pattern, std::to_string(group.count), scheme, std::to_string(group.first->layer->n),
               std::to_string(group.first->layer->k), kernel});
    const std::string text = rejections_text(selection);
    bool listed = false;
    for (const auto& [title, known] : reasons) listed = listed || (known == text && title.ends_with(kernel));
    if (!listed) reasons.emplace_back(fmt::format("{} ({}): {}", group.pattern, scheme, kernel), text);
  }
  if (!table.empty()) print(table.text());
  std::size_t dense = 0;
  for (const LayerRecord& layer : checkpoint.layers()) dense += layer.quantized ? 0 : 1;
  if (dense > 0) print(fmt::format("{}left dense: {}\n", table.empty() ? "" : "\n", count_of(dense, "linear layer")));
  for (const auto& [title, text] : reasons) {
    if (text.empty()) continue;
    print("\n");
    print_line(title + ", because");
    print(text);
  }
  for (const LayerRecord& layer : checkpoint.layers()) {
    for (const std::string& warning : layer.warnings) {
      print_line(fmt::format("warning: {}: {}", layer.name, warning));
    }
  }
  std::vector<std::string> said;
  for (const Group& group : groups) {
    for (const std::string& warning : group.first->selection.warnings) {
      if (std::find(said.begin(), said.end(), warning) != said.end()) continue;
      said.push_back(warning);
      print_line("warning: " + warning);
    }
  }
  for (const std::string& warning : checkpoint.warnings()) print_line("warning: " + warning);
}

int plan(const PlanOptions& options) {
  const SelectOptions select = force_kernel(options.kernel);
  const Device device = find_device(options.device);
  CheckpointOptions checkpoint_options;
  checkpoint_options.input_dtype = dtype_from_name(options.dtype);
  checkpoint_options.out_dtype = dtype_from_name(options.out_dtype);
  const Checkpoint checkpoint = Checkpoint::open(options.directory, checkpoint_options);
  std::vector<PlannedLayer> layers;
  for (const LayerRecord& layer : checkpoint.layers()) {
    if (layer.quantized) layers.push_back({&layer, explain(layer.config, device, select)});
  }
  if (options.json) {
    Json document;
    document["device"] = device_json(device);
    document["layers"] = Json::array();
    for (const PlannedLayer& planned : layers) {
      document["layers"].push_back(layer_json(planned.layer->name, planned.selection, planned.layer->warnings));
    }
    print_json(document);
    // The document has no place for these.
    for (const std::string& warning : checkpoint.warnings()) note(warning);
    for (const LayerRecord& layer : checkpoint.layers()) {
      for (const std::string& warning : layer.warnings) {
        if (!layer.quantized) note(fmt::format("{}: {}", layer.name, warning));
      }
    }
  } else {
    print_text(checkpoint, device, layers);
  }
  const PlannedLayer* failed = nullptr;
  std::size_t failures = 0;
  for (const PlannedLayer& planned : layers) {
    if (planned.selection.kernel != nullptr) continue;
    if (failed == nullptr) failed = &planned;
    ++failures;
  }
  if (failed == nullptr) return kOk;
  throw Failed(kUnsupported,
               fmt::format("{}: {}{}", failed->layer->name, no_kernel_text(failed->selection, options.kernel),
                           failures == 1 ? "" : fmt::format(" (and {})", count_of(failures - 1, "more layer"))));
}

}  // namespace

void add_plan(CLI::App& app, Command& command) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* sub = app.add_subcommand("plan", "Show the kernel of every layer of a checkpoint, and why not another");
  sub->add_option("checkpoint", options->directory, "Checkpoint folder (config.json and safetensors files)")
      ->required();
  add_device_option(*sub, options->device);
  add_kernel_option(*sub, options->kernel);
  add_dtype_option(*sub, "--dtype", options->dtype, "Activation dtype (default: config.json's dtype)");
  add_dtype_option(*sub, "--out-dtype", options->out_dtype, "Output dtype (default: as the activations)");
  sub->add_flag("--json", options->json, "One JSON document instead of text");
  sub->footer(
      "\nReads headers and config.json only. Exits with 3 when a layer has no kernel.\n"
      "\nExamples:\n"
      "  scaledmm plan model-int8/\n"
      "  scaledmm plan model-fp8/ --device cpu:amx --json\n"
      "  scaledmm plan model-fp8/ --kernel fp8_w8a16_avx2");
  sub->callback([options, &command] { command = [options] { return plan(*options); }; });
}

}  // namespace scaledmm::cli
