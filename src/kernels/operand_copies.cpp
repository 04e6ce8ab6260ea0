// Operands in the host's memory.
#include "kernels/operand_copies.hpp"

#include <cstring>

#include "kernels/element_offset.hpp"
#include "numerics/formats.hpp"

namespace scaledmm {
namespace {

std::string memory_fault(const ConstTensorView&, const Context&) { return {}; }

// Calls copy(place in packed memory, place in the tensor, bytes) for every row.
template <class Copy>
void for_each_row(const Shape& shape, const Shape& strides, DType dtype, const Copy& copy) {
  const std::size_t dimensions = shape.rank() - 1;
  const std::int64_t row_bytes = shape.back() * size_bytes(dtype);
  std::int64_t rows = 1;
  for (std::size_t i = 0; i < dimensions; ++i) rows *= shape[i];
  for (std::int64_t row = 0; row < rows; ++row) {
    copy(row * row_bytes, element_offset(shape, strides, dimensions, row) * size_bytes(dtype),
         static_cast<std::size_t>(row_bytes));
  }
}

void gather_rows(const ConstTensorView& from, std::byte* packed, Context&) {
  const auto* data = static_cast<const std::byte*>(from.data);
  for_each_row(from.shape, from.strides, from.dtype, [&](std::int64_t here, std::int64_t there, std::size_t bytes) {
    std::memcpy(packed + here, data + there, bytes);
  });
}

void scatter_rows(const std::byte* packed, const TensorView& to, Context&) {
  auto* data = static_cast<std::byte*>(to.data);
  for_each_row(to.shape, to.strides, to.dtype, [&](std::int64_t here, std::int64_t there, std::size_t bytes) {
    std::memcpy(data + there, packed + here, bytes);
  });
}

void gather(const ConstTensorView& from, void* out, std::int64_t count, Context&) {
  constexpr std::int64_t kBytes = 4;
  const std::int64_t elements = from.shape.elements();
  const auto* data = static_cast<const std::byte*>(from.data);
  for (std::int64_t flat = 0; flat < count; ++flat) {
    const std::int64_t offset = element_offset(from.shape, from.strides, from.shape.rank(), elements == 1 ? 0 : flat);
    std::memcpy(static_cast<std::byte*>(out) + flat * kBytes, data + offset * kBytes, kBytes);
  }
}

void widen(const ConstTensorView& vector, float* out, std::int64_t count, Context&) {
  const std::int64_t stride = vector.strides[vector.shape.rank() - 1] * size_bytes(vector.dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    alignas(4) std::byte element[4];
    std::memcpy(element, static_cast<const std::byte*>(vector.data) + i * stride,
                static_cast<std::size_t>(size_bytes(vector.dtype)));
    out[i] = load_f32(element, vector.dtype, 0);
  }
}

}  // namespace

const OperandCopies& host_copies() {
  static constexpr OperandCopies kCopies{memory_fault, gather_rows, scatter_rows, gather, widen};
  return kCopies;
}

}  // namespace scaledmm
