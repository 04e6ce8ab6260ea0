// Runs layers on random activations and compares them with the dequantized weights multiplied out in f64.
#pragma once

#include <string>
#include <vector>

#include "scaledmm/checkpoint.hpp"

namespace scaledmm::cli {

struct SmokeResult {
  std::string layer;
  std::string scheme;
  std::string kernel;
  double relative_error =
      0;             // |y - reference| over all outputs, relative to what random activations make of the weights
  double bound = 0;  // what quantized activations and the output's rounding explain
  bool ok() const { return relative_error <= bound; }
};

// `linear` is the layer `record` of the checkpoint.
SmokeResult smoke_check(const Checkpoint& checkpoint, const LayerRecord& record, const Linear& linear,
                        Context& context);

}  // namespace scaledmm::cli
