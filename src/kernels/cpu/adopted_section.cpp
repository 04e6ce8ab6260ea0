#include "kernels/cpu/adopted_section.hpp"

#include <algorithm>
#include <string>

#include "scaledmm/error.hpp"

namespace scaledmm {

HugeBuffer adopted_section(std::span<const PackedSection> sections, std::string_view name, std::int64_t bytes,
                           const std::shared_ptr<const void>& memory) {
  constexpr std::uintptr_t kAlignment = 64;  // of the widest loads
  const auto found = std::ranges::find(sections, name, &PackedSection::name);
  const std::string what = "packed section " + std::string(name);
  if (found == sections.end()) throw InvalidArgument(what + " is missing");
  if (found->bytes.size() != static_cast<std::size_t>(bytes)) {
    throw InvalidArgument(what + " has " + std::to_string(found->bytes.size()) + " bytes, this layer needs " +
                          std::to_string(bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(found->bytes.data()) % kAlignment != 0) {
    throw InvalidArgument(what + " is not aligned to " + std::to_string(kAlignment) + " bytes");
  }
  return HugeBuffer(found->bytes, memory);
}

}  // namespace scaledmm
