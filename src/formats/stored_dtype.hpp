// Element types of the safetensors container: spelling, size, and ours where there is one.
#pragma once

#include <optional>
#include <string_view>

#include "scaledmm/dtype.hpp"

namespace scaledmm {

struct StoredDType {
  std::string_view name;  // "F8_E4M3"
  unsigned bits = 0;      // of one element
  unsigned rank =
      0;  // position in the container's own order, by ascending alignment; files are written from high to low
  std::optional<DType> dtype;
};

// Nothing for an unknown spelling: the element size is then unknown too, and the file cannot be checked.
const StoredDType* find_stored_dtype(std::string_view name);

// The container's type that holds `dtype`.
const StoredDType& stored_dtype(DType dtype);

}  // namespace scaledmm
