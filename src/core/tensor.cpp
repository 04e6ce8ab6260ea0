#include "scaledmm/tensor.hpp"

#include <algorithm>
#include <limits>

#include "scaledmm/error.hpp"

namespace scaledmm {

Shape::Shape(std::span<const std::int64_t> sizes) : rank_(sizes.size()) {
  if (sizes.size() > kMaxRank) {
    throw InvalidArgument("rank " + std::to_string(sizes.size()) + " is more than " + std::to_string(kMaxRank));
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) throw InvalidArgument("size " + std::to_string(sizes[i]) + " is negative");
    sizes_[i] = sizes[i];
  }
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (std::size_t i = 0; i < rank_; ++i) {
    if (__builtin_mul_overflow(product, sizes_[i], &product)) {
      throw InvalidArgument("shape " + text() + " has more than 2^63 - 1 elements");
    }
  }
  return product;
}

bool Shape::operator==(const Shape& other) const { return std::ranges::equal(sizes(), other.sizes()); }

std::string Shape::text() const {
  std::string result = "[";
  for (std::size_t i = 0; i < rank_; ++i) {
    if (i != 0) result += ", ";
    result += std::to_string(sizes_[i]);
  }
  return result + "]";
}

Shape detail::packed_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t step = 1;
  for (std::size_t i = shape.rank(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

}  // namespace scaledmm
