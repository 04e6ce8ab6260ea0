// Division and rounding upwards, of counts that are not negative.
#pragma once

#include <cstdint>

namespace scaledmm {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

}  // namespace scaledmm
