// scaledmm inspect: what a checkpoint holds, as its headers and config.json say.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/selection_report.hpp"
#include "scaledmm/checkpoint.hpp"

namespace scaledmm::cli {
namespace {

using TensorIndex = std::map<std::string, const StoredTensor*>;

// "I8 [576, 576]", or "-" for a layer without such a tensor.
std::string tensor_text(const TensorIndex& tensors, const std::string& tensor) {
  const auto found = tensors.find(tensor);
  if (found == tensors.end()) return "-";
  return fmt::format("{} {}", found->second->stored_dtype, found->second->shape.text());
}

Json tensor_json(const TensorIndex& tensors, const std::string& tensor) {
  const auto found = tensors.find(tensor);
  if (found == tensors.end()) return nullptr;
  const StoredTensor& stored = *found->second;
  const auto sizes = stored.shape.sizes();
  return {{"name", stored.name},
          {"dtype", stored.stored_dtype},
          {"shape", std::vector<std::int64_t>(sizes.begin(), sizes.end())},
          {"bytes", stored.size_bytes},
          {"file", stored.file.filename().string()}};
}

std::string activation_text(const LayerRecord& layer) {
  if (!layer.quantized) return "-";
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&layer.config)) {
    return fmt::format("int8 {}{}", int8->is_static_input_scheme ? "static per_tensor" : "dynamic per_token",
                       int8->input_symmetric ? "" : " asymmetric");
  }
  const auto& key = std::get<FP8ScaledMMLinearLayerConfig>(layer.config).activation_quant_key;
  if (!key) return "not quantized";
  return fmt::format("{} {} {}", name(key->dtype), key->scale.is_static ? "static" : "dynamic",
                     key->scale.group_shape.text());
}

Json layer_record_json(const LayerRecord& layer, const TensorIndex& tensors) {
  return {{"name", layer.name},
          {"quantized", layer.quantized},
          {"scheme", layer.scheme},
          {"format", layer.format},
          {"n", layer.n},
          {"k", layer.k},
          {"description", layer.quantized ? Json(describe(layer.config)) : Json(nullptr)},
          {"weight", tensor_json(tensors, layer.weight)},
          {"weight_scale", tensor_json(tensors, layer.weight_scale)},
          {"input_scale", tensor_json(tensors, layer.input_scale)},
          {"input_zero_point", tensor_json(tensors, layer.input_zero_point)},
          {"bias", tensor_json(tensors, layer.bias)},
          {"warnings", layer.warnings}};
}

void print_text(const Checkpoint& checkpoint, const TensorIndex& tensors, std::uint64_t bytes) {
  print_line("checkpoint  " + checkpoint.directory().string());
  print_line("format      " + (checkpoint.quant_method().empty() ? "not quantized" : checkpoint.quant_method()));
  print(fmt::format("dtype       {}\ntensors     {}, {}\n\n", name(checkpoint.model_dtype()),
                    checkpoint.tensors().size(), megabytes(bytes)));
  struct Group {
    const LayerRecord* first;
    std::size_t count;
  };
  std::vector<Group> groups;
  std::map<std::string, std::size_t> known;
  for (const LayerRecord& layer : checkpoint.layers()) {
    const std::string key = fmt::format("{}|{}|{}|{}|{}|{}|{}", layer_pattern(layer.name), layer.scheme, layer.format,
                                        activation_text(layer), tensor_text(tensors, layer.weight),
                                        tensor_text(tensors, layer.weight_scale), tensor_text(tensors, layer.bias));
    const auto [at, is_new] = known.try_emplace(key, groups.size());
    if (is_new) groups.push_back({&layer, 0});
    ++groups[at->second].count;
  }
  Table table({"layer", "count", "scheme", "weight", "weight scale", "activations", "bias", "format"}, "lrllllll");
  for (const Group& group : groups) {
    const LayerRecord& layer = *group.first;
    table.add({layer_pattern(layer.name), std::to_string(group.count), layer.scheme, tensor_text(tensors, layer.weight),
               tensor_text(tensors, layer.weight_scale), activation_text(layer), tensor_text(tensors, layer.bias),
               layer.quantized ? layer.format : "-"});
  }
  print(table.empty() ? "no linear layers\n" : table.text());
  for (const LayerRecord& layer : checkpoint.layers()) {
    for (const std::string& warning : layer.warnings) {
      print_line(fmt::format("warning: {}: {}", layer.name, warning));
    }
  }
  for (const std::string& warning : checkpoint.warnings()) print_line("warning: " + warning);
}

int inspect(const std::string& directory, bool lenient, bool json) {
  CheckpointOptions options;
  options.lenient = lenient;
  const Checkpoint checkpoint = Checkpoint::open(directory, options);
  TensorIndex tensors;
  std::uint64_t bytes = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    tensors[tensor.name] = &tensor;
    bytes += tensor.size_bytes;
  }
  if (!json) {
    print_text(checkpoint, tensors, bytes);
    return kOk;
  }
  Json document;
  document["directory"] = checkpoint.directory().string();
  document["quant_method"] = checkpoint.quant_method();
  document["dtype"] = name(checkpoint.model_dtype());
  document["tensors"] = checkpoint.tensors().size();
  document["bytes"] = bytes;
  document["layers"] = Json::array();
  for (const LayerRecord& layer : checkpoint.layers()) {
    document["layers"].push_back(layer_record_json(layer, tensors));
  }
  document["warnings"] = checkpoint.warnings();
  print_json(document);
  return kOk;
}

}  // namespace

void add_inspect(CLI::App& app, Command& command) {
  struct Options {
    std::string directory;
    bool lenient = false;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("inspect", "Show the linear layers of a checkpoint, their formats and problems");
  sub->add_option("checkpoint", options->directory, "Checkpoint folder (config.json and safetensors files)")
      ->required();
  sub->add_flag("--lenient", options->lenient, "Leave out layers that contradict the config instead of failing");
  sub->add_flag("--json", options->json, "One JSON document instead of text");
  sub->footer(
      "\nReads headers and config.json only; `scaledmm verify` reads the values too.\n"
      "\nExample:\n  scaledmm inspect model-int8/");
  sub->callback([options, &command] {
    command = [options] { return inspect(options->directory, options->lenient, options->json); };
  });
}

}  // namespace scaledmm::cli
