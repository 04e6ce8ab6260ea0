// One call of a layer with operands in the host's memory, wherever the layer runs.
#pragma once

#include "scaledmm/checkpoint.hpp"

namespace scaledmm::cli {

// y = x W^T (+ bias). On a GPU x and y are moved there and back.
void apply_where_it_runs(const Linear& linear, ConstTensorView x, TensorView y, Context& context);

}  // namespace scaledmm::cli
