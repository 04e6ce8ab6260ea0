// Tensors that no scheme quantizes: norms, the embedding, and every weight of a dense checkpoint. They are bf16.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "scaledmm/checkpoint.hpp"

namespace llama {

// A view into the checkpoint. Errors: scaledmm::CheckpointError for another shape or dtype.
std::span<const std::uint16_t> bf16_tensor(const scaledmm::Checkpoint& checkpoint, const std::string& name,
                                           const scaledmm::Shape& shape);

// The same, as f32.
std::vector<float> widened_tensor(const scaledmm::Checkpoint& checkpoint, const std::string& name,
                                  const scaledmm::Shape& shape);

}  // namespace llama
