// A bf16 matrix as a linear layer: the head of every model, and the layers of the bf16 baseline.
#pragma once

#include <cstdint>
#include <vector>

#include "scaledmm/linear.hpp"

namespace llama {

// W [n, k] bf16, owned.
class Bf16Matrix {
 public:
  Bf16Matrix(std::vector<std::uint16_t> values, std::int64_t n, std::int64_t k);
  std::int64_t n() const { return n_; }
  const std::uint16_t* row(std::int64_t i) const { return values_.data() + i * k_; }
  // y = x W^T. x [m, k] and y [m, n], f32, packed.
  void multiply(const float* x, std::int64_t m, float* y, scaledmm::Context& context) const;

 private:
  std::vector<std::uint16_t> values_;
  std::int64_t n_;
  std::int64_t k_;
};

}  // namespace llama
