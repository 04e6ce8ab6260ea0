// The words of --scheme: one table for the commands that make checkpoints and those that make up layers.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "scaledmm/checkpoint.hpp"
#include "scaledmm/scheme.hpp"

namespace scaledmm::cli {

// --scheme of explain and bench: words of layers, as plan prints them; and fp8, which is fp8_w8a8 with one scale for
// each weight. A word of convert becomes the layer's.
CLI::Validator layer_scheme();
// --scheme of convert: words of the checkpoints that it writes. A word of layers becomes the one of a checkpoint that
// has such layers; a word for which there is none is refused.
CLI::Validator checkpoint_scheme();
// The words that convert takes, a line each with what they mean.
std::string checkpoint_schemes_help();

// Words that have passed checkpoint_scheme() and layer_scheme(). Activations of the layer are dynamic.
ConvertScheme convert_scheme(std::string_view word);
LayerConfig make_config(std::string_view word, std::int64_t n, std::int64_t k, DType input_dtype, DType out_dtype);

}  // namespace scaledmm::cli
