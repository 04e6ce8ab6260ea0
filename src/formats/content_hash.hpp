// A fast 64-bit hash of bytes: finds changed and damaged files. It does not withstand somebody who forges them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace scaledmm {

// Hash of a stream of bytes, the same however it is cut.
class ContentHash {
 public:
  void update(std::span<const std::byte> bytes);
  // 16 hexadecimal digits. The stream may go on afterwards.
  std::string digits() const;

 private:
  static constexpr std::size_t kStripe = 32;  // a word for each lane

  void mix(const std::byte* stripe);

  std::array<std::uint64_t, 4> lanes_ = {0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0,
                                         0x082efa98ec4e6c89};  // digits of pi: no symmetry between the lanes
  std::array<std::byte, kStripe> rest_{};
  std::uint64_t length_ = 0;
};

std::string content_hash(std::span<const std::byte> bytes);
std::string content_hash(std::string_view text);
// Of a whole file. Errors: IoError; CheckpointError for something that is not a regular file.
std::string content_hash_of(const std::filesystem::path& file);

}  // namespace scaledmm
