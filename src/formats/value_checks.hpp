// Checks of tensor values: what shapes and types cannot tell.
#pragma once

#include <functional>
#include <string>

#include "scaledmm/checkpoint.hpp"

namespace scaledmm {

// Takes one line that names file and tensor. May throw.
using Report = std::function<void(const std::string& problem)>;

// Scales finite and positive (0 only where every weight under it is 0), zero points in range and 0 where the scheme is
// symmetric. Reads the weights only under a scale of 0.
void check_scale_values(const Checkpoint& checkpoint, const LayerRecord& record, const Report& report);

// No NaN and no infinity in a tensor; one that is not bf16, f16 or f32 has none.
void check_finite(const Checkpoint& checkpoint, const StoredTensor& tensor, const Report& report);

// No weight code that is NaN or infinite, and no weight that the model's dtype cannot hold; scales that are powers of
// two where that is promised; a finite bias.
void check_weight_values(const Checkpoint& checkpoint, const LayerRecord& record, const Report& report);

// The layer's scales as [rows, columns], and what one of them covers.
struct ScaleGrid {
  ConstTensorView view;  // per tensor [1], per channel [N], block [rows, columns]
  std::int64_t block_n = 1;
  std::int64_t block_k = 1;
  std::int64_t columns = 1;
};
ScaleGrid scale_grid(const Checkpoint& checkpoint, const LayerRecord& record);

// An element of a scale tensor in f32; uint8 is read as e8m0.
float scale_at(const ConstTensorView& scales, std::int64_t index);

}  // namespace scaledmm
