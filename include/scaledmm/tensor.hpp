// Views of tensors that somebody else owns: a pointer, a dtype, a shape and strides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "scaledmm/dtype.hpp"

namespace scaledmm {

// Sizes of up to kMaxRank dimensions.
class Shape {
 public:
  static constexpr std::size_t kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  // Throws InvalidArgument for more than kMaxRank dimensions or a negative size.
  explicit Shape(std::span<const std::int64_t> sizes);

  std::size_t rank() const { return rank_; }
  std::int64_t operator[](std::size_t i) const { return sizes_[i]; }
  std::int64_t& operator[](std::size_t i) { return sizes_[i]; }
  // The last size; 1 for rank 0.
  std::int64_t back() const { return rank_ == 0 ? 1 : sizes_[rank_ - 1]; }
  // Product of all sizes; 1 for rank 0. Throws InvalidArgument past 2^63 - 1.
  std::int64_t elements() const;
  std::span<const std::int64_t> sizes() const { return {sizes_.data(), rank_}; }
  bool operator==(const Shape& other) const;
  // "[2, 3]"
  std::string text() const;

 private:
  std::array<std::int64_t, kMaxRank> sizes_{};
  std::size_t rank_ = 0;
};

namespace detail {
Shape packed_strides(const Shape& shape);
}

// A tensor in memory. Strides count elements; a packed (row-major) tensor needs none. Views do not own.
template <class Byte>
struct BasicTensorView {
  Byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Shape strides;

  BasicTensorView() = default;
  BasicTensorView(Byte* data_, DType dtype_, const Shape& shape_)
      : data(data_), dtype(dtype_), shape(shape_), strides(detail::packed_strides(shape_)) {}
  BasicTensorView(Byte* data_, DType dtype_, const Shape& shape_, const Shape& strides_)
      : data(data_), dtype(dtype_), shape(shape_), strides(strides_) {}

  bool defined() const { return data != nullptr || shape.rank() != 0; }
  bool is_packed() const { return strides == detail::packed_strides(shape); }
};

using TensorView = BasicTensorView<void>;

// A read-only view. A TensorView converts to it.
struct ConstTensorView : BasicTensorView<const void> {
  using BasicTensorView<const void>::BasicTensorView;
  ConstTensorView() = default;
  ConstTensorView(const TensorView& other)
      : BasicTensorView<const void>(other.data, other.dtype, other.shape, other.strides) {}
};

}  // namespace scaledmm
