#include "formats/config_node.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

// Longer than any side of a weight, and safe to add to one.
constexpr std::int64_t kLargestExtent = std::int64_t{1} << 31;

// "128" of "128x128". Nothing for anything but decimal digits that fit.
std::optional<std::int64_t> parse_extent(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> as_integer(const Json& json) {
  if (!json.is_number_integer()) return std::nullopt;
  if (json.is_number_unsigned() &&
      json.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return json.get<std::int64_t>();
}

}  // namespace

ConfigNode::ConfigNode(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {
  if (!json.is_object()) throw CheckpointError(path_ + " is not an object");
}

std::string ConfigNode::path_of(std::string_view key) const {
  return path_ + (path_.ends_with(".json") ? ": " : ".") + escape(key);
}

const Json* ConfigNode::find(std::string_view key) const {
  const Json* member = find_member(*json_, key);
  return member == nullptr || member->is_null() ? nullptr : member;
}

std::optional<ConfigNode> ConfigNode::object(std::string_view key) const {
  const Json* member = find(key);
  if (member == nullptr) return std::nullopt;
  return ConfigNode(*member, path_of(key));
}

std::optional<std::string> ConfigNode::text(std::string_view key) const {
  const Json* member = find(key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_string()) fail_type(key, "a string");
  return member->get<std::string>();
}

std::optional<std::int64_t> ConfigNode::integer(std::string_view key) const {
  const Json* member = find(key);
  if (member == nullptr) return std::nullopt;
  const std::optional<std::int64_t> value = as_integer(*member);
  if (!value) fail_type(key, "an integer");
  return value;
}

std::optional<double> ConfigNode::number(std::string_view key) const {
  const Json* member = find(key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_number()) fail_type(key, "a number");
  return member->get<double>();
}

std::optional<bool> ConfigNode::boolean(std::string_view key) const {
  const Json* member = find(key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_boolean()) fail_type(key, "true or false");
  return member->get<bool>();
}

std::vector<std::string> ConfigNode::texts(std::string_view key) const {
  const Json* member = find(key);
  return member == nullptr ? std::vector<std::string>() : string_list(*member, path_of(key));
}

std::optional<std::pair<std::int64_t, std::int64_t>> ConfigNode::extents(std::string_view key) const {
  const Json* member = find(key);
  if (member == nullptr) return std::nullopt;
  std::optional<std::int64_t> first;
  std::optional<std::int64_t> second;
  if (member->is_string()) {
    const std::string text = member->get<std::string>();
    const std::size_t x = text.find('x');
    if (x != std::string::npos) {
      first = parse_extent(std::string_view(text).substr(0, x));
      second = parse_extent(std::string_view(text).substr(x + 1));
    }
  } else if (member->is_array() && member->size() == 2) {
    first = as_integer((*member)[0]);
    second = as_integer((*member)[1]);
  }
  if (!first || !second || *first < 1 || *second < 1) fail_type(key, "a pair of positive integers");
  check_extent(key, *first);
  check_extent(key, *second);
  return std::pair(*first, *second);
}

void ConfigNode::check_extent(std::string_view key, std::int64_t value) const {
  if (value > kLargestExtent) {
    throw CheckpointError(path_of(key) + ": " + std::to_string(value) + " is larger than " +
                          std::to_string(kLargestExtent));
  }
}

void ConfigNode::fail(std::string_view message) const { throw CheckpointError(path_ + ": " + std::string(message)); }

void ConfigNode::fail_type(std::string_view key, std::string_view wanted) const {
  throw CheckpointError(path_of(key) + " is not " + std::string(wanted));
}

void ConfigNode::warn_unknown(std::span<const std::string_view> known, std::vector<std::string>& warnings) const {
  for (const auto& [key, value] : json_->items()) {
    if (std::ranges::find(known, std::string_view(key)) == known.end()) {
      warnings.push_back(path_ + ": unknown member " + scaledmm::quote(key) + " is not used");
    }
  }
}

std::vector<std::string> string_list(const Json& list, const std::string& path) {
  if (!list.is_array()) throw CheckpointError(path + " is not a list of strings");
  std::vector<std::string> texts;
  texts.reserve(list.size());
  for (const Json& item : list) {
    if (!item.is_string()) throw CheckpointError(path + " is not a list of strings");
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return lower;
}

std::string upper_case(std::string_view text) {
  std::string upper(text);
  std::ranges::transform(upper, upper.begin(), [](char c) { return c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c; });
  return upper;
}

}  // namespace scaledmm
