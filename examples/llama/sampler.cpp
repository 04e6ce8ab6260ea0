#include "sampler.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "scaledmm/error.hpp"

namespace llama {

Sampler::Sampler(double temperature, std::uint64_t seed) : temperature_(temperature), random_(seed) {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    throw scaledmm::InvalidArgument("temperature = " + std::to_string(temperature) + " is not 0 or a positive number");
  }
}

std::int32_t Sampler::sample(std::span<const float> logits) {
  const auto best = std::ranges::max_element(logits);
  if (best == logits.end() || !std::isfinite(*best)) throw scaledmm::Error("the model's logits are not finite");
  if (temperature_ == 0) return static_cast<std::int32_t>(best - logits.begin());

  double total = 0;
  weights_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((static_cast<double>(logits[i]) - *best) / temperature_);
    total += weights_[i];
  }
  constexpr double kStep = 0x1p-53;  // not std::uniform_real_distribution, whose numbers differ between libraries
  double left = static_cast<double>(random_() >> 11) * kStep * total;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    left -= weights_[i];
    if (left < 0) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(best - logits.begin());  // rounding left a rest
}

}  // namespace llama
