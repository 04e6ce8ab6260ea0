// The parts of the example: inner loops, RoPE, sampling.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "attention.hpp"
#include "evaluation.hpp"
#include "sampler.hpp"
#include "scaledmm/error.hpp"
#include "vector_math.hpp"

namespace llama {
namespace {

std::vector<float> random_values(std::int64_t n, float spread = 1) {
  std::mt19937 random(static_cast<unsigned>(n) + 1);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

TEST(VectorMath, SoftmaxMatchesTheFormulaAtEveryLength) {
  for (std::int64_t n = 1; n < 40; ++n) {
    const std::vector<float> x = random_values(n, 8);
    std::vector<float> y = x;
    softmax(y.data(), n, 0.5F);
    double total = 0;
    for (const float value : x) total += std::exp(0.5 * value);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], std::exp(0.5 * x[i]) / total, 1e-6) << n << " " << i;
  }
}

TEST(VectorMath, SoftmaxSurvivesLargeScores) {
  std::vector<float> x = {1000, -1e30F, 1000, -1000, 0};
  softmax(x.data(), 5, 1);
  EXPECT_FLOAT_EQ(x[0], 0.5F);
  EXPECT_FLOAT_EQ(x[2], 0.5F);
  EXPECT_LT(x[1] + x[3] + x[4], 1e-30F);
}

TEST(VectorMath, SiluMatchesTheFormula) {
  const std::vector<float> gate = random_values(1003, 20);
  const std::vector<float> up = random_values(1004, 2);
  std::vector<float> y(1003);
  silu_multiply(gate.data(), up.data(), 1003, y.data());
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double expected = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
    EXPECT_NEAR(y[i], expected, 1e-6 * std::abs(expected) + 1e-30) << gate[i];
  }
}

TEST(VectorMath, SummaryHasTheFirstOfTheLargest) {
  for (const std::int64_t n : {1, 7, 8, 9, 1000}) {
    std::vector<float> x = random_values(n);
    double total = 0;
    if (n > 3) x[2] = x[static_cast<std::size_t>(n) - 1] = 9;
    for (const float value : x) total += std::exp(static_cast<double>(value));
    const LogitSummary summary = summarize(x.data(), n);
    EXPECT_EQ(summary.top, std::ranges::max_element(x) - x.begin());
    EXPECT_NEAR(summary.log_sum_exp, std::log(total), 1e-5);
  }
}

TEST(VectorMath, RmsNormMatchesTheFormula) {
  const std::vector<float> x = random_values(77);
  const std::vector<float> weight = random_values(78);
  std::vector<float> y(77);
  rms_norm(x.data(), weight.data(), 1e-5F, 77, y.data());
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * value;
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], x[i] / std::sqrt(squares / 77 + 1e-5) * weight[i], 1e-5);
}

// 13 rows and 3 blocks of columns: whole tiles and what is left of them.
TEST(VectorMath, ProductsMatchPlainSums) {
  constexpr std::int64_t kRows = 13, kDepth = 37, kColumns = 48, kAStride = 40, kCStride = 50;
  const std::vector<float> a = random_values(kRows * kAStride);
  const std::vector<float> b = random_values(3 * kDepth * 16);
  for (std::int64_t rows = 1; rows <= kRows; ++rows) {
    for (std::int64_t blocks = 1; blocks <= 3; ++blocks) {
      std::vector<float> c(kRows * kCStride, 7);
      multiply({rows, kDepth, blocks, a.data(), kAStride, b.data(), 16, kDepth * 16, c.data(), kCStride});
      for (std::int64_t i = 0; i < kRows; ++i) {
        for (std::int64_t j = 0; j < kCStride; ++j) {
          const bool is_written = i < rows && j < std::min(kColumns, blocks * 16);
          double expected = is_written ? 0 : 7;
          for (std::int64_t t = 0; is_written && t < kDepth; ++t) {
            expected += static_cast<double>(a[static_cast<std::size_t>(i * kAStride + t)]) *
                        b[static_cast<std::size_t>((j / 16 * kDepth + t) * 16 + j % 16)];
          }
          EXPECT_NEAR(c[static_cast<std::size_t>(i * kCStride + j)], expected, 1e-4) << rows << " " << i << " " << j;
        }
      }
    }
  }
}

Config rotary_config() {
  Config config;
  config.head_dim = 16;
  config.rope_theta = 1000;
  return config;
}

TEST(Rotary, PositionZeroChangesNothing) {
  const RotaryTable table(rotary_config(), 4);
  const std::vector<float> x = random_values(16);
  std::vector<float> y = x;
  table.apply(y.data(), 0);
  EXPECT_EQ(x, y);
}

TEST(Rotary, TurnsThePairIAndIPlusHalf) {
  const RotaryTable table(rotary_config(), 8);
  std::vector<float> x(16, 0.0F);
  x[1] = 1;
  table.apply(x.data(), 3);
  const double angle = 3 * std::pow(1000, -1.0 / 8);
  EXPECT_NEAR(x[1], std::cos(angle), 1e-6);
  EXPECT_NEAR(x[9], std::sin(angle), 1e-6);
}

TEST(Rotary, ScoresDependOnTheDistanceOnly) {
  const RotaryTable table(rotary_config(), 64);
  const auto score = [&](std::int64_t query_position, std::int64_t key_position) {
    std::vector<float> query = random_values(16);
    std::vector<float> key = random_values(17);
    table.apply(query.data(), query_position);
    table.apply(key.data(), key_position);
    float sum = 0;
    for (std::size_t i = 0; i < 16; ++i) sum += query[i] * key[i];
    return sum;
  };
  EXPECT_NEAR(score(9, 4), score(50, 45), 1e-4);
  EXPECT_GT(std::abs(score(9, 4) - score(9, 3)), 1e-3);
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  Sampler sampler(0, 1);
  EXPECT_EQ(sampler.sample(std::array{1.0F, 5.0F, 5.0F, -2.0F}), 1);
}

TEST(Sampler, TemperatureFollowsTheSoftmax) {
  Sampler sampler(2, 7);
  const std::array logits = {0.0F, 2.0F, -std::numeric_limits<float>::infinity(), 1.0F};
  std::array<int, 4> counts{};
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.sample(logits))];
  const double total = 1 + std::exp(1.0) + std::exp(0.5);
  EXPECT_NEAR(counts[0], kDraws / total, 400);
  EXPECT_NEAR(counts[1], kDraws * std::exp(1.0) / total, 400);
  EXPECT_NEAR(counts[3], kDraws * std::exp(0.5) / total, 400);
  EXPECT_EQ(counts[2], 0);
}

TEST(Sampler, TheSeedDecides) {
  const std::vector<float> logits = random_values(100);
  const auto draw = [&](std::uint64_t seed) {
    Sampler sampler(1, seed);
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 20; ++i) tokens.push_back(sampler.sample(logits));
    return tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Sampler, RefusesWhatIsNoNumber) {
  EXPECT_THROW(Sampler(-1, 1), scaledmm::InvalidArgument);
  EXPECT_THROW(Sampler(std::numeric_limits<double>::quiet_NaN(), 1), scaledmm::InvalidArgument);
  Sampler sampler(0, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(sampler.sample(std::array{nan, nan}), scaledmm::Error);
  EXPECT_THROW(sampler.sample(std::span<const float>()), scaledmm::Error);
}

TEST(Evaluation, AgreementCountsEqualTokens) {
  EXPECT_DOUBLE_EQ(agreement(std::array{1, 2, 3, 4}, std::array{1, 0, 3, 4}), 0.75);
  EXPECT_THROW(agreement(std::array{1, 2}, std::array{1}), scaledmm::InvalidArgument);
}

}  // namespace
}  // namespace llama
