// From the structs of scaledmm.h to the C++ contract.
#pragma once

#include "scaledmm/checkpoint.hpp"
#include "scaledmm/scaledmm.h"

namespace scaledmm {

// A copy of a caller's struct: fields that its older version lacks take their defaults, and fields of a newer one must
// be zero. Errors: InvalidArgument for nullptr, for a size below 4, and for a tail that is not zero.
template <class T>
T sized_copy(const T* caller, const T& defaults, const char* what);

DType dtype_of(scaledmm_dtype_t dtype, const char* what);
ConstTensorView const_view(const scaledmm_tensor_t& tensor, const char* what);
TensorView view(const scaledmm_tensor_t& tensor, const char* what);
LayerConfig config_of(const scaledmm_layer_desc_t& desc);
LayerWeights weights_of(const scaledmm_layer_desc_t& desc);
LinearOptions options_of(const scaledmm_linear_options_t& options);

}  // namespace scaledmm
