// Orthogonal matrices for rotate().
#pragma once

#include <Eigen/Core>
#include <cstdint>

namespace scaledmm {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// D (x) H of size n: entries of nearly equal magnitude, rows and columns orthonormal.
RowMatrix spreading_matrix(std::int64_t n);

// The same with its rows multiplied by signs drawn from `seed` (splitmix64, so that they are the same everywhere).
RowMatrix rotation_matrix(std::int64_t n, std::uint64_t seed);

}  // namespace scaledmm
