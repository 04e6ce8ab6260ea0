// Which files of a checkpoint folder hold its weights, and which tensor is where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.hpp"

namespace scaledmm {

inline constexpr std::string_view kIndexFileName = "model.safetensors.index.json";
inline constexpr std::string_view kSingleFileName = "model.safetensors";
inline constexpr std::size_t kMaxShards = 10'000;

// model.safetensors.index.json.
struct ShardIndex {
  std::map<std::string, std::string, std::less<>> weight_map;  // tensor name -> file name in the same folder
  std::optional<std::uint64_t> total_size;                     // bytes of all tensors, when it is there and an integer
};

// Errors: CheckpointError for a value that is not a bare name ending in .safetensors, a name that occurs twice, more
// than kMaxShards files, or a broken file; IoError.
ShardIndex read_shard_index(const std::filesystem::path& file);
// Errors: IoError.
void write_shard_index(const std::filesystem::path& file, const ShardIndex& index);
// "model-00002-of-00005.safetensors"; `number` counts from 1.
std::string shard_file_name(std::size_t number, std::size_t count);

struct TensorLocation {
  std::size_t file = 0;                // in WeightFiles::files
  const TensorEntry* entry = nullptr;  // owned by that file
};

// The open weight files of a folder.
struct WeightFiles {
  std::vector<SafetensorsFile> files;
  std::map<std::string, TensorLocation, std::less<>> tensors;
  // Tensors that the index does not name, a total_size that is off: one line each.
  std::vector<std::string> warnings;

  // nullptr for an unknown name.
  const TensorLocation* find(std::string_view name) const;
};

struct WeightFileOptions {
  bool use_mmap = true;
  // Links are followed inside the folder and into a folder named "blobs" (a hub cache); false: every link is refused.
  bool follow_symlinks = true;
};

// Opens, in this order: the files that the index names; model.safetensors; the one other *.safetensors file that is not
// consolidated*.safetensors.
// Errors: IoError for a file that is missing, also with the list of what was found when that leaves nothing to open;
// CheckpointError for a choice of several, a file that lies outside, a tensor that is not where the index says, and
// everything SafetensorsFile::open refuses.
WeightFiles open_weight_files(const std::filesystem::path& directory, const WeightFileOptions& options = {});

}  // namespace scaledmm
