// Where an element of a strided tensor lies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "scaledmm/tensor.hpp"

namespace scaledmm {

// Elements from the tensor's beginning to position `flat` of its first `dimensions` dimensions, counted row-major: with
// all of them an element, with all but the last a row. Shape [2, 3], strides [10, 1], flat 4 -> 11.
inline std::int64_t element_offset(const Shape& shape, const Shape& strides, std::size_t dimensions,
                                   std::int64_t flat) {
  std::int64_t offset = 0;
  for (std::size_t i = dimensions; i-- > 0;) {
    offset += flat % shape[i] * strides[i];
    flat /= shape[i];
  }
  return offset;
}

}  // namespace scaledmm
