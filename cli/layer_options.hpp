// Options that several subcommands share: a device, a kernel, a dtype, a calibration.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "scaledmm/calibration.hpp"
#include "scaledmm/checkpoint.hpp"
#include "scaledmm/device.hpp"
#include "scaledmm/registry.hpp"

namespace scaledmm::cli {

// Words of the dtype options: f32, bf16, f16.
const std::vector<std::string>& activation_dtypes();

// Adds --device and --kernel, checked words.
void add_device_option(CLI::App& app, std::string& device);
void add_kernel_option(CLI::App& app, std::string& kernel);
void add_dtype_option(CLI::App& app, const char* flag, std::string& dtype, const char* help);

// this_cpu() for an empty name. Errors: InvalidArgument for an unknown one.
Device find_device(const std::string& name);
// Errors: UsageError for an unknown kernel, with the known names.
SelectOptions force_kernel(const std::string& kernel);

// What runs a layer on a device, --kernel or the best. Errors: Unsupported with the layer's name when nothing does, and
// those of force_kernel().
Selection select_kernel(const LayerRecord& record, const Device& device, const std::string& kernel);

// --calibration. A file that does not say which model it is of is taken, with a note.
Calibration load_calibration(const std::string& file);

// Reads the values of a layer. Errors: CheckpointError with the first problem of Checkpoint::verify.
void check_values(const Checkpoint& checkpoint, const LayerRecord& record);
// Every file that a checkpoint consists of.
std::vector<std::filesystem::path> checkpoint_files(const Checkpoint& checkpoint);
// "1,4096,4096" to numbers. Errors: UsageError unless there are exactly `count` of at least `minimum`.
std::vector<std::int64_t> parse_sizes(const std::string& text, std::size_t count, const char* form,
                                      std::int64_t minimum);

}  // namespace scaledmm::cli
