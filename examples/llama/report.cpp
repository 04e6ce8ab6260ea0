#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation.hpp"
#include "evaluation_cache.hpp"
#include "linear_op.hpp"
#include "scaledmm/device.hpp"
#include "scaledmm/error.hpp"

namespace llama {
namespace {

constexpr double kPerplexityTolerance = 0.01;
constexpr std::string_view kCapital = " Paris.";

struct Row {
  std::string name;
  std::string folder;
  DenseMath dense = DenseMath::kF32;
  std::optional<Model> model;
  double checkpoint_mb = 0;
  Evaluation evaluation;
  double agreement = 0;
  SpeedSamples speed;
  std::string capital;

  double prompt_rate(const SpeedPlan& plan) const {
    return static_cast<double>(plan.prompt_tokens) / median(speed.prompt_seconds);
  }
  double decode_rate() const { return 1 / median(speed.token_seconds); }
};

struct Check {
  std::string text;
  bool passed = false;
};

void progress(const std::string& text) { fmt::print(stderr, "llama: {}\n", text); }

double weight_megabytes(const std::filesystem::path& folder) {
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  }
  return static_cast<double>(bytes) / 1e6;
}

std::vector<Row> load_rows(const ReportOptions& options, scaledmm::Context& context) {
  std::vector<Row> rows;
  const auto add = [&](std::string name, std::string folder, DenseMath dense) {
    progress("loading " + name);
    Row row;
    row.name = std::move(name);
    row.folder = std::move(folder);
    row.dense = dense;
    row.model = Model::load(options.models / row.folder, dense, context);
    row.checkpoint_mb = weight_megabytes(options.models / row.folder);
    rows.push_back(std::move(row));
  };
  add("f32", "bf16", DenseMath::kF32);
  add("bf16", "bf16", DenseMath::kBF16);
  for (const char* scheme : {"int8", "fp8", "fp8-channel", "fp8-block"}) add(scheme, scheme, DenseMath::kBF16);
  return rows;
}

// Perplexity, top-1 tokens and the capital of every row.
void judge(std::vector<Row>& rows, const ReportOptions& options, const ExampleData& data, scaledmm::Context& context) {
  const auto text = data.text().first(std::min(data.text().size(), static_cast<std::size_t>(options.tokens)));
  EvaluationCache cache(options.models / kCacheName);
  for (Row& row : rows) {
    const std::string key =
        fmt::format("{}{} of {} tokens in windows of {}", fingerprint({options.models / row.folder, data.folder()}),
                    row.model->kernels(), text.size(), options.window);
    std::optional<Evaluation> known;
    if (!options.fresh) known = cache.find(row.name, key);
    progress(fmt::format("perplexity of {} over {} tokens{}", row.name, text.size(),
                         known ? ": known from an earlier run on the same files (--fresh judges again)" : ""));
    if (known) {
      row.evaluation = *known;
    } else {
      row.evaluation = evaluate(*row.model, text, options.window, context, [](std::size_t, std::size_t) {});
      check_finite(row.evaluation.perplexity, "perplexity", options.models / row.folder);
      cache.store(row.name, key, row.evaluation);
    }
    row.capital = data.spelling(continue_greedily(*row.model, data.prompt("capital"), 2));
  }
  for (Row& row : rows) row.agreement = agreement(row.evaluation.top1, rows[1].evaluation.top1);
}

// Schemes take turns, so that a disturbance of the machine meets all of them.
void measure_speed(std::vector<Row>& rows, const ReportOptions& options, const SpeedPlan& plan,
                   const ExampleData& data) {
  for (int round = 0; round < options.rounds; ++round) {
    progress(fmt::format("speed, round {} of {}", round + 1, options.rounds));
    for (Row& row : rows) measure_round(*row.model, data.text(), plan, row.speed);
  }
}

std::vector<Check> checks(const std::vector<Row>& rows) {
  std::vector<Check> result;
  for (const Row& row : rows) {
    result.push_back({fmt::format("{}: \"The capital of France is\" continues with \"{}\"", row.name, row.capital),
                      row.capital == kCapital});
  }
  const double reference = rows[1].evaluation.perplexity;
  for (const Row& row : rows) {
    if (row.folder == "bf16") continue;
    const double change = row.evaluation.perplexity / reference - 1;
    result.push_back({fmt::format("{}: perplexity {:+.2f} % of bf16's, at most 1 % apart", row.name, 100 * change),
                      std::abs(change) <= kPerplexityTolerance});
  }
  return result;
}

void print_table(const std::vector<Row>& rows, const ReportOptions& options, const SpeedPlan& plan,
                 scaledmm::Context& context) {
  fmt::print("\n{:<12} {:>10} {:>10} {:>10} {:>15} {:>15}  {}\n", "", "checkpoint", "", "top-1 as", "prompt", "decode",
             "");
  fmt::print("{:<12} {:>10} {:>10} {:>10} {:>15} {:>15}  {}\n", "scheme", "MB", "perplexity", "bf16", "tokens/s",
             "tokens/s", "kernel");
  for (const Row& row : rows) {
    const auto rate = [&](double value, double baseline) {
      return fmt::format("{:.1f} ({:.2f}x)", value, value / baseline);
    };
    fmt::print("{:<12} {:>10.1f} {:>10.4f} {:>8.2f} % {:>15} {:>15}  {}\n", row.name, row.checkpoint_mb,
               row.evaluation.perplexity, 100 * row.agreement, rate(row.prompt_rate(plan), rows[0].prompt_rate(plan)),
               rate(row.decode_rate(), rows[0].decode_rate()), row.model->kernels());
  }
  fmt::print("\n{}; {} threads; {}. Medians of {} rounds; prompt of {} tokens, decoding after {} tokens.\n",
             scaledmm::this_cpu().description, context.threads(), blas_name(), options.rounds, plan.prompt_tokens,
             plan.decode_prompt_tokens);
  fmt::print("Perplexity over {} tokens in windows of {}. All rows: f32 activations, and the tied embedding in bf16.\n",
             options.tokens, options.window);
  fmt::print("f32 and bf16 run the same bf16 checkpoint: f32 widens it when loading, bf16 at each use.\n\n");
}

void write_json(const std::filesystem::path& file, const std::vector<Row>& rows, const std::vector<Check>& results,
                const ReportOptions& options, const SpeedPlan& plan, scaledmm::Context& context) {
  nlohmann::ordered_json json;
  json["cpu"] = scaledmm::this_cpu().description;
  json["isa"] = scaledmm::name(scaledmm::this_cpu().isa);
  json["threads"] = context.threads();
  json["blas"] = blas_name();
  json["tokens"] = options.tokens;
  json["window"] = options.window;
  for (const Row& row : rows) {
    json["rows"].push_back({{"scheme", row.name},
                            {"checkpoint_mb", row.checkpoint_mb},
                            {"perplexity", row.evaluation.perplexity},
                            {"window_mean_nll", row.evaluation.window_mean_nll},
                            {"top1_agreement_with_bf16", row.agreement},
                            {"prompt_tokens_per_s", row.prompt_rate(plan)},
                            {"decode_tokens_per_s", row.decode_rate()},
                            {"kernel", row.model->kernels()}});
  }
  for (const Check& check : results) json["checks"].push_back({{"check", check.text}, {"passed", check.passed}});
  std::ofstream stream(file);
  stream << json.dump(2) << '\n';
  stream.close();
  if (!stream) throw scaledmm::IoError("cannot write " + file.string());
}

}  // namespace

void check_finite(double value, const std::string& what, const std::filesystem::path& model) {
  if (std::isfinite(value)) return;
  throw scaledmm::CheckpointError(model.string() + ": the " + what + " is " + fmt::format("{}", value) +
                                  ", weights or config.json are broken");
}

bool report(const ReportOptions& options, const ExampleData& data, scaledmm::Context& context) {
  const SpeedPlan plan;
  std::vector<Row> rows = load_rows(options, context);
  judge(rows, options, data, context);
  measure_speed(rows, options, plan, data);
  print_table(rows, options, plan, context);
  const std::vector<Check> results = checks(rows);
  bool all_passed = true;
  for (const Check& check : results) {
    fmt::print("{}  {}\n", check.passed ? "PASS" : "FAIL", check.text);
    all_passed = all_passed && check.passed;
  }
  if (!options.json.empty()) write_json(options.json, rows, results, options, plan, context);
  return all_passed;
}

}  // namespace llama
