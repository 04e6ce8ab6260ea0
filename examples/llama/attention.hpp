// Rotary positions, the cache of keys and values, and causal grouped-query attention.
#pragma once

#include <cstdint>
#include <vector>

#include "config.hpp"
#include "scaledmm/linear.hpp"

namespace llama {

// Cosines and sines of RoPE for positions below `positions`: the pair (i, i + d/2) of a head turns by t *
// theta^(-2i/d).
class RotaryTable {
 public:
  RotaryTable(const Config& config, std::int64_t positions);
  void apply(float* head, std::int64_t position) const;

 private:
  std::int64_t half_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

// Keys and values of the tokens so far, for one sequence.
//   keys   [layer][kv head][t / 16][feature][t % 16]   16 positions are one column block of q K^T
//   values [layer][kv head][t][feature]
class KvCache {
 public:
  KvCache(const Config& config, std::int64_t capacity);
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  void clear() { length_ = 0; }

 private:
  friend class Attention;
  friend class Model;
  std::int64_t capacity_;   // a multiple of 16
  std::int64_t head_size_;  // floats of one head of one layer
  std::int64_t length_ = 0;
  std::vector<float> keys_;
  std::vector<float> values_;
};

class Attention {
 public:
  Attention(const Config& config, std::int64_t positions) : config_(config), rotary_(config, positions) {}

  // qkv [m, (heads + 2 kv_heads) * head_dim]: queries, keys and values of the m tokens after the cache's. Rotates
  // queries and keys, stores keys and values in the cache (its length is the model's to change), and writes out [m,
  // heads * head_dim].
  void apply(std::int64_t layer, float* qkv, std::int64_t m, KvCache& cache, float* out,
             scaledmm::Context& context) const;

 private:
  void store_row(std::int64_t layer, float* row, std::int64_t position, KvCache& cache) const;
  void attend(const float* keys, const float* values, const float* queries, std::int64_t rows, std::int64_t position,
              float* out) const;

  Config config_;
  RotaryTable rotary_;
};

}  // namespace llama
