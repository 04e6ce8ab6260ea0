#include "formats/content_hash.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "formats/input_file.hpp"

namespace scaledmm {
namespace {

// Odd, so that a multiplication loses nothing: 2^64 divided by the golden ratio, and by the square root of 2.
constexpr std::uint64_t kWordFactor = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kLaneFactor = 0xb504f333f9de6485;

// A permutation for each word: streams that differ in one word of a lane do not agree in that lane before they differ
// in another. Two multiplications, as xxHash has them: after one, a change of bit 63 is undone by one bit of the next
// word.
std::uint64_t mixed(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kWordFactor, 31) * kLaneFactor;
}

}  // namespace

void ContentHash::mix(const std::byte* stripe) {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    std::uint64_t word = 0;
    std::memcpy(&word, stripe + lane * sizeof word, sizeof word);
    lanes_[lane] = mixed(lanes_[lane], word);
  }
}

void ContentHash::update(std::span<const std::byte> bytes) {
  const std::size_t held = length_ % kStripe;
  length_ += bytes.size();
  if (held > 0) {
    const std::size_t taken = std::min(kStripe - held, bytes.size());
    std::copy_n(bytes.data(), taken, rest_.data() + held);
    bytes = bytes.subspan(taken);
    if (held + taken < kStripe) return;
    mix(rest_.data());
  }
  for (; bytes.size() >= kStripe; bytes = bytes.subspan(kStripe)) mix(bytes.data());
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
}

std::string ContentHash::digits() const {
  ContentHash last = *this;
  const std::size_t held = length_ % kStripe;
  if (held > 0) {
    std::fill(last.rest_.begin() + static_cast<std::ptrdiff_t>(held), last.rest_.end(), std::byte{0});
    last.mix(last.rest_.data());
  }
  std::uint64_t hash = length_;
  for (const std::uint64_t lane : last.lanes_) hash = mixed(hash, lane);
  hash = mixed(hash ^ hash >> 32, 0);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[hash >> shift & 15];
  return text;
}

std::string content_hash(std::span<const std::byte> bytes) {
  ContentHash hash;
  hash.update(bytes);
  return hash.digits();
}

std::string content_hash(std::string_view text) { return content_hash(std::as_bytes(std::span(text))); }

std::string content_hash_of(const std::filesystem::path& file) {
  constexpr std::uint64_t kPieceBytes = 1 << 20;
  const InputFile input(file);
  std::vector<std::byte> piece(kPieceBytes);
  ContentHash hash;
  for (std::uint64_t offset = 0; offset < input.size_bytes(); offset += kPieceBytes) {
    const std::span part(piece.data(), std::min(kPieceBytes, input.size_bytes() - offset));
    input.read(part, offset);
    hash.update(part);
  }
  return hash.digits();
}

}  // namespace scaledmm
