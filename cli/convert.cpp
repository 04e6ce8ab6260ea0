// scaledmm convert: writes a dense checkpoint as a quantized one.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/layer_options.hpp"
#include "cli/output.hpp"
#include "cli/schemes.hpp"
#include "cli/selection_report.hpp"
#include "scaledmm/checkpoint.hpp"

namespace scaledmm::cli {
namespace {

struct ConvertCommand {
  std::string source;
  std::string destination;
  std::string scheme;
  std::string scale_dtype = "f32";
  std::uint64_t shard_megabytes = 5000;
  std::vector<std::string> ignore;
  std::string calibration;
  bool asymmetric_inputs = false;
  bool json = false;
};

std::uint64_t tensor_bytes(const std::string& directory) {
  std::uint64_t bytes = 0;
  const Checkpoint checkpoint = Checkpoint::open(directory);
  for (const StoredTensor& tensor : checkpoint.tensors()) bytes += tensor.size_bytes;
  return bytes;
}

void print_text(const ConvertCommand& options, const std::vector<ConvertedLayer>& layers) {
  struct Group {
    std::size_t count = 0;
    double max_abs_error = 0;
    double cosine = 1;
    std::int64_t saturated = 0;
  };
  std::vector<std::string> order;
  std::map<std::string, Group> groups;
  for (const ConvertedLayer& layer : layers) {
    const std::string pattern = layer_pattern(layer.name);
    if (!groups.contains(pattern)) order.push_back(pattern);
    Group& group = groups[pattern];
    ++group.count;
    group.max_abs_error = std::max(group.max_abs_error, layer.max_abs_error);
    group.cosine = std::min(group.cosine, layer.cosine);
    group.saturated += layer.saturated;
  }
  Table table({"layer", "count", "largest error", "least cosine", "saturated"}, "lrrrr");
  for (const std::string& pattern : order) {
    const Group& group = groups[pattern];
    table.add({pattern, std::to_string(group.count), fmt::format("{:.3g}", group.max_abs_error),
               fmt::format("{:.7f}", group.cosine), std::to_string(group.saturated)});
  }
  print(table.text());
  print("\n");
  print_line(fmt::format("{} as {} in {}: {} instead of {}", count_of(layers.size(), "layer"), options.scheme,
                         options.destination, megabytes(tensor_bytes(options.destination)),
                         megabytes(tensor_bytes(options.source))));
}

int convert_checkpoint(const ConvertCommand& options) {
  check_output_folder(options.destination);
  ConvertOptions convert_options;
  convert_options.scheme = convert_scheme(options.scheme);
  convert_options.bf16_scales = options.scale_dtype == "bf16";
  convert_options.shard_bytes = options.shard_megabytes * 1'000'000;
  convert_options.ignore = options.ignore;
  convert_options.asymmetric_inputs = options.asymmetric_inputs;
  std::vector<std::string> warnings;
  convert_options.warn = note_into(warnings);
  std::optional<Calibration> calibration;
  if (!options.calibration.empty()) {
    calibration = load_calibration(options.calibration);
    convert_options.calibration = &*calibration;
  }
  std::vector<ConvertedLayer> layers;
  {
    Progress progress;
    convert_options.progress = [&progress](std::size_t done, std::size_t total, std::string_view layer) {
      progress.update(done, total, layer);
    };
    layers = convert(options.source, options.destination, convert_options);
  }
  if (!options.json) {
    print_text(options, layers);
    return kOk;
  }
  Json document;
  document["source"] = options.source;
  document["destination"] = options.destination;
  document["scheme"] = options.scheme;
  document["source_bytes"] = tensor_bytes(options.source);
  document["bytes"] = tensor_bytes(options.destination);
  document["layers"] = Json::array();
  for (const ConvertedLayer& layer : layers) {
    document["layers"].push_back({{"name", layer.name},
                                  {"max_abs_error", layer.max_abs_error},
                                  {"cosine", layer.cosine},
                                  {"saturated", layer.saturated}});
  }
  document["warnings"] = warnings;
  print_json(document);
  return kOk;
}

}  // namespace

void add_convert(CLI::App& app, Command& command) {
  auto options = std::make_shared<ConvertCommand>();
  CLI::App* sub = app.add_subcommand("convert", "Write a bf16, f16 or f32 checkpoint as INT8 or FP8");
  sub->add_option("source", options->source, "Dense checkpoint folder")->required();
  sub->add_option("destination", options->destination, "Folder to make; must not exist")->required();
  sub->add_option("--scheme", options->scheme, checkpoint_schemes_help())->required()->transform(checkpoint_scheme());
  sub->add_option("--scale-dtype", options->scale_dtype, "How scales are stored (default: f32)")
      ->check(CLI::IsMember({"f32", "bf16"}));
  sub->add_option("--shard-size", options->shard_megabytes, "Most megabytes of a weight file (default: 5000)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000}));
  sub->add_option("--ignore", options->ignore, "Another layer to leave dense: its name, or re:PATTERN; repeatable")
      ->take_all()
      ->expected(1);
  sub->add_option("--calibration", options->calibration,
                  "Second moments of the layers' inputs (scaledmm::Calibration): codes are chosen so that their\n"
                  "errors cancel in the outputs, instead of each being the nearest");
  sub->add_flag(
      "--asymmetric-inputs", options->asymmetric_inputs,
      "int8: tokens are quantized with a zero point, so that all codes are used when a token's values are not\n"
      "symmetric about zero");
  sub->add_flag("--json", options->json, "One JSON document with the error of every layer");
  sub->footer(
      "\nThe head, embeddings, norms and routers stay dense. Other files and folders are copied, but for weights in "
      "other\n"
      "forms and folders with weights of their own; what is not copied is named on standard error. So are groups that\n"
      "engines run as one layer (q, k, v; gate, up) and of which --ignore leaves only a part dense. The result is "
      "read\n"
      "back and verified, and appears under its name only when everything is there.\n"
      "\nExamples:\n"
      "  scaledmm convert model/ model-int8/ --scheme int8\n"
      "  scaledmm convert model/ model-fp8/ --scheme fp8-channel --ignore 're:.*down_proj$'");
  sub->callback([options, &command] { command = [options] { return convert_checkpoint(*options); }; });
}

}  // namespace scaledmm::cli
