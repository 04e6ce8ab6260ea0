// Orthogonal matrices for rotate().
#pragma once

#include <cstdint>

#include "formats/row_matrix.hpp"

namespace scaledmm {

// D (x) H of size n: entries of nearly equal magnitude, rows and columns orthonormal.
RowMatrix spreading_matrix(std::int64_t n);

// The same with its rows multiplied by signs drawn from `seed` (splitmix64, so that they are the same everywhere).
RowMatrix rotation_matrix(std::int64_t n, std::uint64_t seed);

}  // namespace scaledmm
