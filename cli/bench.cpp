// scaledmm bench: times made-up layers. docs/benchmarking.md says what every field means.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_layer.hpp"
#include "cli/commands.hpp"
#include "cli/layer_options.hpp"
#include "cli/machine_peak.hpp"
#include "cli/output.hpp"
#include "cli/selection_report.hpp"
#include "formats/atomic_file.hpp"
#include "scaledmm/scaledmm.hpp"

namespace scaledmm::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> schemes;
  std::vector<std::string> shapes;
  std::string kernel;
  std::string x_dtype = "bf16";
  std::string output;
  int threads = 0;
  bool cold = false;
  bool json = false;
};

struct Problem {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
};

// The linear layers of Llama 3 8B: qkv, attention output, gate and up, down.
std::vector<Problem> default_problems() {
  constexpr WeightShape kLayers[] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
  std::vector<Problem> problems;
  for (const WeightShape& layer : kLayers) {
    for (const std::int64_t m : {1, 16, 64, 256}) problems.push_back({m, layer.n, layer.k});
  }
  return problems;
}

// Every M of one weight stands together, in the order in which the weights were named.
std::vector<Problem> parse_problems(const std::vector<std::string>& shapes) {
  std::vector<Problem> problems;
  for (const std::string& text : shapes) {
    const std::vector<std::int64_t> sizes = parse_sizes(text, 3, "M,N,K", 1);
    problems.push_back({sizes[0], sizes[1], sizes[2]});
  }
  return problems;
}

struct Machine {
  PeakRates peak;
  std::map<std::int64_t, double> bandwidth;  // by the bytes that one round of calls reads

  double bandwidth_for(std::int64_t bytes, Context& context) {
    const auto [at, is_new] = bandwidth.try_emplace(bytes);
    if (is_new) at->second = measure_bandwidth(bytes, context);
    return at->second;
  }
};

// The least time that this machine could need, in microseconds.
double floor_us(const Problem& problem, const BenchLayer& layer, Machine& machine, Context& context) {
  const double ops = 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n * problem.k);
  const double bytes =
      static_cast<double>(layer.weight_bytes() + problem.m * problem.k * size_bytes(input_dtype(layer.config())) +
                          problem.m * problem.n * size_bytes(out_dtype(layer.config())));
  const bool int8 = std::holds_alternative<Int8ScaledMMLinearLayerConfig>(layer.config());
  const double peak = int8 ? machine.peak.int8_ops : machine.peak.float_ops;
  const double memory = bytes / machine.bandwidth_for(layer.resident_bytes(), context);
  return 1e6 * std::max(memory, peak > 0 ? ops / peak : 0);
}

Json measure_row(const std::string& scheme, const Problem& problem, const BenchOptions& options, BenchLayer& layer,
                 Machine& machine, Context& context) {
  const LayerTimes times = layer.measure(problem.m, context);
  const double median = times.apply.quantile(0.5);
  const double ops = 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n * problem.k);
  Json row;
  row["kernel"] = layer.kernel().name();
  row["scheme"] = scheme;
  row["m"] = problem.m;
  row["n"] = problem.n;
  row["k"] = problem.k;
  row["threads"] = context.threads();
  row["cold"] = options.cold;
  row["gemm_us"] = times.gemm.us.empty() ? Json(nullptr) : Json(times.gemm.quantile(0.5));
  row["apply_us"] = median;
  row["p10_us"] = times.apply.quantile(0.1);
  row["p90_us"] = times.apply.quantile(0.9);
  row["tops"] = ops / median * 1e-6;
  row["gb_per_s"] = static_cast<double>(layer.weight_bytes()) / median * 1e-3;
  row["share_of_floor"] = floor_us(problem, layer, machine, context) / median;
  return row;
}

std::string table_header() {
  return fmt::format("{:<24} {:<15} {:>5} {:>6} {:>6} {:>11} {:>11} {:>11} {:>11} {:>7} {:>7} {:>6}\n", "kernel",
                     "scheme", "M", "N", "K", "gemm us", "apply us", "p10 us", "p90 us", "TOPS", "GB/s", "floor");
}

std::string table_row(const Json& row) {
  const std::string gemm = row["gemm_us"].is_null() ? "-" : fmt::format("{:.1f}", row["gemm_us"].get<double>());
  return fmt::format(
      "{:<24} {:<15} {:>5} {:>6} {:>6} {:>11} {:>11.1f} {:>11.1f} {:>11.1f} {:>7.3f} {:>7.1f} {:>5.0f}%\n",
      row["kernel"].get<std::string>(), row["scheme"].get<std::string>(), row["m"].get<std::int64_t>(),
      row["n"].get<std::int64_t>(), row["k"].get<std::int64_t>(), gemm, row["apply_us"].get<double>(),
      row["p10_us"].get<double>(), row["p90_us"].get<double>(), row["tops"].get<double>(),
      row["gb_per_s"].get<double>(), 100 * row["share_of_floor"].get<double>());
}

const LinearKernel& choose_kernel(const LayerConfig& config, const BenchOptions& options) {
  const Selection selection = explain(config, this_cpu(), force_kernel(options.kernel));
  if (selection.kernel == nullptr) {
    throw Unsupported(fmt::format("{}: {}", describe(config), no_kernel_text(selection, options.kernel)));
  }
  return *selection.kernel;
}

int bench(const BenchOptions& options) {
  const std::vector<std::string> schemes =
      options.schemes.empty() ? std::vector<std::string>{"int8", "fp8_w8a16"} : options.schemes;
  const std::vector<Problem> problems = options.shapes.empty() ? default_problems() : parse_problems(options.shapes);
  const DType dtype = *dtype_from_name(options.x_dtype);
  // Every kernel is chosen before the first is timed, so that a wrong request fails at once.
  for (const std::string& scheme : schemes) {
    for (const Problem& p : problems) choose_kernel(make_config(scheme, p.n, p.k, dtype, dtype), options);
  }
  Context context(Threading{options.threads, nullptr, nullptr});
  Machine machine;
  machine.peak = measure_peak(context);
  if (!options.json) {
    print(fmt::format("{}; {}, weights {}\n", printable(device_line(this_cpu())),
                      count_of(static_cast<std::size_t>(context.threads()), "thread") + " used",
                      options.cold ? "cold (from memory)" : "hot"));
    print(fmt::format("measured peak: int8 {:.3f} TOPS, f32 {:.3f} TFLOPS\n\n", machine.peak.int8_ops * 1e-12,
                      machine.peak.float_ops * 1e-12));
    print(table_header());
  }
  Json rows = Json::array();
  for (const std::string& scheme : schemes) {
    std::optional<BenchLayer> layer;
    LayerConfig config;
    for (const Problem& problem : problems) {
      const LayerConfig wanted = make_config(scheme, problem.n, problem.k, dtype, dtype);
      if (!layer || !(wanted == config)) {
        layer.reset();  // the old copies go before the new ones come
        config = wanted;
        layer.emplace(config, choose_kernel(config, options), options.cold, context);
      }
      rows.push_back(measure_row(scheme, problem, options, *layer, machine, context));
      if (options.json) {
        print_json_line(rows.back());
      } else {
        print(table_row(rows.back()));
      }
      std::fflush(stdout);
    }
  }
  if (!options.output.empty()) {
    Json document;
    document["version"] = version();
    document["device"] = device_json(this_cpu());
    document["peak_int8_ops"] = machine.peak.int8_ops;
    document["peak_float_ops"] = machine.peak.float_ops;
    document["rows"] = rows;
    write_file(options.output, json_text(document));
  }
  return kOk;
}

}  // namespace

void add_bench(CLI::App& app, Command& command) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* sub = app.add_subcommand("bench", "Time layers on this machine, without a checkpoint");
  sub->add_option("--scheme", options->schemes, "How the layer is quantized; repeatable (default: int8 and fp8_w8a16)")
      ->check(CLI::IsMember(scheme_words()))
      ->take_all()
      ->expected(1);
  sub->add_option("--shape", options->shapes, "M,N,K: rows, output and input features; repeatable")
      ->take_all()
      ->expected(1);
  add_kernel_option(*sub, options->kernel);
  sub->add_option("--threads", options->threads, "Threads (default: all usable CPUs)")->check(CLI::Range(1, 1024));
  sub->add_flag("--cold", options->cold, "Rotate over copies of the weights, so that each call reads them from memory");
  add_dtype_option(*sub, "--x-dtype", options->x_dtype, "dtype of activations and outputs (default: bf16)");
  sub->add_flag("--json", options->json, "One JSON object for each row instead of a table");
  sub->add_option("--output", options->output, "Also write the rows and the machine to this JSON file");
  sub->footer(
      "\nTimes are medians in microseconds: apply is the whole call, gemm the call with activations that were "
      "quantized\n"
      "before (- where a kernel takes none). TOPS and GB/s of weights are those of apply; floor is the least time "
      "that\n"
      "this machine could need, max(operations / peak, bytes / bandwidth), as a share of apply. The outputs are "
      "checked\n"
      "against the reference before anything is timed. Without --shape the layers of Llama 3 8B are timed.\n"
      "\nExamples:\n"
      "  scaledmm bench\n"
      "  scaledmm bench --scheme int8 --shape 1,4096,4096 --shape 64,4096,4096 --cold --threads 1 --json");
  sub->callback([options, &command] { command = [options] { return bench(*options); }; });
}

}  // namespace scaledmm::cli
