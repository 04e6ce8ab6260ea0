#include "scaledmm/to_f32.hpp"

#include <string>

#include "numerics/formats.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

float element(const ConstTensorView& x, std::int64_t offset) {
  const auto* codes = static_cast<const std::uint8_t*>(x.data);
  if (x.dtype == DType::kE8M0) return e8m0_to_f32(codes[offset]);
  return is_fp8(x.dtype) ? fp8_to_f32(codes[offset], x.dtype) : load_f32(x.data, x.dtype, offset);
}

}  // namespace

void to_f32(const ConstTensorView& x, const TensorView& y) {
  if (!is_float16_or_32(x.dtype) && !is_fp8(x.dtype) && x.dtype != DType::kE8M0) {
    throw InvalidArgument("x is " + std::string(name(x.dtype)) + ", which is no float");
  }
  if (y.dtype != DType::kF32 || !y.is_packed()) throw InvalidArgument("y must be f32 and packed");
  if (y.shape != x.shape) throw InvalidArgument("x has shape " + x.shape.text() + ", y has " + y.shape.text());
  const std::int64_t elements = x.shape.elements();
  for (std::int64_t flat = 0; flat < elements; ++flat) {
    std::int64_t rest = flat, offset = 0;
    for (std::size_t i = x.shape.rank(); i-- > 0; rest /= x.shape[i]) offset += rest % x.shape[i] * x.strides[i];
    static_cast<float*>(y.data)[flat] = element(x, offset);
  }
}

}  // namespace scaledmm
