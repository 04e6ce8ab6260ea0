#include "formats/rotation.hpp"

#include <bit>
#include <cmath>
#include <numbers>

namespace scaledmm {
namespace {

// Row f, column i of the orthonormal cosine transform (DCT-II) of size n.
double cosine(std::int64_t f, std::int64_t i, std::int64_t n) {
  const auto size = static_cast<double>(n);
  const double norm = std::sqrt((f == 0 ? 1.0 : 2.0) / size);
  return norm *
         std::cos(std::numbers::pi * (2.0 * static_cast<double>(i) + 1.0) * static_cast<double>(f) / (2.0 * size));
}

std::uint64_t splitmix64(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

}  // namespace

RowMatrix spreading_matrix(std::int64_t n) {
  const std::int64_t power = std::int64_t{1} << std::countr_zero(static_cast<std::uint64_t>(n)), odd = n / power;
  const double unit = 1.0 / std::sqrt(static_cast<double>(power));
  RowMatrix result(n, n);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      const auto common = static_cast<std::uint64_t>(i % power & j % power);
      const double hadamard = std::popcount(common) % 2 == 0 ? unit : -unit;
      result(i, j) = static_cast<float>(cosine(i / power, j / power, odd) * hadamard);
    }
  }
  return result;
}

RowMatrix rotation_matrix(std::int64_t n, std::uint64_t seed) {
  RowMatrix result = spreading_matrix(n);
  for (std::int64_t i = 0; i < n; ++i) {
    if (splitmix64(seed) >> 63 != 0) result.row(i) *= -1.0f;
  }
  return result;
}

}  // namespace scaledmm
