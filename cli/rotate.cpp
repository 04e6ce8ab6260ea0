// scaledmm rotate: writes a dense checkpoint as one that computes the same and quantizes better.
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.hpp"
#include "cli/layer_options.hpp"
#include "cli/output.hpp"
#include "scaledmm/rotate.hpp"

namespace scaledmm::cli {
namespace {

struct RotateCommand {
  std::string source;
  std::string destination;
  std::uint64_t seed = 0;
  std::string calibration;
  bool json = false;
};

int rotate_checkpoint(const RotateCommand& options) {
  check_output_folder(options.destination);
  RotateOptions rotate_options;
  rotate_options.seed = options.seed;
  std::vector<std::string> warnings;
  rotate_options.warn = note_into(warnings);
  std::optional<Calibration> calibration;
  if (!options.calibration.empty()) {
    calibration = load_calibration(options.calibration);
    rotate_options.calibration = &*calibration;
  }
  std::size_t tensors = 0;
  {
    Progress progress;
    rotate_options.progress = [&](std::size_t done, std::size_t total, std::string_view tensor) {
      tensors = done;
      progress.update(done, total, tensor);
    };
    rotate(options.source, options.destination, rotate_options);
  }
  if (options.json) {
    print_json({{"source", options.source},
                {"destination", options.destination},
                {"seed", options.seed},
                {"tensors", tensors},
                {"warnings", warnings}});
  } else {
    print_line(fmt::format("{} rotated in {}", count_of(tensors, "tensor"), options.destination));
  }
  return kOk;
}

// The parser's own conversion wraps -1 and cuts off what is too large.
std::string whole_number(const std::string& word) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error == std::errc() && end == word.data() + word.size()) return {};
  return word + " is no number from 0 to 2^64 - 1";
}

}  // namespace

void add_rotate(CLI::App& app, Command& command) {
  auto options = std::make_shared<RotateCommand>();
  CLI::App* sub =
      app.add_subcommand("rotate", "Spread the outliers of a dense model over all channels, before convert");
  sub->add_option("source", options->source, "Dense checkpoint folder of a Llama-like model")->required();
  sub->add_option("destination", options->destination, "Folder to make; must not exist")->required();
  sub->add_option("--seed", options->seed, "Of the signs in the rotation (default: 0)")->check(whole_number);
  sub->add_option(
      "--calibration", options->calibration,
      "Second moments of the source's inputs (scaledmm::Calibration): what down_proj reads is smoothed, its\n"
      "large channels made smaller and the weights behind them larger");
  sub->add_flag("--json", options->json, "One JSON document");
  sub->footer(
      "\nThe result computes what the source does: an orthogonal matrix is folded into all weights around the "
      "residual\n"
      "stream, and another into values and what reads them (QuaRot). INT8 activations lose far less on it. A head "
      "that\n"
      "was tied to the embedding becomes a tensor of its own.\n"
      "\nExample:\n"
      "  scaledmm rotate model/ model-rotated/ && scaledmm convert model-rotated/ model-int8/ --scheme int8");
  sub->callback([options, &command] { command = [options] { return rotate_checkpoint(*options); }; });
}

}  // namespace scaledmm::cli
