// JSON files of a checkpoint folder (config.json, the shard index): members keep their order, duplicate names are
// refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace scaledmm {

using Json = nlohmann::ordered_json;

inline constexpr std::uint64_t kMaxJsonBytes = 100'000'000;
inline constexpr std::size_t kMaxJsonDepth = 64;

// The whole text of a file. Errors: IoError; CheckpointError for more than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes = kMaxJsonBytes);

// Parses `text`; `file` begins every message. Depth is limited to kMaxJsonDepth.
// Errors: CheckpointError that names the file and the byte, "duplicate name" at any depth.
Json parse_json(std::string_view text, std::string_view file);

// read_text_file, then parse_json.
Json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes = kMaxJsonBytes);

// The member `name` of an object; nullptr when there is none or `value` is no object.
const Json* find_member(const Json& value, std::string_view name);

// "invalid JSON at byte 7: ...": the parser's complaint as one bounded line.
std::string json_error_text(std::size_t byte, std::string_view complaint);

}  // namespace scaledmm
