// One layer with everything that a GEMM call needs, and the check of its outputs against an independent reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/gemm.hpp"
#include "device_data.hpp"

namespace scaledmm::bench {

struct LayerShape {
  cuda::GemmType type;
  std::int64_t m, n, k;
  cuda::GemmOutput y_type = cuda::GemmOutput::kBfloat16;
  std::int64_t x_padding = 0, w_padding = 0, y_padding = 0;  // bytes (multiples of 16) and elements
  bool per_token = true, per_channel = true, bias = false;
  int zero_points = 0;  // INT8: 0 none, 1 one value, 2 per token
  int copies = 1;       // of the weights, different from each other
};

class GemmLayer {
 public:
  GemmLayer(const LayerShape& shape, std::uint64_t seed);

  const LayerShape& shape() const { return shape_; }
  // A call on copy `copy` of the weights.
  cuda::GemmArguments arguments(int copy = 0) const;
  const cuda::GemmWeights& weights(int copy = 0) const { return weights_[copy]; }
  const void* x() const { return x_.data(); }
  const Buffer& y() const { return y_; }
  float* x_scale() const { return x_scale_.as<float>(); }
  float* w_scale() const { return w_scale_.as<float>(); }

  // Fills y and its padding with a pattern that no result has.
  void poison();
  struct Result {
    bool ok;
    double worst;  // FP8: largest |y - exact| less the output's rounding, over sum |x w| sx sw; INT8: wrong outputs
    std::string problem;  // of the first wrong output
  };
  // y against exact sums (int64, or float64) of weights `copy` in `rows` rows, and the padding against the pattern.
  // A row is checked whole. rows = 0: all. relative_bound: of FP8, of sum |x w| sx sw.
  Result verify(int copy, int rows, double relative_bound) const;

 private:
  LayerShape shape_;
  std::int64_t x_pitch_, w_pitch_, y_stride_;
  Buffer x_, x_scale_, w_scale_, bias_, zero_points_, y_;
  std::vector<Buffer> codes_, column_sums_;
  std::vector<cuda::GemmWeights> weights_;
};

// The contract's bound for FP8 on a tensor core with a short accumulator, as a share of sum |x w| sx sw.
double fp8_bound(std::int64_t k, bool fast);

}  // namespace scaledmm::bench
