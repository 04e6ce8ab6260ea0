// The shape of a Llama, from config.json.
#pragma once

#include <cstdint>

#include "scaledmm/checkpoint.hpp"

namespace llama {

struct Config {
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_positions = 0;
  double rope_theta = 10000;
  float rms_eps = 1e-5F;
  bool tied_head = false;  // the head is the embedding
};

// Errors: scaledmm::CheckpointError with the key and its value for a missing key, a value that no model can have, sizes
// that do not fit together, and a model that this decoder would run wrongly: biases, scaled RoPE, another activation.
Config read_config(const scaledmm::Checkpoint& checkpoint);

}  // namespace llama
