// llama: runs a small Llama through scaledmm, judges it and times it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "evaluation.hpp"
#include "example_data.hpp"
#include "linear_op.hpp"
#include "model.hpp"
#include "report.hpp"
#include "sampler.hpp"
#include "scaledmm/error.hpp"

namespace llama {
namespace {

// As the scaledmm command ends.
enum ExitCode : int { kOk = 0, kFailed = 1, kUsage = 2, kUnsupported = 3, kIo = 4, kDevice = 5 };

struct Options {
  std::string folder;
  std::string data;
  int threads = 0;
  std::string device = "cpu";
  DenseMath dense = DenseMath::kF32;
  std::int64_t tokens = 4096;
  std::int64_t window = 1024;
  std::string write_top1;
  std::string compare_top1;
  std::string against;
  bool on_calibration_text = false;
  int rounds = 3;
  std::string prompt = "chat";
  std::int64_t max_tokens = 160;
  double temperature = 0;
  std::uint64_t seed = 1;
  std::string json;
  std::string out;
  bool fresh = false;
};

// Before the work: whether a file can be written. It stays as it was, or absent.
void check_writable(const std::string& file) {
  std::error_code absent;
  const bool is_there = std::filesystem::exists(file, absent);
  std::ofstream stream(file, std::ios::app);
  if (!stream) throw scaledmm::IoError("cannot write " + file + ": " + std::strerror(errno));
  stream.close();
  if (!is_there) std::filesystem::remove(file, absent);
}

// The same for the file that an option names, which must be none of the model's.
void check_output(const char* option, const std::string& file, const std::string& model) {
  if (file.empty()) return;
  std::error_code absent;
  for (const auto& read : std::filesystem::directory_iterator(model)) {
    if (std::filesystem::equivalent(read, file, absent)) {
      throw scaledmm::InvalidArgument(std::string(option) + " " + file + " is a file of the model");
    }
  }
  check_writable(file);
}

Model load_model(const Options& options, scaledmm::Context& context) {
  return Model::load(options.folder, options.dense, context, nullptr, scaledmm::device_from_name(options.device));
}

void write_tokens(const std::string& file, const std::vector<std::int32_t>& tokens) {
  std::ofstream stream(file);
  for (const std::int32_t token : tokens) stream << token << '\n';
  stream.close();
  if (!stream) throw scaledmm::IoError("cannot write " + file);
}

std::vector<std::int32_t> read_tokens(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw scaledmm::IoError("cannot read " + file + ": " + std::strerror(errno));
  std::vector<std::int32_t> tokens;
  for (std::int32_t token = 0; stream >> token;) tokens.push_back(token);
  if (!stream.eof()) throw scaledmm::CheckpointError(file + ": is no list of tokens");
  return tokens;
}

int run_eval(const Options& options, const ExampleData& data, scaledmm::Context& context) {
  check_output("--write-top1", options.write_top1, options.folder);
  std::vector<std::int32_t> compared;
  if (!options.compare_top1.empty()) compared = read_tokens(options.compare_top1);
  std::optional<Model> reference;
  if (!options.against.empty()) reference = Model::load(options.against, DenseMath::kF32, context);
  Model model = load_model(options, context);
  const auto whole = options.on_calibration_text ? data.calibration() : data.text();
  const auto text = whole.first(std::min(whole.size(), static_cast<std::size_t>(options.tokens)));
  const Evaluation result = evaluate(model, text, options.window, context, [](std::size_t done, std::size_t windows) {
    fmt::print(stderr, "llama: window {} of {}\n", done, windows);
  });
  check_finite(result.perplexity, "perplexity", options.folder);
  fmt::print("perplexity {:.5f} over {} predicted tokens, {}\n", result.perplexity, result.top1.size(),
             model.kernels());
  if (!options.compare_top1.empty()) {
    fmt::print("top-1 agreement {:.2f} %\n", 100 * agreement(result.top1, compared));
  }
  if (reference) {
    const double distance = divergence(*reference, model, text, options.window, context);
    check_finite(distance, "divergence", options.against);
    fmt::print("Kullback-Leibler divergence {:.5f} nats a token from {}\n", distance, options.against);
  }
  if (!options.write_top1.empty()) write_tokens(options.write_top1, result.top1);
  return kOk;
}

int run_calibrate(const Options& options, const ExampleData& data, scaledmm::Context& context) {
  check_output("--out", options.out, options.folder);
  scaledmm::Calibration calibration;
  Model model = Model::load(options.folder, DenseMath::kF32, context, &calibration);
  const auto text =
      data.calibration().first(std::min(data.calibration().size(), static_cast<std::size_t>(options.tokens)));
  const auto window = static_cast<std::size_t>(options.window);
  for (std::size_t begin = 0; begin < text.size(); begin += window) {
    const auto part = text.subspan(begin, std::min(window, text.size() - begin));
    KvCache cache(model.config(), static_cast<std::int64_t>(part.size()));
    model.forward(part, cache);
    fmt::print(stderr, "llama: calibrated with {} of {} tokens\n", begin + part.size(), text.size());
  }
  calibration.save(options.out);
  return kOk;
}

int run_speed(const Options& options, const ExampleData& data, scaledmm::Context& context) {
  Model model = load_model(options, context);
  const SpeedPlan plan;
  SpeedSamples samples;
  for (int round = 0; round < options.rounds; ++round) measure_round(model, data.text(), plan, samples);
  const double prompt = median(samples.prompt_seconds), token = median(samples.token_seconds);
  fmt::print("prompt {:.1f} tokens/s, {:.0f} % of the time in linear layers; decode {:.1f} tokens/s, {:.0f} %; {}\n",
             static_cast<double>(plan.prompt_tokens) / prompt, 100 * median(samples.prompt_linear_seconds) / prompt,
             1 / token, 100 * median(samples.token_linear_seconds) / token, model.kernels());
  return kOk;
}

int run_generate(const Options& options, const ExampleData& data, scaledmm::Context& context) {
  Model model = load_model(options, context);
  const auto prompt = data.prompt(options.prompt);
  const std::int64_t positions = static_cast<std::int64_t>(prompt.size()) + options.max_tokens;
  if (positions > model.config().max_positions) {
    throw scaledmm::InvalidArgument(fmt::format("--max-tokens {} after a prompt of {} is past the model's {} positions",
                                                options.max_tokens, prompt.size(), model.config().max_positions));
  }
  KvCache cache(model.config(), positions);
  Sampler sampler(options.temperature, options.seed);
  fmt::print("{}", data.spelling(prompt));
  std::vector<std::int32_t> input(prompt.begin(), prompt.end());
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    std::fflush(stdout);
    const std::int32_t token = sampler.sample(model.next_logits(input, cache));
    if (data.ends_generation(token)) break;
    fmt::print("{}", data.spelling(token));
    input.assign(1, token);
  }
  fmt::print("\n");
  return kOk;
}

int run_report(const Options& options, const ExampleData& data, scaledmm::Context& context) {
  check_output("--json", options.json, options.folder);
  check_writable((std::filesystem::path(options.folder) / kCacheName).string());
  ReportOptions report_options;
  report_options.models = options.folder;
  report_options.tokens = options.tokens;
  report_options.window = options.window;
  report_options.rounds = options.rounds;
  report_options.json = options.json;
  report_options.fresh = options.fresh;
  return report(report_options, data, context) ? kOk : kFailed;
}

int run_main(int argc, char** argv) {
  Options options;
  CLI::App app("A small Llama whose linear layers run through scaledmm", "llama");
  app.require_subcommand(1);
  int (*command)(const Options&, const ExampleData&, scaledmm::Context&) = nullptr;
  const auto add = [&](const char* name, const char* help, auto run) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->add_option("--data", options.data, "folder with text and prompts (the model's sibling 'example')");
    sub->add_option("--threads", options.threads, "threads (SCALEDMM_NUM_THREADS, else all CPUs)")
        ->check(CLI::Range(1, 4096));
    sub->callback([&command, run] { command = run; });
    return sub;
  };
  const auto add_model = [&](CLI::App* sub) {
    const auto set_dense = [&options](const std::string& word) {
      options.dense = word == "bf16" ? DenseMath::kBF16 : DenseMath::kF32;
    };
    sub->add_option("model", options.folder, "model folder")->required();
    sub->add_option_function<std::string>("--dense", set_dense, "how layers without quantization run (default: f32)")
        ->check(CLI::IsMember({"f32", "bf16"}));
    sub->add_option("--device", options.device, "where the linear layers of a quantized checkpoint run: cpu or cuda")
        ->capture_default_str();
  };
  const auto add_text = [&](CLI::App* sub) {
    sub->add_option("--tokens", options.tokens, "at most so much of the text")
        ->capture_default_str()
        ->check(CLI::Range(2, 1 << 30));
    sub->add_option("--window", options.window, "tokens that are judged together")
        ->capture_default_str()
        ->check(CLI::Range(2, 1 << 20));
  };
  const auto add_rounds = [&](CLI::App* sub) {
    sub->add_option("--rounds", options.rounds, "speed is the median of so many")
        ->capture_default_str()
        ->check(CLI::Range(1, 1000));
  };
  CLI::App* eval = add("eval", "Perplexity on the text", run_eval);
  add_model(eval);
  add_text(eval);
  eval->add_option("--write-top1", options.write_top1, "write the likeliest token of each position here");
  eval->add_option("--compare-top1", options.compare_top1, "compare them with such a file");
  eval->add_flag("--on-calibration-text", options.on_calibration_text, "judge by the text that calibrates");
  eval->add_option("--against", options.against, "a dense model folder: how far predictions are from its own");
  CLI::App* calibrate = add("calibrate", "Watch the inputs of the linear layers for `scaledmm convert`", run_calibrate);
  add_model(calibrate);
  add_text(calibrate);
  calibrate->add_option("--out", options.out, "file to write")->required();
  CLI::App* speed = add("speed", "Tokens per second", run_speed);
  add_model(speed);
  add_rounds(speed);
  CLI::App* generate = add("generate", "Continue a prompt", run_generate);
  add_model(generate);
  generate->add_option("--prompt", options.prompt, "chat or capital")
      ->capture_default_str()
      ->check(CLI::IsMember({"chat", "capital"}));
  generate->add_option("--max-tokens", options.max_tokens, "stop after so many")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  generate->add_option("--temperature", options.temperature, "0: greedy")->capture_default_str();
  generate->add_option("--seed", options.seed, "of the sampling")->capture_default_str()->check(CLI::NonNegativeNumber);
  CLI::App* table = add("report", "All schemes beside the dense model: size, perplexity, speed, kernel", run_report);
  table->add_option("--models", options.folder, "folder that holds bf16, int8, fp8, fp8-channel, fp8-block")
      ->required();
  add_text(table);
  add_rounds(table);
  table->add_option("--json", options.json, "also write the numbers here");
  table->add_flag("--fresh", options.fresh, "judge again what an earlier run on the same files has judged");
  app.footer(
      "\nExit codes: 0 ok, 1 a check failed or a model is broken, 2 wrong usage, 3 unsupported input or no kernel,\n"
      "4 a file is missing or cannot be read or written, 5 a device failed.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const bool has_command = !app.get_subcommands().empty();
    const std::string reason =
        has_command || app.remaining().empty() ? error.what() : "there is no subcommand " + app.remaining().front();
    fmt::print(stderr, "llama: {} (see llama --help)\n", reason);
    return kUsage;
  }
  const std::filesystem::path folder = options.folder;
  const auto beside = command == run_report ? folder / "example" : folder / ".." / "example";
  const ExampleData data = ExampleData::open(options.data.empty() ? beside : std::filesystem::path(options.data));
  scaledmm::Context context(scaledmm::Threading{options.threads, nullptr, nullptr});
  const int code = command(options, data, context);
  // A full disk shows up here at the latest.
  if (std::fflush(stdout) != 0) throw scaledmm::IoError(std::string("standard output: ") + std::strerror(errno));
  return code;
}

int complain(int code, const std::exception& error) {
  std::fprintf(stderr, "llama: %s\n", error.what());
  return code;
}

}  // namespace
}  // namespace llama

int main(int argc, char** argv) {
  try {
    llama::start_with_fitting_blas(argv);
    return llama::run_main(argc, argv);
  } catch (const scaledmm::InvalidArgument& error) {
    return llama::complain(llama::kUsage, error);
  } catch (const scaledmm::Unsupported& error) {
    return llama::complain(llama::kUnsupported, error);
  } catch (const scaledmm::IoError& error) {
    return llama::complain(llama::kIo, error);
  } catch (const std::system_error& error) {  // of the standard library's files and folders
    return llama::complain(llama::kIo, error);
  } catch (const scaledmm::DeviceError& error) {
    return llama::complain(llama::kDevice, error);
  } catch (const std::exception& error) {
    return llama::complain(llama::kFailed, error);
  }
}
