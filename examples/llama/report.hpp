// The table: every scheme beside the dense baselines, and whether the quantized models are good enough.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "example_data.hpp"
#include "scaledmm/linear.hpp"

namespace llama {

// The evaluations of earlier runs, in ReportOptions::models.
inline constexpr const char* kCacheName = "evaluations.json";

struct ReportOptions {
  std::filesystem::path models;  // holds bf16, int8, fp8, fp8-channel, fp8-block
  std::int64_t tokens = 4096;    // of the text, for perplexity
  std::int64_t window = 1024;
  int rounds = 3;              // of speed measurement, each through all schemes
  std::filesystem::path json;  // empty: none
  bool fresh = false;          // judge again what an earlier run of the same program on the same files has judged
};

// Errors: scaledmm::CheckpointError for a perplexity or divergence that is no number: the model computes nonsense.
void check_finite(double value, const std::string& what, const std::filesystem::path& model);

// Prints the table and the checks. False when a check failed: perplexity within 1 % of bf16, and the right capital of
// France.
bool report(const ReportOptions& options, const ExampleData& data, scaledmm::Context& context);

}  // namespace llama
