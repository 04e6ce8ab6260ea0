// How the rows of an operand may lie in memory: the same for every layer, quantized or dense.
#pragma once

#include <cstdint>
#include <string>

#include "scaledmm/tensor.hpp"

namespace scaledmm {

// Why a tensor that is not empty cannot be taken as it lies, or an empty text. `what` names it.
template <class View>
std::string layout_fault(const std::string& what, const View& view) {
  if (view.data == nullptr) return what + " is a null pointer";
  const std::int64_t stride = view.strides[view.shape.rank() - 1];
  if (view.shape.back() > 1 && stride != 1) {
    return what + "'s last dimension must be contiguous, its stride is " + std::to_string(stride);
  }
  const std::int64_t bytes = size_bytes(view.dtype);
  if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(bytes) != 0) {
    return what + " is not aligned to its " + std::to_string(bytes) + "-byte elements";
  }
  return {};
}

}  // namespace scaledmm
