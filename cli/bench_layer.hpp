// A made-up layer to time: weights, packed copies, activations, and the check that its outputs are right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "scaledmm/linear.hpp"
#include "scaledmm/registry.hpp"

namespace scaledmm::cli {

// Times in microseconds, sorted ascending.
struct Samples {
  std::vector<double> us;
  double quantile(double q) const;
};

struct LayerTimes {
  Samples apply;  // activations in, outputs out
  Samples gemm;   // activations quantized before; empty where the kernel takes none
};

// Random weights of a config, packed once or, to be read from memory each time, more often than the caches can hold.
class BenchLayer {
 public:
  BenchLayer(const LayerConfig& config, const LinearKernel& kernel, bool cold, Context& context);

  const LinearKernel& kernel() const { return *kernel_; }
  const LayerConfig& config() const { return config_; }
  // Bytes of the weights and scales as a checkpoint has them.
  std::int64_t weight_bytes() const;
  // The packed bytes that one round of calls reads.
  std::int64_t resident_bytes() const;

  // Checks the outputs for `m` random rows, then times. Errors: Error when an output is wrong.
  LayerTimes measure(std::int64_t m, Context& context);

 private:
  struct Activations;
  // Views of rows [begin, begin + count); `codes` is where row `begin` starts.
  LayerWeights weights(const std::uint8_t* codes, std::int64_t begin, std::int64_t count) const;
  void check(const Activations& activations, Context& context) const;
  // `x` are the activations' rows `rows`.
  void check_columns(const Activations& activations, const std::vector<std::int64_t>& rows, std::vector<std::byte> x,
                     std::int64_t begin, std::int64_t count, Context& context) const;
  // [rows of x, count], of the reference kernel for weight rows [begin, begin + count) with these codes.
  std::vector<float> reference_outputs(const std::vector<std::uint8_t>& codes, const std::vector<std::byte>& x,
                                       std::int64_t begin, std::int64_t count, Context& context) const;

  LayerConfig config_;
  const LinearKernel* kernel_;
  WeightShape shape_;
  std::int64_t block_n_ = 1;
  std::int64_t block_k_ = 1;
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
  std::vector<Layer> layers_;
};

}  // namespace scaledmm::cli
