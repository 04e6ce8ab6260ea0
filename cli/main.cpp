// scaledmm: quantized checkpoints and the kernels that run them, from the command line.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>
#include <string_view>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "scaledmm/scaledmm.hpp"

namespace scaledmm::cli {
namespace {

constexpr const char* kDescription =
    "Quantized (INT8 and FP8) linear layers: which kernel runs a checkpoint, why not another, how exact, how fast.\n";

constexpr const char* kFooter =
    "\nExamples:\n"
    "  scaledmm devices                                   what this machine has, and which kernels it can run\n"
    "  scaledmm convert model/ model-int8/ --scheme int8  quantize a bf16 checkpoint\n"
    "  scaledmm plan model-int8/                          the kernel of every layer, and why not the others\n"
    "  scaledmm run model-int8/ --layer model.layers.0.mlp.up_proj --input x.safetensors --output y.safetensors\n"
    "  scaledmm bench --scheme int8 --shape 16,4096,4096  time one layer\n"
    "\n"
    "Exit codes: 0 ok, 1 a check failed or the checkpoint is broken, 2 wrong usage, 3 unsupported input or no kernel,\n"
    "4 a file is missing or cannot be read or written, 5 a device failed, 128 + N ended by signal N. Data goes to\n"
    "standard output, errors to standard error; with --json an error is one line there, {\"error\": TEXT,\n"
    "\"exit_code\": NUMBER}.\n"
    "\n"
    "Environment: SCALEDMM_FORCE_KERNEL, SCALEDMM_DISABLED_KERNELS, SCALEDMM_BACKEND, SCALEDMM_MAX_ISA,\n"
    "SCALEDMM_NUM_THREADS. Options of a subcommand win over them. SCALEDMM_VERBOSE=1: every choice of a kernel, on\n"
    "standard error.";

// Why a command fails, on standard error. Gives the code back.
class ErrorReport {
 public:
  explicit ErrorReport(bool as_json) : as_json_(as_json) {}

  int operator()(int code, std::string_view message) const {
    if (as_json_) {
      std::fputs(json_line({{"error", message}, {"exit_code", code}}).c_str(), stderr);
    } else {
      note(message);
    }
    return code;
  }

 private:
  bool as_json_;
};

// The one place that turns an error into an exit code.
int run_command(const Command& command, const ErrorReport& fail) {
  try {
    return command();
  } catch (const Interrupted& error) {
    return fail(128 + error.signal(), error.what());
  } catch (const Failed& error) {
    return fail(error.code(), error.what());
  } catch (const CheckpointError& error) {
    return fail(kFailedCheck, one_line(error.what()));
  } catch (const UsageError& error) {
    return fail(kUsage, error.what());
  } catch (const InvalidArgument& error) {
    return fail(kUsage, one_line(error.what()));
  } catch (const Unsupported& error) {
    return fail(kUnsupported, one_line(error.what()));
  } catch (const IoError& error) {
    return fail(kIo, one_line(error.what()));
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(kIo, one_line(error.what()));
  } catch (const DeviceError& error) {
    return fail(kDevice, one_line(error.what()));
  } catch (const std::bad_alloc&) {
    return fail(kUnsupported, "not enough memory");
  } catch (const std::exception& error) {
    return fail(kFailedCheck, one_line(error.what()));
  }
}

// A script's variable that is not set gives an empty word, which would stand for the folder of the day.
void refuse_empty_values(CLI::App& app) {
  for (CLI::App* sub : app.get_subcommands({})) {
    for (CLI::Option* option : sub->get_options()) {
      if (option->get_expected_max() == 0) continue;  // a flag
      option->check([](const std::string& value) { return std::string(value.empty() ? "the value is empty" : ""); });
    }
  }
}

// Checkpoints are mapped: a page of a file that another program cut meanwhile cannot be read.
constexpr std::string_view kCutText = "scaledmm: a file became shorter while it was read\n";
constexpr std::string_view kCutJson = "{\"error\":\"a file became shorter while it was read\",\"exit_code\":4}\n";
std::string_view cut_message = kCutText;

extern "C" void on_bus_error(int) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, cut_message.data(), cut_message.size());
  ::_exit(kIo);
}

int run_main(int argc, char** argv) {
  // A file size limit then is an error of write(), which cleans up, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app(kDescription, "scaledmm");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("scaledmm ") + version(), "Print the version and exit");
  app.require_subcommand(1);
  Command command;
  add_devices(app, command);
  add_inspect(app, command);
  add_verify(app, command);
  add_plan(app, command);
  add_explain(app, command);
  add_rotate(app, command);
  add_convert(app, command);
  add_pack(app, command);
  add_run(app, command);
  add_bench(app, command);
  refuse_empty_values(app);
  // The parser may give up before it comes to the option.
  const bool as_json =
      std::any_of(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; });
  const ErrorReport fail(as_json);
  if (as_json) cut_message = kCutJson;
  std::signal(SIGBUS, on_bus_error);
  // A full disk shows up here at the latest.
  const auto flushed = [&fail](int code) {
    if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && code == kOk) {
      return fail(kIo, std::string("standard output: ") + std::strerror(errno));
    }
    return code;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app.exit(error, std::cout);
      std::cout.flush();
      return std::cout ? flushed(kOk) : fail(kIo, std::string("standard output: ") + std::strerror(errno));
    }
    const CLI::App* used = app.get_subcommands().empty() ? &app : app.get_subcommands().front();
    const std::string unknown = used == &app && !app.remaining().empty() ? app.remaining().front() : "";
    const std::string reason = unknown.empty() ? error.what() : "there is no subcommand " + unknown;
    return fail(kUsage, reason + " (see " + used->get_display_name() + " --help)");
  }
  return flushed(run_command(command, fail));
}

}  // namespace
}  // namespace scaledmm::cli

int main(int argc, char** argv) { return scaledmm::cli::run_main(argc, argv); }
