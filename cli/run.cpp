// scaledmm run: one layer of a checkpoint on given activations, or all of them on random ones as a check.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "cli/apply_where_it_runs.hpp"
#include "cli/commands.hpp"
#include "cli/layer_options.hpp"
#include "cli/output.hpp"
#include "cli/smoke.hpp"
#include "formats/quote.hpp"
#include "formats/safetensors.hpp"
#include "formats/safetensors_writer.hpp"
#include "scaledmm/scaledmm.hpp"

namespace scaledmm::cli {
namespace {

struct RunOptions {
  std::string checkpoint;
  std::string layer;
  std::string input;
  std::string output;
  std::string device;
  std::string kernel;
  std::string out_dtype;
  std::string packed;
  int threads = 0;
  bool json = false;
};

LinearOptions linear_options(const RunOptions& options) {
  LinearOptions linear;
  linear.device = find_device(options.device);
  linear.select = force_kernel(options.kernel);
  linear.threading.threads = options.threads;
  return linear;
}

std::shared_ptr<const PackedFile> open_packed(const Checkpoint& checkpoint, const RunOptions& options) {
  if (options.packed.empty()) return nullptr;
  return std::make_shared<const PackedFile>(PackedFile::open(options.packed, checkpoint));
}

// The tensor x. Errors: Unsupported when there is none, or of a type that activations do not have.
ConstTensorView input_tensor(const SafetensorsFile& file) {
  const TensorEntry* entry = file.find("x");
  if (entry == nullptr) {
    constexpr std::size_t kShown = 10;
    std::vector<std::string> names;
    for (const TensorEntry& other : file.tensors()) {
      if (names.size() < kShown) names.push_back(quote(other.name));
    }
    const std::size_t more = file.tensors().size() - names.size();
    throw Unsupported(fmt::format("{}: has no tensor x (it has: {}{})", file.path().string(),
                                  names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
                                  more == 0 ? "" : fmt::format(" and {} more", more)));
  }
  if (!entry->stored->dtype || !is_float16_or_32(*entry->stored->dtype)) {
    throw Unsupported(
        fmt::format("{}: tensor x is {}, expected F32, BF16 or F16", file.path().string(), entry->stored->name));
  }
  if (entry->shape.rank() == 0) {
    throw Unsupported(fmt::format("{}: tensor x has no dimensions, expected [..., K]", file.path().string()));
  }
  return file.view(*entry);
}

// The layer, or the reason why this one cannot run, with the kernels that could when one was forced.
Linear load_layer(const Checkpoint& checkpoint, const LayerRecord& record, const RunOptions& options,
                  const std::shared_ptr<const PackedFile>& packed) {
  if (!record.quantized) {
    throw Unsupported(fmt::format("{}: is dense ({}), only quantized layers run", record.name, record.weight));
  }
  LinearOptions linear = linear_options(options);
  linear.packed = packed;
  const Selection selection = select_kernel(record, *linear.device, options.kernel);
  for (const std::string& warning : selection.warnings) note(warning);
  // What a packed file holds was verified when it was packed: its source is not read again.
  if (packed == nullptr || !packed->holds(record.name)) check_values(checkpoint, record);
  Linear loaded = Linear::load(checkpoint, record.name, linear);
  for (const std::string& warning : loaded.warnings()) note(record.name + ": " + warning);
  return loaded;
}

// What the output must not take the place of.
std::vector<std::filesystem::path> files_read(const Checkpoint& checkpoint, const RunOptions& options) {
  std::vector<std::filesystem::path> read = checkpoint_files(checkpoint);
  read.emplace_back(options.input);
  if (!options.packed.empty()) read.emplace_back(options.packed);
  return read;
}

const LayerRecord& find_layer(const Checkpoint& checkpoint, const std::string& name) {
  try {
    return checkpoint.layer(name);
  } catch (const CheckpointError& error) {
    throw UsageError(error.what());  // the checkpoint is sound, the name is not
  }
}

int run_layer(const RunOptions& options) {
  const SafetensorsFile input = SafetensorsFile::open(options.input, false);
  const ConstTensorView x = input_tensor(input);
  CheckpointOptions checkpoint_options;
  checkpoint_options.input_dtype = x.dtype;
  checkpoint_options.out_dtype = options.out_dtype.empty() ? x.dtype : *dtype_from_name(options.out_dtype);
  const Checkpoint checkpoint = Checkpoint::open(options.checkpoint, checkpoint_options);
  check_output("--output", options.output, files_read(checkpoint, options));
  const LayerRecord& record = find_layer(checkpoint, options.layer);
  if (x.shape.back() != record.k) {
    throw Unsupported(fmt::format("{}: tensor x is {}, but layer {} has K = {}", options.input, x.shape.text(),
                                  record.name, record.k));
  }
  const Linear linear = load_layer(checkpoint, record, options, open_packed(checkpoint, options));
  const DType out = *checkpoint_options.out_dtype;
  Shape y_shape = x.shape;
  y_shape[y_shape.rank() - 1] = record.n;
  std::vector<std::byte> y(static_cast<std::size_t>(y_shape.elements() * size_bytes(out)));
  Context context(find_device(options.device), Threading{options.threads, nullptr, nullptr});
  apply_where_it_runs(linear, x, {y.data(), out, y_shape}, context);
  SafetensorsWriter writer(options.output, {{"y", &stored_dtype(out), y_shape}});
  writer.write("y", y);
  writer.finish();
  if (options.kernel.empty()) note(fmt::format("kernel {}", linear.kernel().name()));
  return kOk;
}

int check_layers(const RunOptions& options) {
  CheckpointOptions checkpoint_options;
  checkpoint_options.out_dtype = dtype_from_name(options.out_dtype);
  const Checkpoint checkpoint = Checkpoint::open(options.checkpoint, checkpoint_options);
  std::vector<const LayerRecord*> records;
  for (const LayerRecord& layer : checkpoint.layers()) {
    if (layer.quantized && (options.layer.empty() || layer.name == options.layer)) records.push_back(&layer);
  }
  if (!options.layer.empty() && records.empty()) records.push_back(&find_layer(checkpoint, options.layer));
  if (records.empty()) throw Unsupported(fmt::format("{}: has no quantized layer", options.checkpoint));
  const std::shared_ptr<const PackedFile> packed = open_packed(checkpoint, options);
  std::vector<SmokeResult> results;
  {
    Progress progress;
    Context context(find_device(options.device), Threading{options.threads, nullptr, nullptr});
    for (const LayerRecord* record : records) {
      progress.update(results.size(), records.size(), record->name);
      results.push_back(smoke_check(checkpoint, *record, load_layer(checkpoint, *record, options, packed), context));
    }
  }
  const SmokeResult* worst = nullptr;
  std::size_t failures = 0;
  Table table({"layer", "scheme", "kernel", "relative error", "bound", ""}, "lllrrl");
  Json document;
  document["layers"] = Json::array();
  for (const SmokeResult& result : results) {
    table.add({result.layer, result.scheme, result.kernel, fmt::format("{:.2e}", result.relative_error),
               fmt::format("{:.2e}", result.bound), result.ok() ? "ok" : "FAILED"});
    document["layers"].push_back({{"name", result.layer},
                                  {"scheme", result.scheme},
                                  {"kernel", result.kernel},
                                  {"relative_error", result.relative_error},
                                  {"bound", result.bound},
                                  {"ok", result.ok()}});
    failures += result.ok() ? 0 : 1;
    if (worst == nullptr || result.relative_error > worst->relative_error) worst = &result;
  }
  if (options.json) {
    print_json(document);
  } else {
    print(table.text());
  }
  if (failures == 0) return kOk;
  throw Failed(kFailedCheck, fmt::format("{} of {} outside the bound, the worst is {} with {:.2e}", failures,
                                         count_of(results.size(), "layer"), worst->layer, worst->relative_error));
}

int run(const RunOptions& options) {
  if (options.input.empty() != options.output.empty()) throw UsageError("--input and --output belong together");
  if (options.input.empty()) return check_layers(options);
  if (options.layer.empty()) throw UsageError("--input needs --layer");
  return run_layer(options);
}

}  // namespace

void add_run(CLI::App& app, Command& command) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* sub = app.add_subcommand("run", "Run one layer on given activations, or check all layers on random ones");
  sub->add_option("checkpoint", options->checkpoint, "Checkpoint folder")->required();
  sub->add_option("--layer", options->layer, "Name of the layer, such as model.layers.0.mlp.up_proj");
  sub->add_option("--input", options->input,
                  "safetensors file with a tensor x: F32, BF16 or F16, any rank, last dimension K");
  sub->add_option("--output", options->output, "safetensors file to write, with the tensor y [..., N]");
  sub->add_option("--device", options->device, "Where to run: cpu (the default), cuda, or cuda:1 for another card");
  add_kernel_option(*sub, options->kernel);
  sub->add_option("--packed", options->packed, "File that `scaledmm pack` wrote: its layers are mapped, not packed");
  add_dtype_option(*sub, "--out-dtype", options->out_dtype, "dtype of y (default: as x)");
  sub->add_option("--threads", options->threads, "Threads (default: all usable CPUs)")->check(CLI::Range(1, 1024));
  sub->add_flag("--json", options->json, "Without --input: one JSON document instead of a table");
  sub->footer(
      "\nWithout --kernel the selected kernel runs, and its name goes to standard error. Without --input every layer "
      "runs\n"
      "on random activations and is compared with its dequantized weights; a difference that quantization does not\n"
      "explain exits with 1.\n"
      "\nExamples:\n"
      "  scaledmm run model-int8/ --layer model.layers.0.mlp.up_proj --input x.safetensors --output y.safetensors\n"
      "  scaledmm run model-int8/\n"
      "  scaledmm run model-fp8/ --device cuda");
  sub->callback([options, &command] { command = [options] { return run(*options); }; });
}

}  // namespace scaledmm::cli
