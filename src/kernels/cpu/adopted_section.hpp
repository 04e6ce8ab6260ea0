// Sections of packed weights that lie in a mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/cpu/huge_buffer.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

// The section `name` where it lies. Errors: InvalidArgument when there is none, its size is not `bytes`, or it is not
// aligned to 64.
HugeBuffer adopted_section(std::span<const PackedSection> sections, std::string_view name, std::int64_t bytes,
                           const std::shared_ptr<const void>& memory);

}  // namespace scaledmm
