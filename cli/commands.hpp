// The subcommands. Each add_... declares one with its options; parsing stores what to do in `command`, main runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "scaledmm/error.hpp"

namespace scaledmm::cli {

// What the process gives back. Documented in `scaledmm --help`.
enum ExitCode : int { kOk = 0, kFailedCheck = 1, kUsage = 2, kUnsupported = 3, kIo = 4, kDevice = 5 };

// The command line asks for something that does not exist: a kernel, a layer.
class UsageError : public Error {
 public:
  using Error::Error;
};

// The user or the system wants the command to end.
class Interrupted : public Error {
 public:
  explicit Interrupted(int signal) : Error("interrupted, nothing was written"), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

// Runs a subcommand and gives the exit code. Errors: any of error.hpp, UsageError.
using Command = std::function<int()>;

void add_devices(CLI::App& app, Command& command);
void add_inspect(CLI::App& app, Command& command);
void add_verify(CLI::App& app, Command& command);
void add_plan(CLI::App& app, Command& command);
void add_explain(CLI::App& app, Command& command);
void add_rotate(CLI::App& app, Command& command);
void add_convert(CLI::App& app, Command& command);
void add_pack(CLI::App& app, Command& command);
void add_run(CLI::App& app, Command& command);
void add_bench(CLI::App& app, Command& command);

}  // namespace scaledmm::cli
