// Layers that a checkpoint leaves dense in bf16: the head, and what an ignore list keeps from being quantized.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "scaledmm/linear.hpp"
#include "scaledmm/tensor.hpp"

namespace scaledmm {

// y = x W^T (+ bias), W [N, K] bf16. Products are exact, sums are f32 and rounded once to y; a row's bits depend
// neither on M nor on the number of threads. The kernels:
//   bf16_amx        x as one (bf16), two (f16) or three (f32) bf16 numbers that add up to it; sums by 32 of K
//   bf16_avx2       x as f32; sums in K order
//   bf16_reference  the same bits as bf16_avx2, on any CPU
class DenseLinear {
 public:
  // Packs weight [N, K], bf16, of any row pitch, for the context's CPU; the view is not needed afterwards.
  // Errors: InvalidArgument for another rank or dtype, a last dimension that is not contiguous, or a GPU's context.
  DenseLinear(ConstTensorView weight, Context& context);
  ~DenseLinear();
  DenseLinear(DenseLinear&&) noexcept;
  DenseLinear& operator=(DenseLinear&&) noexcept;

  std::int64_t n() const;
  std::int64_t k() const;
  std::string_view kernel() const;
  std::int64_t size_bytes() const;

  // Shapes: x [M, K] and y [M, N], each f32, bf16 or f16, of any row stride; bias [N] f32, bf16 or f16, or undefined.
  // Errors: InvalidArgument with both shapes.
  void apply(ConstTensorView x, ConstTensorView bias, TensorView y, Context& context) const;

 private:
  struct Packed;
  std::unique_ptr<const Packed> packed_;
};

}  // namespace scaledmm
