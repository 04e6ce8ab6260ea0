#include "formats/safetensors_header.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "formats/json.hpp"
#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

constexpr std::string_view kMetadataName = "__metadata__";

[[noreturn]] void fail(std::string_view file, std::string_view message) {
  throw CheckpointError(escape(file) + ": " + std::string(message));
}

std::string tensor_text(std::string_view file, std::string_view name) {
  return escape(file) + ": tensor " + quote(name) + ": ";
}

std::string list_text(std::span<const std::uint64_t> numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  return text + "]";
}

// Turns the parser's events into entries. The grammar is three levels deep and closed: anything that does not fit is
// refused when it begins, so neither depth nor the size of unknown parts can grow. Offsets are judged later, when all
// are known.
class HeaderBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderBuilder(std::string_view file, SafetensorsHeader& header) : file_(file), header_(header) {}

  bool null() override { refuse("null"); }
  bool boolean(bool value) override { refuse(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { refuse(std::to_string(value)); }
  // Fractions, exponents, and what does not fit 64 bits.
  bool number_float(number_float_t, const string_t& text) override { refuse(text); }
  bool binary(binary_t&) override { refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) refuse(std::to_string(value));
    if (place_ == Place::kShape && numbers_.size() == Shape::kMaxRank) {
      throw CheckpointError(where() + "shape has more than " + std::to_string(Shape::kMaxRank) + " dimensions");
    }
    if (place_ == Place::kOffsets && numbers_.size() == 2) {
      throw CheckpointError(where() + "data_offsets holds more than 2 numbers");
    }
    numbers_.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[member_] = std::move(value);
      return true;
    }
    if (place_ != Place::kEntry || member_ != "dtype") refuse(quote(value));
    entry_.stored = find_stored_dtype(value);
    if (entry_.stored == nullptr) throw CheckpointError(where() + "unknown dtype " + quote(value));
    return true;
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kRoot;
        return true;
      case Place::kRoot:
        place_ = member_ == kMetadataName ? Place::kMetadata : Place::kEntry;
        if (place_ == Place::kEntry) start_entry();
        return true;
      default:
        refuse("an object");
    }
  }

  bool key(string_t& name) override {
    switch (place_) {
      case Place::kRoot:
        check_root_name(name);
        break;
      case Place::kMetadata:
        if (header_.metadata.contains(name)) {
          fail(file_, std::string(kMetadataName) + ": duplicate name " + quote(name));
        }
        break;
      default:
        check_member(name);
    }
    member_ = std::move(name);
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kEntry) finish_entry();
    place_ = Place::kRoot;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kEntry || member_ == "dtype") refuse("an array");
    place_ = member_ == "shape" ? Place::kShape : Place::kOffsets;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kShape) {
      dimensions_ = numbers_;
    } else {
      if (numbers_.size() != 2) {
        throw CheckpointError(where() + "data_offsets holds " + std::to_string(numbers_.size()) +
                              " numbers, 2 are needed");
      }
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    }
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    fail(file_, "header: " + json_error_text(byte, error.what()));
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kEntry, kShape, kOffsets };

  std::string where() const { return tensor_text(file_, entry_.name); }

  // A value of the wrong kind.
  [[noreturn]] void refuse(const std::string& found) const {
    const std::string shown = escape(found.substr(0, 40));
    switch (place_) {
      case Place::kStart:
        fail(file_, "header is not a JSON object");
      case Place::kRoot:
        fail(file_, (member_ == kMetadataName ? member_ : "tensor " + quote(member_)) + ": " + shown +
                        " instead of an object");
      case Place::kMetadata:
        fail(file_, std::string(kMetadataName) + ": " + quote(member_) + " is " + shown + ", not a string");
      case Place::kEntry:
        throw CheckpointError(where() + member_ + " is " + shown +
                              (member_ == "dtype" ? ", not a string" : ", not an array of integers"));
      default:
        throw CheckpointError(where() + (place_ == Place::kShape ? "shape" : "data_offsets") + " holds " + shown +
                              ", not a non-negative decimal integer of 64 bits");
    }
  }

  void check_root_name(const std::string& name) {
    if (name == kMetadataName) {
      if (has_metadata_) fail(file_, "duplicate name " + quote(name));
      has_metadata_ = true;
      return;
    }
    if (name.size() > kMaxNameBytes) {
      throw CheckpointError(tensor_text(file_, name) + "name of " + std::to_string(name.size()) +
                            " bytes, the limit is " + std::to_string(kMaxNameBytes));
    }
    if (name.find('\0') != std::string::npos)
      throw CheckpointError(tensor_text(file_, name) + "name holds a NUL character");
    if (header_.tensors.size() == kMaxTensors) {
      fail(file_, "more than " + std::to_string(kMaxTensors) + " tensors");
    }
  }

  void check_member(const std::string& name) {
    const auto* known = std::find(kMembers.begin(), kMembers.end(), name);
    if (known == kMembers.end()) throw CheckpointError(where() + "unknown member " + quote(name));
    const auto index = static_cast<std::size_t>(known - kMembers.begin());
    if (seen_[index]) throw CheckpointError(where() + "duplicate name " + quote(name));
    seen_[index] = true;
  }

  void start_entry() {
    entry_ = TensorEntry{};
    entry_.name = member_;
    dimensions_.clear();
    seen_ = {};
  }

  void finish_entry() {
    for (std::size_t i = 0; i < kMembers.size(); ++i) {
      if (!seen_[i]) throw CheckpointError(where() + "member " + quote(kMembers[i]) + " is missing");
    }
    checked_size_bytes(dimensions_, *entry_.stored, where());
    std::array<std::int64_t, Shape::kMaxRank> sizes{};
    std::copy(dimensions_.begin(), dimensions_.end(), sizes.begin());
    entry_.shape = Shape(std::span<const std::int64_t>(sizes.data(), dimensions_.size()));
    header_.tensors.push_back(std::move(entry_));
  }

  static constexpr std::array<std::string_view, 3> kMembers = {"dtype", "shape", "data_offsets"};

  std::string_view file_;
  SafetensorsHeader& header_;
  Place place_ = Place::kStart;
  std::string member_;  // of the object that is open
  bool has_metadata_ = false;
  TensorEntry entry_;
  std::array<bool, 3> seen_{};
  std::vector<std::uint64_t> dimensions_;
  std::vector<std::uint64_t> numbers_;  // of the array that is open
};

// What other programs call a file like this; nothing when it may be a safetensors file.
std::optional<std::string_view> other_kind(std::string_view first_bytes, std::uint64_t length) {
  using namespace std::string_view_literals;
  // A pickle's first two bytes may begin the length of a small header, so the rest of it has to be large.
  const bool pickle = first_bytes.size() >= 2 && first_bytes[0] == '\x80' && first_bytes[1] >= 2 && first_bytes[1] <= 5;
  if (pickle && (first_bytes.size() < kHeaderPrefixBytes || length >= 1U << 24)) return "a pickle";
  if (first_bytes.starts_with("PK\x03\x04"sv) || first_bytes.starts_with("PK\x05\x06"sv)) return "a zip archive";
  if (first_bytes.starts_with("GGUF"sv)) return "a GGUF file";
  if (first_bytes.starts_with("version "sv)) return "a Git LFS pointer, whose file was not downloaded";
  if (first_bytes.starts_with("<!DOCTYP"sv) || first_bytes.starts_with("<html"sv)) return "a web page";
  return std::nullopt;
}

// The tensors, in the order in which they lie in the file, cover its data without holes or overlap.
void check_layout(const std::vector<TensorEntry>& tensors, std::uint64_t data_bytes, std::string_view file) {
  std::vector<const TensorEntry*> order(tensors.size());
  std::transform(tensors.begin(), tensors.end(), order.begin(), [](const TensorEntry& entry) { return &entry; });
  std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t cursor = 0;
  for (const TensorEntry* entry : order) {
    if (entry->begin != cursor) {
      throw CheckpointError(tensor_text(file, entry->name) + "invalid offset: it begins at byte " +
                            std::to_string(entry->begin) + ", the tensor before it ends at " + std::to_string(cursor));
    }
    cursor = entry->end;
    if (cursor > data_bytes) {
      throw CheckpointError(tensor_text(file, entry->name) + "incomplete buffer: it ends at byte " +
                            std::to_string(cursor) + ", the file has " + std::to_string(data_bytes) + " bytes of data");
    }
  }
  if (cursor != data_bytes) {
    fail(file, "incomplete buffer, bytes not covered: the tensors end at byte " + std::to_string(cursor) +
                   ", the file has " + std::to_string(data_bytes) + " bytes of data");
  }
}

void check_offsets(const TensorEntry& entry, std::string_view file) {
  const std::string offsets = list_text(std::array{entry.begin, entry.end});
  if (entry.end < entry.begin) {
    throw CheckpointError(tensor_text(file, entry.name) + "data_offsets " + offsets + " end before they begin");
  }
  if (entry.end > kMaxDimension) {
    throw CheckpointError(tensor_text(file, entry.name) + "data_offsets " + offsets + " pass the limit of " +
                          std::to_string(kMaxDimension));
  }
  const auto needed = static_cast<std::uint64_t>(entry.shape.elements()) * entry.stored->bits / 8;
  if (entry.size_bytes() != needed) {
    throw CheckpointError(tensor_text(file, entry.name) + "invalid info: shape " + entry.shape.text() + " of " +
                          std::string(entry.stored->name) + " is " + std::to_string(needed) + " bytes, data_offsets " +
                          offsets + " hold " + std::to_string(entry.size_bytes()));
  }
}

}  // namespace

std::uint64_t header_length(std::span<const std::byte> first_bytes, std::uint64_t file_bytes, std::string_view file) {
  const std::string_view text(reinterpret_cast<const char*>(first_bytes.data()), first_bytes.size());
  std::uint64_t length = 0;
  for (std::size_t i = std::min<std::size_t>(text.size(), kHeaderPrefixBytes); i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(text[i]);
  }
  const bool fits =
      file_bytes >= kHeaderPrefixBytes && length <= kMaxHeaderBytes && length <= file_bytes - kHeaderPrefixBytes;
  if (fits) return length;
  if (const auto kind = other_kind(text, length)) {
    fail(file, "not a safetensors file: it begins like " + std::string(*kind));
  }
  if (file_bytes < kHeaderPrefixBytes) {
    fail(file, "header too small: the file has " + std::to_string(file_bytes) +
                   " bytes, the header's length alone takes " + std::to_string(kHeaderPrefixBytes));
  }
  if (length > kMaxHeaderBytes) {
    fail(file,
         "header too large: " + std::to_string(length) + " bytes, the limit is " + std::to_string(kMaxHeaderBytes));
  }
  fail(file, "invalid header length: " + std::to_string(length) + " bytes, the file has " +
                 std::to_string(file_bytes - kHeaderPrefixBytes) + " after the length (truncated?)");
}

std::uint64_t checked_size_bytes(std::span<const std::uint64_t> dimensions, const StoredDType& stored,
                                 std::string_view where) {
  const auto complain = [&](std::string_view kind, const std::string& rest) {
    throw CheckpointError(std::string(where) + std::string(kind) + ": shape " + list_text(dimensions) + " of " +
                          std::string(stored.name) + " " + rest);
  };
  // Dimensions of 0 count as 1 here: strides are products of the others, and a 0 must not hide an overflow behind it.
  std::uint64_t bits = stored.bits;
  bool empty = false;
  for (const std::uint64_t dimension : dimensions) {
    empty = empty || dimension == 0;
    if (__builtin_mul_overflow(bits, std::max<std::uint64_t>(dimension, 1), &bits)) {
      complain("validation overflow", "has more bits than 64-bit numbers can count");
    }
  }
  for (const std::uint64_t dimension : dimensions) {
    if (dimension > kMaxDimension) {
      complain("invalid info", "has a dimension above " + std::to_string(kMaxDimension));
    }
  }
  if (empty) return 0;
  if (bits % 8 != 0) complain("misaligned", "is " + std::to_string(bits) + " bits, not whole bytes");
  return bits / 8;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, std::string_view file) {
  const auto first = text.find_first_not_of(" \t\n\r");
  if (first == std::string_view::npos || text[first] != '{') {
    fail(file, "header is not a JSON object: " + (first == std::string_view::npos
                                                      ? std::string("it is empty")
                                                      : "it begins with " + quote(text.substr(first, 1))));
  }
  // The parser takes a NUL byte for the end of the text.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    fail(file,
         "header: invalid JSON at byte " + std::to_string(nul + 1) + ": NUL byte; a header is padded with spaces");
  }
  SafetensorsHeader header;
  HeaderBuilder builder(file, header);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);

  auto& tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twin =
      std::adjacent_find(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twin != tensors.end()) throw CheckpointError(tensor_text(file, twin->name) + "duplicate name");
  for (const TensorEntry& entry : tensors) check_offsets(entry, file);
  check_layout(tensors, data_bytes, file);
  return header;
}

}  // namespace scaledmm
