// Calls of a made-up layer on M random rows: the buffers that are timed, and the check of what stands in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/bench_layer.hpp"

namespace scaledmm::cli {

// Times in microseconds, sorted ascending.
struct Samples {
  std::vector<double> us;
  void sort();
  double quantile(double q) const;
};

struct LayerTimes {
  Samples apply;  // activations in, outputs out
  Samples gemm;   // activations quantized before; empty where the kernel takes none
};

class BenchCall {
 public:
  BenchCall(const BenchLayer& layer, std::int64_t m, Context& context);
  BenchCall(const BenchCall&) = delete;
  BenchCall& operator=(const BenchCall&) = delete;

  std::int64_t m() const { return m_; }
  // The kernel takes activations that were quantized before.
  bool has_gemm() const { return has_gemm_; }
  // The activations, rounded to their type.
  float x(std::int64_t row, std::int64_t k) const;
  // The outputs of the last call.
  float y(std::int64_t row, std::int64_t n) const;

  // One call on the next copy of the weights, in seconds; `gemm`: of quantized activations.
  double time(bool gemm);
  // Outputs at sampled rows and columns against the reference kernel. Errors: Error when one is wrong.
  void check() const;
  // Checks, then times for about a quarter of a second of each kind. Errors: Error when an output is wrong.
  LayerTimes measure();

 private:
  void quantize(const QuantKey& key);
  ConstTensorView x_view() const;
  // `x` are the activations' rows `rows`.
  void check_columns(const std::vector<std::int64_t>& rows, std::vector<std::byte> x, std::int64_t begin,
                     std::int64_t count) const;
  // [rows of x, count], of the reference kernel for weight rows [begin, begin + count) with these codes.
  std::vector<float> reference_outputs(const std::vector<std::uint8_t>& codes, const std::vector<std::byte>& x,
                                       std::int64_t begin, std::int64_t count) const;

  const BenchLayer* layer_;
  Context* context_;
  std::int64_t m_;
  DType x_dtype_;
  DType y_dtype_;
  std::vector<std::byte> x_;
  std::vector<std::byte> y_;
  bool has_gemm_ = false;
  std::vector<std::byte> codes_;
  std::vector<float> scales_;
  std::vector<std::int32_t> zero_points_;
  QuantizedActivation quantized_;
  std::size_t turn_ = 0;
};

}  // namespace scaledmm::cli
