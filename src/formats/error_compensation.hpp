// Rounding a weight so that the errors of its columns cancel in the layer's output: each column takes over what the
// columns before it got wrong, as far as its input goes along with theirs. Frantar et al., GPTQ (2022), with the
// columns in the order of falling input energy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scaledmm/quantize.hpp"

namespace scaledmm {

// The inputs of a layer, made ready once for all weights that read them.
struct ErrorCompensation {
  std::vector<std::int64_t> order;  // columns, the one with the largest second moment first
  std::vector<float> factor;        // [K, K] upper triangular, in that order: U with (G + damping)^-1 = U^T U
};

// `gram` [K, K], symmetric and positive semidefinite, as Calibration::gram gives it. One percent of its mean diagonal
// is added to the diagonal, so that columns whose inputs were never seen keep their nearest codes. Errors:
// InvalidArgument for a matrix that is not positive semidefinite.
ErrorCompensation prepare_compensation(std::span<const float> gram, std::int64_t k);

// Sets weight.bytes anew from w [N, K] with weight.scales, which stay as they are.
void round_with_compensation(ConstTensorView w, GroupShape group, const ErrorCompensation& inputs,
                             QuantizedWeight& weight);

}  // namespace scaledmm
