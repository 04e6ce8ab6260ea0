// Copies between a caller's strided operands and the packed form that kernels take, where the operands live.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "scaledmm/linear.hpp"

namespace scaledmm {

struct OperandCopies {
  // Empty, or why a kernel of the context cannot take this tensor: "lies in the host's memory, ...".
  std::string (*memory_fault)(const ConstTensorView& view, const Context& context);
  // Rows of the last dimension, one after the other, and back.
  void (*gather_rows)(const ConstTensorView& from, std::byte* packed, Context& context);
  void (*scatter_rows)(const std::byte* packed, const TensorView& to, Context& context);
  // out[i] = element i, or the only element `count` times. f32 and int32.
  void (*gather)(const ConstTensorView& from, void* out, std::int64_t count, Context& context);
  // out[i] = f32(element i) of a vector. f32, bf16 and f16.
  void (*widen)(const ConstTensorView& vector, float* out, std::int64_t count, Context& context);
};

const OperandCopies& host_copies();
const OperandCopies& cuda_copies();

// Tensors that lie in a GPU's memory, brought to the host's: `storage` keeps them.
LayerWeights weights_on_host(const LayerWeights& weights, std::vector<std::vector<std::byte>>& storage);

}  // namespace scaledmm
