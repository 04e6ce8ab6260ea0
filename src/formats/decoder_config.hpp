// config.json of a plain decoder: models whose every tensor has a known part, named as Llama's are.
#pragma once

#include "formats/json.hpp"
#include "scaledmm/checkpoint.hpp"

namespace scaledmm {

// model_type is llama, mistral, qwen2 or qwen3.
bool is_plain_decoder(const Json& config);

// Holds the shapes of a plain decoder's tensors against the sizes in its config.json. Other models, other tensors and
// sizes that config.json does not give are not judged.
// Errors: CheckpointError for a size that is no positive integer, and for a tensor of another shape, which names the
// file, the tensor and the size.
void check_config_sizes(const Checkpoint& checkpoint);

}  // namespace scaledmm
