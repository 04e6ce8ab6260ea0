// scaledmm explain: the kernels for a made-up layer, without a checkpoint.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/commands.hpp"
#include "cli/layer_options.hpp"
#include "cli/output.hpp"
#include "cli/schemes.hpp"
#include "cli/selection_report.hpp"
#include "scaledmm/scaledmm.hpp"

namespace scaledmm::cli {
namespace {

struct ExplainOptions {
  std::string scheme;
  std::string shape;
  std::string dtype = "bf16";
  std::string out_dtype;
  std::string device;
  std::string kernel;
  bool static_input = false;
  bool asymmetric_input = false;
  bool json = false;
};

LayerConfig config_of(const ExplainOptions& options) {
  const std::vector<std::int64_t> sizes = parse_sizes(options.shape, 2, "N,K", 1);
  const DType input = *dtype_from_name(options.dtype);
  const DType out = options.out_dtype.empty() ? input : *dtype_from_name(options.out_dtype);
  LayerConfig config = make_config(options.scheme, sizes[0], sizes[1], input, out);
  if (auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
    if (options.static_input && int8->weight_block)
      throw UsageError("--static: block weights take dynamic activations");
    int8->is_static_input_scheme = options.static_input;
    int8->input_symmetric = !options.asymmetric_input;
    return config;
  }
  auto& fp8 = std::get<FP8ScaledMMLinearLayerConfig>(config);
  if (options.asymmetric_input) throw UsageError("--asymmetric: FP8 activations are symmetric");
  if (options.static_input) {
    if (!fp8.activation_quant_key || is_block_scaled(config)) {
      throw UsageError(fmt::format("--static: {} has no static activation scale", options.scheme));
    }
    fp8.activation_quant_key = kFp8StaticTensorSym;
  }
  return config;
}

int explain_layer(const ExplainOptions& options) {
  const SelectOptions select = force_kernel(options.kernel);
  const Device device = find_device(options.device);
  const Selection selection = explain(config_of(options), device, select);
  if (options.json) {
    Json document;
    document["device"] = device_json(device);
    document["layers"] = Json::array({layer_json(describe(selection.config), selection, {})});
    print_json(document);
  } else {
    print(selection.text() + "\n");
  }
  if (selection.kernel != nullptr) return kOk;
  throw Failed(kUnsupported, no_kernel_text(selection, options.kernel));
}

}  // namespace

void add_explain(CLI::App& app, Command& command) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* sub = app.add_subcommand("explain", "Show which kernels could run a layer that you describe");
  sub->add_option("--scheme", options->scheme, "How the layer is quantized")->required()->transform(layer_scheme());
  sub->add_option("--shape", options->shape, "N,K: output and input features")->required();
  add_dtype_option(*sub, "--dtype", options->dtype, "Activation dtype (default: bf16)");
  add_dtype_option(*sub, "--out-dtype", options->out_dtype, "Output dtype (default: as the activations)");
  sub->add_flag("--static", options->static_input, "One activation scale from the checkpoint (default: one a token)");
  sub->add_flag("--asymmetric", options->asymmetric_input, "INT8 activations with a zero point");
  add_device_option(*sub, options->device);
  add_kernel_option(*sub, options->kernel);
  sub->add_flag("--json", options->json, "One JSON document instead of text");
  sub->footer("\nExample:\n  scaledmm explain --scheme int8 --shape 4096,4096 --device cpu:avx512vnni");
  sub->callback([options, &command] { command = [options] { return explain_layer(*options); }; });
}

}  // namespace scaledmm::cli
