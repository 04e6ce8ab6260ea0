#include "scaledmm/quantize.hpp"

#include <string>

#include "numerics/rows.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw InvalidArgument(message);
}

// The rows of a tensor [..., K] whose last dimension is contiguous, counted through its leading dimensions.
class Rows {
 public:
  explicit Rows(const ConstTensorView& x) : x_(x) {
    const std::size_t rank = x.shape.rank();
    require(rank >= 1, "x has rank 0, must be at least 1");
    require(is_float16_or_32(x.dtype), "x is " + std::string(name(x.dtype)) + ", must be f32, bf16 or f16");
    require(x.shape.back() <= 1 || x.strides[rank - 1] == 1,
            "the last dimension of x has stride " + std::to_string(x.strides[rank - 1]) + ", must be contiguous");
    for (std::size_t i = 0; i + 1 < rank; ++i) count_ *= x.shape[i];
  }

  std::int64_t count() const { return count_; }
  std::int64_t width() const { return x_.shape.back(); }
  FloatRow operator[](std::int64_t row) const {
    std::int64_t offset = 0;
    for (std::size_t i = x_.shape.rank() - 1; i-- > 0; row /= x_.shape[i]) offset += row % x_.shape[i] * x_.strides[i];
    return {x_.data, x_.dtype, offset, width()};
  }

 private:
  const ConstTensorView& x_;
  std::int64_t count_ = 1;
};

void require_packed(const TensorView& tensor, const char* what, DType dtype, std::int64_t elements) {
  require(tensor.dtype == dtype,
          std::string(what) + " is " + std::string(name(tensor.dtype)) + ", must be " + std::string(name(dtype)));
  require(tensor.shape.elements() == elements, std::string(what) + " has shape " + tensor.shape.text() +
                                                   ", must hold " + std::to_string(elements) + " values");
  require(tensor.is_packed(), std::string(what) + " is not packed");
}

void require_same_shape(const TensorView& q, const ConstTensorView& x) {
  require(q.shape == x.shape, "q has shape " + q.shape.text() + ", x has " + x.shape.text());
}

void require_scale(float scale, const char* what) {
  require(is_finite(scale) && scale > 0.0f,
          std::string(what) + " is " + std::to_string(scale) + ", must be finite and positive");
}

// One scale for each row, or for each group of a row.
void quantize_fp8_parts(const Rows& rows, const Fp8QuantOptions& options, DType dtype, std::uint8_t* q, float* scales) {
  const std::int64_t width = rows.width();
  const std::int64_t group = options.group.is_per_group() ? options.group.col : std::max<std::int64_t>(width, 1);
  const std::int64_t parts = options.group.is_per_group() ? (width + group - 1) / group : 1;
  for (std::int64_t m = 0; m < rows.count(); ++m) {
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t begin = part * group;
      const FloatRow row = rows[m].part(begin, std::min(group, width - begin));
      const float absmax = row_absmax(row);
      const Fp8Scale scale = options.group.is_per_group() ? dynamic_group_fp8(absmax, dtype, options.ue8m0)
                             : options.scale_ub           ? dynamic_token_fp8(absmax, dtype, *options.scale_ub)
                                                          : dynamic_token_fp8(absmax, dtype);
      quantize_row(row, scale, dtype, q + m * width + begin);
      scales[m * parts + part] = scale.scale;
    }
  }
}

}  // namespace

void scaled_int8_quant(ConstTensorView x, const Int8QuantOptions& options, TensorView q, TensorView scale_out,
                       TensorView zero_point_out) {
  const Rows rows(x);
  const bool is_static = options.scale.has_value();
  require_same_shape(q, x);
  require_packed(q, "q", DType::kInt8, x.shape.elements());
  require(!(options.symmetric && options.zero_point), "a zero point was given for symmetric quantization");
  require(is_static || !options.zero_point, "a zero point was given without a scale");
  if (is_static) {
    require_scale(*options.scale, "scale");
    require(options.symmetric || options.zero_point, "static asymmetric quantization has no zero point");
  } else {
    require_packed(scale_out, "scale_out", DType::kF32, rows.count());
    if (!options.symmetric) require_packed(zero_point_out, "zero_point_out", DType::kInt32, rows.count());
  }
  for (std::int64_t m = 0; m < rows.count(); ++m) {
    const Int8Scale scale = !is_static          ? row_int8_scale(rows[m], options.symmetric)
                            : options.symmetric ? static_symmetric_int8(*options.scale)
                                                : static_asymmetric_int8(*options.scale, *options.zero_point);
    quantize_row(rows[m], scale, static_cast<std::int8_t*>(q.data) + m * rows.width());
    if (is_static) continue;
    static_cast<float*>(scale_out.data)[m] = scale.scale;
    if (!options.symmetric) static_cast<std::int32_t*>(zero_point_out.data)[m] = scale.zero_point;
  }
}

void scaled_fp8_quant(ConstTensorView x, const Fp8QuantOptions& options, TensorView q, TensorView scale_out) {
  const Rows rows(x);
  const GroupShape& group = options.group;
  require(q.dtype == DType::kE4M3FN || q.dtype == DType::kE4M3FNUZ,
          "q is " + std::string(name(q.dtype)) + ", must be e4m3fn or e4m3fnuz");
  require_same_shape(q, x);
  require_packed(q, "q", q.dtype, x.shape.elements());
  require(group.is_per_tensor() || group.is_per_token() || group.is_per_group(),
          "scales are " + group.text() + ", must be per tensor, per token or in groups of a row");
  require(!options.scale_ub || (!options.scale && group.is_per_token()),
          "scale_ub is for dynamic scales per token only");
  require(!options.ue8m0 || (!options.scale && group.is_per_group()), "ue8m0 is for dynamic scales per group only");
  if (options.scale_ub) require_scale(*options.scale_ub, "scale_ub");
  auto* codes = static_cast<std::uint8_t*>(q.data);
  if (options.scale) {
    require_scale(*options.scale, "scale");
    const Fp8Scale scale = static_fp8(*options.scale);
    for (std::int64_t m = 0; m < rows.count(); ++m) quantize_row(rows[m], scale, q.dtype, codes + m * rows.width());
    return;
  }
  if (group.is_per_tensor()) {
    require_packed(scale_out, "scale_out", DType::kF32, 1);
    float absmax = 0.0f;
    for (std::int64_t m = 0; m < rows.count(); ++m) absmax = absmax_of(absmax, row_finite_absmax(rows[m]));
    const Fp8Scale scale = dynamic_tensor_fp8(absmax, q.dtype);
    for (std::int64_t m = 0; m < rows.count(); ++m) quantize_row(rows[m], scale, q.dtype, codes + m * rows.width());
    *static_cast<float*>(scale_out.data) = scale.scale;
    return;
  }
  const std::int64_t parts = group.is_per_group() ? (rows.width() + group.col - 1) / group.col : 1;
  require_packed(scale_out, "scale_out", DType::kF32, rows.count() * parts);
  quantize_fp8_parts(rows, options, q.dtype, codes, static_cast<float*>(scale_out.data));
}

}  // namespace scaledmm
