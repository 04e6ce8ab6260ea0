// Floats of every storage type as f32.
#pragma once

#include "scaledmm/tensor.hpp"

namespace scaledmm {

// y = x, exact: every value of bf16, f16 and the 8-bit floats is an f32. NaN codes give NaN.
// Shapes: x f32, bf16, f16, e4m3fn, e4m3fnuz, e5m2 or e8m0 of any shape and strides; y f32, packed, of the same shape.
// Errors: InvalidArgument for shapes and dtypes.
void to_f32(const ConstTensorView& x, const TensorView& y);

}  // namespace scaledmm
