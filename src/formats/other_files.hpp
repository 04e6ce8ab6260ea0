// What a checkpoint folder holds beside weights and config.json: tokenizer, generation config, licence.
#pragma once

#include <filesystem>

namespace scaledmm {

// Copies the files of `source` that are neither config.json nor weights in whatever container. Folders stay behind.
// Errors: IoError that names the file.
void copy_other_files(const std::filesystem::path& source, const std::filesystem::path& destination);

}  // namespace scaledmm
