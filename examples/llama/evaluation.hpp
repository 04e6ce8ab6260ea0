// How well a model predicts a text, and how fast it is.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model.hpp"

namespace llama {

struct Evaluation {
  std::vector<double> window_mean_nll;
  double perplexity = 0;           // exp of the mean negative log-likelihood over all predicted positions
  std::vector<std::int32_t> top1;  // the likeliest token at each of them
};

// Windows of `window` tokens stand alone; in each, the tokens at 1, 2, ... are predicted. Errors:
// scaledmm::InvalidArgument for fewer than two tokens.
Evaluation evaluate(Model& model, std::span<const std::int32_t> text, std::int64_t window, scaledmm::Context& context,
                    const std::function<void(std::size_t done, std::size_t windows)>& progress);

// Mean Kullback-Leibler divergence of a model's predictions from a reference's, in nats a token, over the positions
// that evaluate() judges. Errors: those of evaluate().
double divergence(Model& reference, Model& model, std::span<const std::int32_t> text, std::int64_t window,
                  scaledmm::Context& context);

// The share of equal entries. Errors: scaledmm::InvalidArgument for lists of different lengths.
double agreement(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

// `count` tokens after `prompt` under greedy sampling.
std::vector<std::int32_t> continue_greedily(Model& model, std::span<const std::int32_t> prompt, std::int64_t count);

struct SpeedSamples {
  std::vector<double> prompt_seconds;  // all prompt tokens, up to the logits of the next
  std::vector<double> token_seconds;   // one token of decoding
  // The parts of these that linear layers took.
  std::vector<double> prompt_linear_seconds;
  std::vector<double> token_linear_seconds;
};

struct SpeedPlan {
  std::int64_t prompt_tokens = 512;
  std::int64_t decode_prompt_tokens = 16;
  std::int64_t decode_tokens = 24;
};

// One prompt and one run of decoding, appended to `samples`.
void measure_round(Model& model, std::span<const std::int32_t> text, const SpeedPlan& plan, SpeedSamples& samples);

double median(std::vector<double> values);

}  // namespace llama
