// Options that several subcommands share: a made-up layer, a device, a kernel.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scaledmm/device.hpp"
#include "scaledmm/registry.hpp"
#include "scaledmm/scheme.hpp"

namespace scaledmm::cli {

// Words of --scheme for layers: int8, fp8_w8a16, fp8_w8a8, int8_block, fp8_w8a16_block, fp8_w8a8_block.
const std::vector<std::string>& scheme_words();
// Words of the dtype options: f32, bf16, f16.
const std::vector<std::string>& activation_dtypes();

// Weights per channel (or 128x128 blocks), activations dynamic per token (or in groups of 128), as checkpoints have
// them.
LayerConfig make_config(std::string_view scheme, std::int64_t n, std::int64_t k, DType input_dtype, DType out_dtype);

// Adds --device and --kernel, checked words.
void add_device_option(CLI::App& app, std::string& device);
void add_kernel_option(CLI::App& app, std::string& kernel);
void add_dtype_option(CLI::App& app, const char* flag, std::string& dtype, const char* help);

// this_cpu() for an empty name. Errors: InvalidArgument for an unknown one.
Device find_device(const std::string& name);
// Errors: UsageError for an unknown kernel, with the known names.
SelectOptions force_kernel(const std::string& kernel);

// "1,4096,4096" to numbers. Errors: UsageError unless there are exactly `count` of at least `minimum`.
std::vector<std::int64_t> parse_sizes(const std::string& text, std::size_t count, const char* form,
                                      std::int64_t minimum);

}  // namespace scaledmm::cli
