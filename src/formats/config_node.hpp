// A JSON object of a config file, read with its path, so that every complaint says where.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.hpp"

namespace scaledmm {

// A view: the document must outlive it. A member that is null counts as absent.
class ConfigNode {
 public:
  // Errors: CheckpointError when `json` is not an object. `path` begins messages: "config.json: quantization_config".
  ConfigNode(const Json& json, std::string path);

  const Json& json() const { return *json_; }
  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const;

  bool has(std::string_view key) const { return find(key) != nullptr; }
  const Json* find(std::string_view key) const;
  // Errors of the readers: CheckpointError when the member is there and of another type.
  std::optional<ConfigNode> object(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  // A list of strings; empty when absent.
  std::vector<std::string> texts(std::string_view key) const;
  // Two positive integers, also in the old spelling "128x128".
  std::optional<std::pair<std::int64_t, std::int64_t>> extents(std::string_view key) const;
  // Throws CheckpointError when a size is beyond those that weights can have.
  void check_extent(std::string_view key, std::int64_t value) const;

  // Throws CheckpointError: path, then `message`.
  [[noreturn]] void fail(std::string_view message) const;
  // A line for each member that is not `known`.
  void warn_unknown(std::span<const std::string_view> known, std::vector<std::string>& warnings) const;

 private:
  [[noreturn]] void fail_type(std::string_view key, std::string_view wanted) const;

  const Json* json_;
  std::string path_;
};

// Strings of a JSON list. Errors: CheckpointError that begins with `path`.
std::vector<std::string> string_list(const Json& list, const std::string& path);

// ASCII letters made lower or upper case.
std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);

}  // namespace scaledmm
