// scaledmm.Array: memory with a dtype that numpy may lack, exchanged by DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "scaledmm/tensor.hpp"

namespace scaledmm::python {

struct Array {
  TensorView view;
  bool read_only = false;
  std::shared_ptr<const void> owner;
  bool as_carrier = false;  // exported as uint8 or uint16, for frameworks without the dtype

  // New memory, aligned to 64 bytes, not initialized.
  static Array allocate(DType dtype, const Shape& shape);
  // A numpy array of the same memory: ml_dtypes' dtype where numpy has none, without ml_dtypes the unsigned integer.
  nanobind::object numpy() const;
};

void bind_array(nanobind::module_& module);

}  // namespace scaledmm::python
