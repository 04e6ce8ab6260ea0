// What a checkpoint folder holds beside weights and config.json: tokenizer, generation config, licence, pooling.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "scaledmm/checkpoint.hpp"

namespace scaledmm {

// Copies into `destination` what the checkpoint's folder holds beside its weights and config.json, folders included.
// Weights of other containers stay behind, and so do folders with weights of their own (original/, onnx/: without them
// they are nothing), hidden folders and links to folders. `warn` is told of them in one line; it may be empty.
// Errors: IoError that names the file.
void copy_other_files(const Checkpoint& source, const std::filesystem::path& destination,
                      const std::function<void(const std::string&)>& warn);

}  // namespace scaledmm
