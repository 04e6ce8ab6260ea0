// Chooses the next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace llama {

class Sampler {
 public:
  // temperature 0: always the largest logit, the first of several. Else softmax(logits / temperature), reproducible by
  // seed. Errors: scaledmm::InvalidArgument for a negative or non-finite temperature.
  Sampler(double temperature, std::uint64_t seed);
  // Errors: scaledmm::Error when no logit is finite.
  std::int32_t sample(std::span<const float> logits);

 private:
  double temperature_;
  std::mt19937_64 random_;
  std::vector<double> weights_;
};

}  // namespace llama
