// config.json of a plain decoder: models whose every tensor has a known part, named as Llama's are.
#pragma once

#include "formats/json.hpp"
#include "scaledmm/checkpoint.hpp"

namespace scaledmm {

// model_type is llama, mistral, qwen2 or qwen3.
bool is_plain_decoder(const Json& config);

// Holds a plain decoder's tensors against the sizes and the number of layers in its config.json. Other models, other
// tensors and sizes that config.json does not give are not judged.
// Errors: CheckpointError for a size that is no positive integer, for a tensor of another shape, which names the file,
// the tensor and the size, for a layer too few, too many, or without a tensor that others have, and for an embedding,
// a last norm or a head that is missing.
void check_config_sizes(const Checkpoint& checkpoint);

}  // namespace scaledmm
