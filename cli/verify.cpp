// scaledmm verify: reads every value of a checkpoint and lists what is wrong.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "scaledmm/checkpoint.hpp"

namespace scaledmm::cli {
namespace {

int verify(const std::string& directory, bool json) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  std::vector<std::string> problems;
  {
    Progress progress;
    problems = checkpoint.verify(
        [&progress](std::size_t done, std::size_t total) { progress.update(done, total, "layers read"); });
  }
  std::size_t quantized = 0;
  std::vector<std::string> warnings;
  for (const LayerRecord& layer : checkpoint.layers()) {
    quantized += layer.quantized ? 1 : 0;
    for (const std::string& warning : layer.warnings) warnings.push_back(layer.name + ": " + warning);
  }
  warnings.insert(warnings.end(), checkpoint.warnings().begin(), checkpoint.warnings().end());
  if (json) {
    print_json({{"directory", checkpoint.directory().string()},
                {"sound", problems.empty()},
                {"tensors", checkpoint.tensors().size()},
                {"layers", checkpoint.layers().size()},
                {"quantized_layers", quantized},
                {"problems", problems},
                {"warnings", warnings}});
  } else {
    for (const std::string& warning : warnings) print_line("warning: " + warning);
    for (const std::string& problem : problems) print_line(problem);
    if (problems.empty()) {
      print(fmt::format("sound: {}, {}, {} quantized\n", count_of(checkpoint.tensors().size(), "tensor"),
                        count_of(checkpoint.layers().size(), "linear layer"), quantized));
    }
  }
  if (problems.empty()) return kOk;
  throw Failed(
      kFailedCheck,
      problems.front() +
          (problems.size() == 1 ? "" : fmt::format(" (and {})", count_of(problems.size() - 1, "more problem"))));
}

}  // namespace

void add_verify(CLI::App& app, Command& command) {
  struct Options {
    std::string directory;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("verify", "Check every scale, weight code and dense value of a checkpoint");
  sub->add_option("checkpoint", options->directory, "Checkpoint folder (config.json and safetensors files)")
      ->required();
  sub->add_flag("--json", options->json, "One JSON document instead of text");
  sub->footer(
      "\nPrints one line for each problem, with file and tensor, and exits with 1 if there is any.\n"
      "\nExample:\n  scaledmm verify model-int8/");
  sub->callback([options, &command] { command = [options] { return verify(options->directory, options->json); }; });
}

}  // namespace scaledmm::cli
