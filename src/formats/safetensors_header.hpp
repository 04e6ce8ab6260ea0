// The safetensors header: what the file says about its tensors, with every rule of the format checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/stored_dtype.hpp"
#include "scaledmm/tensor.hpp"

namespace scaledmm {

inline constexpr std::uint64_t kHeaderPrefixBytes = 8;         // little-endian length in front of the header
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit
inline constexpr std::size_t kMaxTensors = 1'000'000;
inline constexpr std::size_t kMaxNameBytes = 4096;
inline constexpr std::uint64_t kMaxDimension = (std::uint64_t{1} << 48) - 1;  // dimensions and offsets

struct TensorEntry {
  std::string name;
  const StoredDType* stored = nullptr;
  Shape shape;
  // Bytes, relative to the end of the header.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size_bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // by name, ascending
  std::map<std::string, std::string> metadata;
};

// The header's length, from the file's first bytes (fewer than 8 when the file is shorter).
// Errors: CheckpointError when it cannot be right for a file of `file_bytes`, or the file is of another kind.
std::uint64_t header_length(std::span<const std::byte> first_bytes, std::uint64_t file_bytes, std::string_view file);

// Parses and checks a header. `data_bytes` is what follows it in the file; tensors cover all of it, once.
// Errors: CheckpointError that names the file and the tensor.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, std::string_view file);

// Bytes of a tensor. Errors: CheckpointError for a product past 64 bits, a dimension past kMaxDimension, or a number of
// sub-byte elements that does not fill whole bytes. `where` begins the message.
std::uint64_t checked_size_bytes(std::span<const std::uint64_t> dimensions, const StoredDType& stored,
                                 std::string_view where);

}  // namespace scaledmm
