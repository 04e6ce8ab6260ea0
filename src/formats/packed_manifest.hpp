// What a packed file says about itself: the library, the files that were packed, and the layers with their sections.
// It stands in the metadata of a safetensors header, as text under these names:
//   scaledmm_packed  version of this format        library  version of the library
//   source           JSON: SourceFingerprint       layers   JSON: a list of PackedLayerEntry
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "scaledmm/checkpoint.hpp"

namespace scaledmm {

inline constexpr std::uint64_t kSectionAlignment = 64;  // of the widest loads, in the file and so in memory
inline constexpr const char* kPackedFormatVersion = "1";

// A weight file of the checkpoint.
struct SourceFile {
  std::string name;  // without the folder
  std::uint64_t size_bytes = 0;
  std::string changed;  // time of the last change: "seconds.nanoseconds" since 1970
  std::string header;   // hash of the safetensors header: names, types, shapes and places of all tensors
  std::string content;  // hash of all bytes; empty: not read
};

struct SourceFingerprint {
  std::map<std::string, std::string> configs;  // hash by file name: config.json, hf_quant_config.json
  std::vector<SourceFile> files;               // by name
};

// The fingerprint of a checkpoint as its files are now. Errors: IoError, CheckpointError.
SourceFingerprint fingerprint(const Checkpoint& checkpoint, bool with_content);

// Why `now` is not what was packed, naming the field with both values; empty when it is. `by_content`: the hashes of
// contents count, not the times of change.
std::string difference(const SourceFingerprint& packed, const SourceFingerprint& now, bool by_content);

struct PackedSectionEntry {
  std::string name;
  std::uint64_t size_bytes = 0;  // without the zeros that fill it up to the alignment
  std::string hash;
};

struct PackedLayerEntry {
  std::string name;
  std::string kernel;
  std::string layout;
  std::vector<PackedSectionEntry> sections;
};

struct PackedManifest {
  std::string format_version;
  std::string library;
  SourceFingerprint source;
  std::vector<PackedLayerEntry> layers;
};

// The name of a section's tensor.
std::string section_tensor(const std::string& layer, const std::string& section);

// To and from the metadata of the header. Only the format's version is read when it is another one.
// Errors: CheckpointError that names `file` and the member, also for a file of another kind.
std::map<std::string, std::string> manifest_metadata(const PackedManifest& manifest);
PackedManifest read_manifest(const std::map<std::string, std::string>& metadata, const std::filesystem::path& file);

}  // namespace scaledmm
