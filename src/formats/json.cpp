#include "formats/json.hpp"

#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/input_file.hpp"
#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

// Builds a value from the parser's events. The parser itself keeps one bit for each open bracket and does not recurse.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view file, Json& root) : file_(file), root_(root) {}

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t& value) override { return add(Json::binary(std::move(value))); }

  bool start_object(std::size_t) override {
    open(Json::object());
    names_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    if (!names_.back().insert(name).second) throw CheckpointError(file_ + ": duplicate name " + quote(name));
    name_ = std::move(name);
    return true;
  }
  bool end_object() override {
    names_.pop_back();
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    open(Json::array());
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    throw CheckpointError(file_ + ": " + json_error_text(byte, error.what()));
  }

 private:
  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  void open(Json value) {
    if (open_.size() == kMaxJsonDepth) {
      throw CheckpointError(file_ + ": brackets are nested more than " + std::to_string(kMaxJsonDepth) + " deep");
    }
    open_.push_back(place(std::move(value)));
  }

  // The parent of an open value does not grow before that value is closed, so the pointers in open_ stay good.
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // The vector underneath: ordered_map's own insertion searches all members, which takes hours for a large shard
    // index.
    auto& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(std::move(name_), std::move(value));
    return &members.back().second;
  }

  std::string file_;
  Json& root_;
  std::vector<Json*> open_;
  std::vector<std::unordered_set<std::string>> names_;  // of the open objects
  std::string name_;                                    // of the next member
};

}  // namespace

std::string json_error_text(std::size_t byte, std::string_view complaint) {
  constexpr std::size_t kMaxComplaintBytes = 200;
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ...": from "syntax error" on.
  constexpr std::string_view kColumn = ", column ";
  if (const auto column = complaint.find(kColumn); column != std::string_view::npos) {
    if (const auto colon = complaint.find(": ", column); colon != std::string_view::npos) {
      complaint.remove_prefix(colon + 2);
    }
  } else if (const auto bracket = complaint.find("] "); bracket != std::string_view::npos) {
    complaint.remove_prefix(bracket + 2);
  }
  std::string text =
      "invalid JSON at byte " + std::to_string(byte) + ": " + escape(complaint.substr(0, kMaxComplaintBytes));
  if (complaint.size() > kMaxComplaintBytes) text += "...";
  return text;
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const InputFile file(path);
  if (file.size_bytes() > max_bytes) {
    throw CheckpointError(escape(path.string()) + ": " + std::to_string(file.size_bytes()) + " bytes, the limit is " +
                          std::to_string(max_bytes));
  }
  std::string text(file.size_bytes(), '\0');
  file.read(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

Json parse_json(std::string_view text, std::string_view file) {
  const std::string name = escape(file);
  // The parser takes a NUL byte for the end of the text.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    throw CheckpointError(name + ": " + json_error_text(nul + 1, "NUL byte"));
  }
  Json root;
  Builder builder(name, root);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return root;
}

Json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return parse_json(read_text_file(path, max_bytes), path.string());
}

const Json* find_member(const Json& value, std::string_view name) {
  if (!value.is_object()) return nullptr;
  const auto& members = value.get_ref<const Json::object_t&>();
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const auto& member) { return member.first == name; });
  return found == members.end() ? nullptr : &found->second;
}

}  // namespace scaledmm
