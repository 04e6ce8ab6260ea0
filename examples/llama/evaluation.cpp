#include "evaluation.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <string>

#include "sampler.hpp"
#include "scaledmm/error.hpp"
#include "vector_math.hpp"

namespace llama {
namespace {

// Logits of this many positions at a time: 25 MB for a vocabulary of 49152.
constexpr std::int64_t kHeadRows = 128;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Evaluation evaluate(Model& model, std::span<const std::int32_t> text, std::int64_t window, scaledmm::Context& context,
                    const std::function<void(std::size_t done, std::size_t windows)>& progress) {
  if (window < 2 || text.size() < 2) throw scaledmm::InvalidArgument("there is no token to predict");
  const std::int64_t vocabulary = model.config().vocabulary;
  const auto size = static_cast<std::int64_t>(text.size());
  KvCache cache(model.config(), std::min(window, size));
  std::vector<float> logits(static_cast<std::size_t>(kHeadRows * vocabulary));
  std::vector<double> losses(static_cast<std::size_t>(std::min(window, size)));
  Evaluation result;
  double total = 0;
  for (std::int64_t begin = 0; begin + 1 < size; begin += window) {
    const std::int64_t length = std::min(window, size - begin);
    const std::int32_t* tokens = text.data() + begin;
    cache.clear();
    const float* hidden = model.forward({tokens, static_cast<std::size_t>(length)}, cache);
    const std::int64_t predicted = length - 1;
    const std::size_t first = result.top1.size();
    result.top1.resize(first + static_cast<std::size_t>(predicted));
    for (std::int64_t row = 0; row < predicted; row += kHeadRows) {
      const std::int64_t rows = std::min(kHeadRows, predicted - row);
      model.head(hidden + row * model.config().hidden, rows, logits.data());
      context.parallel(rows, [&](std::int64_t i) {
        const float* line = logits.data() + i * vocabulary;
        const LogitSummary summary = summarize(line, vocabulary);
        result.top1[first + static_cast<std::size_t>(row + i)] = summary.top;
        losses[static_cast<std::size_t>(row + i)] = summary.log_sum_exp - line[tokens[row + i + 1]];
      });
    }
    const double sum = std::accumulate(losses.begin(), losses.begin() + predicted, 0.0);
    result.window_mean_nll.push_back(sum / static_cast<double>(predicted));
    total += sum;
    progress(result.window_mean_nll.size(), static_cast<std::size_t>((size - 2) / window + 1));
  }
  result.perplexity = std::exp(total / static_cast<double>(result.top1.size()));
  return result;
}

double divergence(Model& reference, Model& model, std::span<const std::int32_t> text, std::int64_t window,
                  scaledmm::Context& context) {
  if (window < 2 || text.size() < 2) throw scaledmm::InvalidArgument("there is no token to predict");
  const std::int64_t vocabulary = model.config().vocabulary;
  const auto size = static_cast<std::int64_t>(text.size());
  const std::int64_t positions = std::min(window, size);
  KvCache reference_cache(reference.config(), positions), cache(model.config(), positions);
  std::vector<float> expected(static_cast<std::size_t>(kHeadRows * vocabulary)), logits(expected.size());
  std::vector<double> divergences;
  for (std::int64_t begin = 0; begin + 1 < size; begin += window) {
    const auto tokens =
        text.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(std::min(window, size - begin)));
    reference_cache.clear();
    cache.clear();
    const float* expected_hidden = reference.forward(tokens, reference_cache);
    const float* hidden = model.forward(tokens, cache);
    const auto predicted = static_cast<std::int64_t>(tokens.size()) - 1;
    for (std::int64_t row = 0; row < predicted; row += kHeadRows) {
      const std::int64_t rows = std::min(kHeadRows, predicted - row);
      reference.head(expected_hidden + row * reference.config().hidden, rows, expected.data());
      model.head(hidden + row * model.config().hidden, rows, logits.data());
      const std::size_t first = divergences.size();
      divergences.resize(first + static_cast<std::size_t>(rows));
      context.parallel(rows, [&](std::int64_t i) {
        const float *p = expected.data() + i * vocabulary, *q = logits.data() + i * vocabulary;
        const double p_sum = summarize(p, vocabulary).log_sum_exp, q_sum = summarize(q, vocabulary).log_sum_exp;
        double sum = 0;
        for (std::int64_t token = 0; token < vocabulary; ++token) {
          const double log_p = p[token] - p_sum;
          if (log_p > -30) sum += std::exp(log_p) * (log_p - (q[token] - q_sum));
        }
        divergences[first + static_cast<std::size_t>(i)] = sum;
      });
    }
  }
  return std::accumulate(divergences.begin(), divergences.end(), 0.0) / static_cast<double>(divergences.size());
}

double agreement(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  if (a.size() != b.size() || a.empty()) {
    throw scaledmm::InvalidArgument("top-1 tokens of " + std::to_string(a.size()) + " and " + std::to_string(b.size()) +
                                    " positions cannot be compared");
  }
  std::size_t equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i] ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(a.size());
}

std::vector<std::int32_t> continue_greedily(Model& model, std::span<const std::int32_t> prompt, std::int64_t count) {
  KvCache cache(model.config(), static_cast<std::int64_t>(prompt.size()) + count);
  Sampler sampler(0, 0);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::span<const std::int32_t> input =
        tokens.empty() ? prompt : std::span<const std::int32_t>(&tokens.back(), 1);
    tokens.push_back(sampler.sample(model.next_logits(input, cache)));
  }
  return tokens;
}

void measure_round(Model& model, std::span<const std::int32_t> text, const SpeedPlan& plan, SpeedSamples& samples) {
  const std::int64_t decode_end = plan.decode_prompt_tokens + plan.decode_tokens;
  if (static_cast<std::int64_t>(text.size()) < std::max(plan.prompt_tokens, plan.decode_prompt_tokens)) {
    throw scaledmm::InvalidArgument("the text has only " + std::to_string(text.size()) + " tokens");
  }
  KvCache cache(model.config(), std::max(plan.prompt_tokens, decode_end));
  const auto start = std::chrono::steady_clock::now();
  const double linear_start = model.linear_seconds();
  model.next_logits(text.first(static_cast<std::size_t>(plan.prompt_tokens)), cache);
  samples.prompt_seconds.push_back(seconds_since(start));
  samples.prompt_linear_seconds.push_back(model.linear_seconds() - linear_start);

  cache.clear();
  Sampler sampler(0, 0);
  std::int32_t token =
      sampler.sample(model.next_logits(text.first(static_cast<std::size_t>(plan.decode_prompt_tokens)), cache));
  for (std::int64_t i = 0; i < plan.decode_tokens; ++i) {
    const auto token_start = std::chrono::steady_clock::now();
    const double token_linear_start = model.linear_seconds();
    token = sampler.sample(model.next_logits({&token, 1}, cache));
    samples.token_seconds.push_back(seconds_since(token_start));
    samples.token_linear_seconds.push_back(model.linear_seconds() - token_linear_start);
  }
}

double median(std::vector<double> values) {
  if (values.empty()) throw scaledmm::InvalidArgument("there is nothing to take the median of");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace llama
