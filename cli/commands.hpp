// The subcommands. Each add_... declares one with its options; parsing stores what to do in `command`, main runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/errors.hpp"

namespace scaledmm::cli {

// Runs a subcommand and gives the exit code. Errors: any of error.hpp, UsageError, Failed.
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
