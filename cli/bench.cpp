// scaledmm bench: times made-up layers. docs/benchmarking.md says what every field means.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_call.hpp"
#include "cli/bench_layer.hpp"
#include "cli/bench_peers.hpp"
#include "cli/bench_report.hpp"
#include "cli/commands.hpp"
#include "cli/layer_options.hpp"
#include "cli/machine_peak.hpp"
#include "cli/output.hpp"
#include "cli/schemes.hpp"
#include "cli/selection_report.hpp"
#include "formats/atomic_file.hpp"
#include "formats/json.hpp"
#include "scaledmm/scaledmm.hpp"

namespace scaledmm::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> schemes;
  std::vector<std::string> shapes;
  std::string kernel;
  std::string x_dtype = "bf16";
  std::string output;
  std::string html;
  std::string report;
  std::vector<std::string> peers;
  double seconds = 1.5;
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
  const LayerTimes times = BenchCall(layer, problem.m, context).measure();
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
  return fmt::format("{:<24} {:<15} {:>5} {:>6} {:>6} {:>11} {:>11.1f} {:>11.1f} {:>11.1f} {:>7.3f} {:>7.1f} {:>5.0f}%",
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

std::string comparison_header() {
  return fmt::format("\n{:<42} {:<15} {:>5} {:>6} {:>6} {:>11} {:>11} {:>6} {:>5} {:>5} {:>9} {:>9}  {}\n", "peer",
                     "scheme", "M", "N", "K", "ours us", "peer us", "ratio", "wins", "pairs", "our err", "peer err",
                     "AMX state");
}

std::string comparison_row(const Json& row) {
  if (row.contains("failed")) {
    return fmt::format("{:<42} {:<15} {}", row["peer"].get<std::string>(), row["scheme"].get<std::string>(),
                       row["failed"].get<std::string>());
  }
  std::string states;
  for (const auto& [state, some] : row["states"].items()) {
    states += fmt::format("{} {:.2f} ({:.0f}% of {}) ", state, some["ratio"].get<double>(),
                          100 * some["wins"].get<double>(), some["pairs"].get<std::size_t>());
  }
  return fmt::format(
      "{:<42} {:<15} {:>5} {:>6} {:>6} {:>11.1f} {:>11.1f} {:>6.2f} {:>4.0f}% {:>5} {:>9.1e} {:>9.1e}  {}",
      row["peer"].get<std::string>(), row["scheme"].get<std::string>(), row["m"].get<std::int64_t>(),
      row["n"].get<std::int64_t>(), row["k"].get<std::int64_t>(), row["ours_us"].get<double>(),
      row["peer_us"].get<double>(), row["ratio"].get<double>(), 100 * row["wins"].get<double>(),
      row["pairs"].get<std::size_t>(), row["ours_error"].get<double>(), row["peer_error"].get<double>(), states);
}

std::string date_text() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  return text;
}

// This process and the peers that it will start on the same CPUs: the first `threads` of the affinity mask.
void stay_on_cpus(int threads) {
  cpu_set_t all, some;
  CPU_ZERO(&all);
  CPU_ZERO(&some);
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
  for (int cpu = 0, taken = 0; cpu < CPU_SETSIZE && taken < threads; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &some);
    ++taken;
  }
  ::sched_setaffinity(0, sizeof some, &some);
}

// The system would end this process without a word when memory that it had promised is not there.
void check_memory(const Problem& problem, const LayerConfig& config) {
  const double outside =
      static_cast<double>(problem.m) *
      static_cast<double>(problem.k * size_bytes(input_dtype(config)) + problem.n * size_bytes(out_dtype(config)));
  const double bytes = outside + 2 * static_cast<double>(problem.n) * static_cast<double>(problem.k);
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (bytes <= memory) return;
  throw Unsupported(fmt::format("--shape {},{},{}: takes at least {:.0f} GB, this machine has {:.0f} GB", problem.m,
                                problem.n, problem.k, bytes * 1e-9, memory * 1e-9));
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options),
        context_(Threading{options.threads, nullptr, nullptr}),
        dtype_(*dtype_from_name(options.x_dtype)) {
    if (!options.peers.empty()) peers_.emplace(options.peers, context_.threads());
    machine_.peak = measure_peak(context_);
  }

  void run(const std::vector<std::string>& schemes, const std::vector<Problem>& problems) {
    if (!options_.json) print_head();
    if (peers_) {
      note_absent_peers();
      if (peers_->empty()) throw Failed(kFailedCheck, "no peer can run here, nothing was timed");
    }
    for (const std::string& scheme : schemes) {
      std::optional<BenchLayer> layer;
      std::vector<std::int64_t> ms;
      for (const Problem& problem : problems) {
        const LayerConfig wanted = make_config(scheme, problem.n, problem.k, dtype_, dtype_);
        if (!layer || !(wanted == layer->config())) {
          if (layer) compare(scheme, *layer, ms);
          ms.clear();
          layer.reset();  // the old copies go before the new ones come
          layer.emplace(wanted, choose_kernel(wanted, options_), options_.cold, context_);
        }
        ms.push_back(problem.m);
        add(rows_, measure_row(scheme, problem, options_, *layer, machine_, context_), table_row);
      }
      if (layer) compare(scheme, *layer, ms);
    }
  }

  // What was asked for with --peer and is not in the document.
  std::string missing_comparisons() const {
    if (!peers_) return {};
    for (const Json& row : comparisons_) {
      if (!row.contains("failed")) return {};
    }
    if (comparisons_.empty()) return "nothing was compared: no peer knows the schemes that were timed";
    return "nothing was compared: " + comparisons_.front()["peer"].get<std::string>() + ": " +
           comparisons_.front()["failed"].get<std::string>();
  }

  // Also after every comparison: a long run that is stopped leaves what it has.
  void save() const {
    if (!options_.output.empty()) write_file(options_.output, json_text(document()));
  }

  Json document() const {
    Json document;
    document["version"] = version();
    document["date"] = date_text();
    document["device"] = device_json(this_cpu());
    document["threads"] = context_.threads();
    document["peak_int8_ops"] = machine_.peak.int8_ops;
    document["peak_float_ops"] = machine_.peak.float_ops;
    document["rows"] = rows_;
    if (peers_) {
      document["peers"] = peers_->description();
      document["comparisons"] = comparisons_;
    }
    return document;
  }

 private:
  void print_head() const {
    print_line(fmt::format("{}; {}, weights {}", device_line(this_cpu()),
                           count_of(static_cast<std::size_t>(context_.threads()), "thread") + " used",
                           options_.cold ? "cold (from memory)" : "hot"));
    print(fmt::format("measured peak: int8 {:.3f} TOPS, f32 {:.3f} TFLOPS\n\n", machine_.peak.int8_ops * 1e-12,
                      machine_.peak.float_ops * 1e-12));
    print(table_header());
  }

  void note_absent_peers() const {
    for (const Json& peer : peers_->description()) {
      if (!peer.contains("absent")) continue;
      note(fmt::format("peer {}: {}", peer["command"].get<std::string>(), peer["absent"].get<std::string>()));
    }
  }

  void compare(const std::string& scheme, const BenchLayer& layer, const std::vector<std::int64_t>& ms) {
    if (!peers_) return;
    if (!options_.json) print(comparison_header());
    peers_->compare(scheme, layer, ms, options_.cold, options_.seconds, context_, [&](const Json& row) {
      add(comparisons_, row, comparison_row);
      save();
    });
    if (!options_.json) print("\n");
  }

  void add(Json& list, Json row, std::string (*line)(const Json&)) const {
    if (options_.json) {
      print_json_line(row);
    } else {
      print_line(line(row));
    }
    std::fflush(stdout);
    list.push_back(std::move(row));
  }

  const BenchOptions& options_;
  Context context_;
  DType dtype_;
  Machine machine_;
  std::optional<BenchPeers> peers_;
  Json rows_ = Json::array();
  Json comparisons_ = Json::array();
};

void write_report(const Json& document, const std::string& file) {
  write_file(file, html_report(document, std::filesystem::path(file).stem().string()));
}

int redraw(const BenchOptions& options) {
  if (options.html.empty()) throw UsageError("--report needs --html");
  check_output("--html", options.html, {options.report});
  write_report(read_json_file(options.report), options.html);
  return kOk;
}

int bench(BenchOptions options) {
  if (!options.report.empty()) return redraw(options);
  if (options.peers.empty() && options.seconds != BenchOptions().seconds)
    throw UsageError("--seconds belongs to --peer");
  const bool is_default = options.schemes.empty() && options.shapes.empty() && !options.json;
  if (is_default && options.output.empty() && options.html.empty()) {
    options.output = "scaledmm-bench.json";
    options.html = "scaledmm-bench.html";
  }
  const std::vector<std::string> schemes =
      options.schemes.empty() ? std::vector<std::string>{"int8", "fp8_w8a16"} : options.schemes;
  const std::vector<Problem> problems = options.shapes.empty() ? default_problems() : parse_problems(options.shapes);
  const DType dtype = *dtype_from_name(options.x_dtype);
  // All is looked at before the first kernel is timed, so that a wrong request fails at once.
  for (const std::string& scheme : schemes) {
    for (const Problem& p : problems) {
      const LayerConfig config = make_config(scheme, p.n, p.k, dtype, dtype);
      choose_kernel(config, options);
      check_memory(p, config);
    }
  }
  check_output("--output", options.output);
  check_output("--html", options.html);
  if (!options.html.empty() &&
      std::filesystem::weakly_canonical(options.html) == std::filesystem::weakly_canonical(options.output)) {
    throw UsageError("--output and --html name the same file");
  }
  if (!options.peers.empty() && options.threads > 0) stay_on_cpus(options.threads);
  Bench run(options);
  run.run(schemes, problems);
  run.save();
  if (!options.html.empty()) write_report(run.document(), options.html);
  for (const std::string& file : {options.output, options.html}) {
    if (!file.empty()) note("wrote " + file);
  }
  if (const std::string missing = run.missing_comparisons(); !missing.empty()) throw Failed(kFailedCheck, missing);
  return kOk;
}

}  // namespace

void add_bench(CLI::App& app, Command& command) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* sub = app.add_subcommand("bench", "Time layers on this machine, without a checkpoint");
  sub->add_option("--scheme", options->schemes, "How the layer is quantized; repeatable (default: int8 and fp8_w8a16)")
      ->transform(layer_scheme())
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
  sub->add_option("--peer", options->peers,
                  "A program that times another library's operators for comparison, such as \"python3 "
                  "bench/baselines/torch_cpu.py\"; repeatable")
      ->take_all()
      ->expected(1);
  sub->add_option("--seconds", options->seconds, "Time for each comparison with a peer (default: 1.5)")
      ->check(CLI::Range(0.0, 600.0))
      ->check(
          [](const std::string& word) { return word.find_first_of("nN") == word.npos ? "" : word + " is no time"; });
  sub->add_option("--output", options->output, "Also write the rows and the machine to this JSON file");
  sub->add_option("--html", options->html, "Also draw them, as one HTML page with plots");
  sub->add_option("--report", options->report, "Time nothing: draw this JSON file again (with --html)");
  sub->footer(
      "\nTimes are medians in microseconds: apply is the whole call, gemm the call with activations that were "
      "quantized\n"
      "before (- where a kernel takes none). TOPS and GB/s of weights are those of apply; floor is the least time "
      "that\n"
      "this machine could need, max(operations / peak, bytes / bandwidth), as a share of apply. The outputs are "
      "checked\n"
      "against the reference before anything is timed. Without --shape the layers of Llama 3 8B are timed; without "
      "any\n"
      "option the figures also go to scaledmm-bench.json and scaledmm-bench.html.\n"
      "With --peer both are called in turn, and the ratio is the median over pairs, above 1 where we are faster; when\n"
      "no peer gives a figure, the exit code is 1.\n"
      "\nExamples:\n"
      "  scaledmm bench\n"
      "  scaledmm bench --scheme int8 --shape 1,4096,4096 --shape 64,4096,4096 --cold --threads 1 --json\n"
      "  scaledmm bench --threads 1 --peer \"python3 bench/baselines/torch_cpu.py\" --html report.html");
  sub->callback([options, &command] { command = [options] { return bench(*options); }; });
}

}  // namespace scaledmm::cli
