// A made-up layer to time: random weights, and packed copies of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scaledmm/linear.hpp"

namespace scaledmm::cli {

// splitmix64
struct Random {
  std::uint64_t state;
  std::uint64_t next() {
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  // About normal, -126 to 126: the sum of four numbers of 6 bits.
  int bell() {
    const std::uint64_t z = next();
    return static_cast<int>((z & 63) + (z >> 8 & 63) + (z >> 16 & 63) + (z >> 24 & 63)) - 126;
  }
};

// Random weights of a config, packed once or, to be read from memory each time, more often than the caches can hold.
class BenchLayer {
 public:
  BenchLayer(const LayerConfig& config, const LinearKernel& kernel, bool cold, Context& context);

  const LinearKernel& kernel() const { return *kernel_; }
  const LayerConfig& config() const { return config_; }
  WeightShape shape() const { return shape_; }
  bool is_int8() const { return std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config_); }
  // The packed copies.
  const std::vector<Layer>& copies() const { return copies_; }

  // The weights as a checkpoint has them: codes [N, K], scales f32 [rows, columns].
  const std::vector<std::uint8_t>& codes() const { return codes_; }
  const std::vector<float>& scales() const { return scales_; }
  // The dequantized weight.
  float weight(std::int64_t n, std::int64_t k) const;
  // Views of rows [begin, begin + count); `codes` is where row `begin` starts.
  LayerWeights weights(const std::uint8_t* codes, std::int64_t begin, std::int64_t count) const;

  // Bytes of the weights and scales as a checkpoint has them.
  std::int64_t weight_bytes() const;
  // The packed bytes that one round of calls reads.
  std::int64_t resident_bytes() const;

 private:
  LayerConfig config_;
  const LinearKernel* kernel_;
  WeightShape shape_;
  std::int64_t block_n_ = 1;
  std::int64_t block_k_ = 1;
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
  std::vector<Layer> copies_;
};

}  // namespace scaledmm::cli
