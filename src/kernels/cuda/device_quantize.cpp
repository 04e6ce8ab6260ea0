// scaled_int8_quant and scaled_fp8_quant where the context is. docs/quantization.md 2, 3.
#include <limits>
#include <string>

#include "device/cuda_module.hpp"
#include "kernels/cuda/gpu_activations.hpp"
#include "kernels/operand_copies.hpp"
#include "numerics/rounding.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/quantize.hpp"

namespace scaledmm {
namespace {

[[noreturn]] void fail(const std::string& text) { throw InvalidArgument(text); }

void require_memory(const ConstTensorView& view, const char* what, const Context& context) {
  if (view.shape.elements() == 0) return;
  const std::string fault = cuda_copies().memory_fault(view, context);
  if (!fault.empty()) fail(std::string(what) + " " + fault);
}

void require_dtype(const ConstTensorView& view, const char* what, DType dtype) {
  if (view.dtype != dtype)
    fail(std::string(what) + " is " + std::string(name(view.dtype)) + ", must be " + std::string(name(dtype)));
}

// Row count and the one distance between rows. The last dimension is contiguous.
struct Rows {
  std::int64_t count = 1;
  std::int64_t stride = 0;
};

Rows rows_of(const ConstTensorView& view, const char* what) {
  const std::size_t rank = view.shape.rank();
  if (rank < 1) fail(std::string(what) + " has rank 0, must be at least 1");
  if (!(view.shape.back() <= 1 || view.strides[rank - 1] == 1))
    fail("the last dimension of " + std::string(what) + " has stride " + std::to_string(view.strides[rank - 1]) +
         ", must be contiguous");
  Rows rows{1, view.shape.back()};
  std::int64_t expected = 0;
  for (std::size_t i = rank - 1; i-- > 0;) {
    if (view.shape[i] != 1 && rows.count == 1) {
      rows.stride = view.strides[i];
    } else if (view.shape[i] != 1) {
      if (view.strides[i] != expected)
        fail("the rows of " + std::string(what) + " are not at equal distances: strides of " + view.shape.text() +
             " are " + view.strides.text());
    }
    if (view.shape[i] != 1) expected = view.strides[i] * view.shape[i];
    rows.count *= view.shape[i];
  }
  return rows;
}

void require_scale(float scale, const char* what) {
  if (!(is_finite(scale) && scale > 0.0f))
    fail(std::string(what) + " is " + std::to_string(scale) + ", must be finite and positive");
}

void require_values(const TensorView& tensor, const char* what, DType dtype, std::int64_t count,
                    const Context& context) {
  require_dtype(tensor, what, dtype);
  if (!(tensor.shape.elements() == count && tensor.is_packed()))
    fail(std::string(what) + " has shape " + tensor.shape.text() + ", must hold " + std::to_string(count) +
         " values, packed");
  require_memory(tensor, what, context);
}

cuda::ActivationRows checked_activations(const ConstTensorView& x, const TensorView& q, const Context& context) {
  if (!is_float16_or_32(x.dtype)) fail("x is " + std::string(name(x.dtype)) + ", must be f32, bf16 or f16");
  if (q.shape != x.shape) fail("q has shape " + q.shape.text() + ", x has " + x.shape.text());
  require_memory(x, "x", context);
  require_memory(q, "q", context);
  const Rows rows = rows_of(x, "x");
  return {x.data, x.dtype, rows.count, x.shape.back(), rows.stride};
}

void quantize_int8(const ConstTensorView& x, const Int8QuantOptions& options, const TensorView& q,
                   const TensorView& scale_out, const TensorView& zero_point_out, Context& context) {
  cuda::QuantizeInt8 a{};
  require_dtype(q, "q", DType::kInt8);
  a.x = checked_activations(x, q, context);
  a.is_static = options.scale.has_value();
  a.symmetric = options.symmetric;
  if (options.symmetric && options.zero_point) fail("a zero point was given for symmetric quantization");
  if (!a.is_static && options.zero_point) fail("a zero point was given without a scale");
  if (a.is_static) {
    require_scale(*options.scale, "scale");
    if (!options.symmetric && !options.zero_point) fail("static asymmetric quantization has no zero point");
    a.scale = *options.scale;
    a.zero_point = options.zero_point.value_or(0);
  } else {
    require_values(scale_out, "scale_out", DType::kF32, a.x.m, context);
    if (!options.symmetric) require_values(zero_point_out, "zero_point_out", DType::kInt32, a.x.m, context);
    a.scale_out = static_cast<float*>(scale_out.data);
    a.zero_point_out = static_cast<std::int32_t*>(zero_point_out.data);
  }
  a.q = static_cast<std::int8_t*>(q.data);
  a.q_columns = a.x.k;
  a.q_stride = rows_of(q, "q").stride;
  if (a.x.m > 0 && a.x.k > 0) check_cuda(cuda_api().quantize_int8(place_of(context), &a));
}

void take_group_scales(const Fp8QuantOptions& options, const TensorView& scale_out, const Context& context,
                       cuda::QuantizeFp8& a) {
  constexpr std::int64_t kMaxGroups = 65535;
  const std::int64_t groups = (a.x.k + options.group.col - 1) / options.group.col;
  if (groups > kMaxGroups)
    fail("a row has " + std::to_string(groups) + " groups, at most " + std::to_string(kMaxGroups) +
         " are taken on a GPU");
  if (scale_out.dtype != DType::kE8M0 || !options.ue8m0) require_dtype(scale_out, "scale_out", DType::kF32);
  const Shape expected{a.x.m, groups};
  if (!(scale_out.shape == expected || (scale_out.shape.elements() == a.x.m * groups && scale_out.is_packed())))
    fail("scale_out has shape " + scale_out.shape.text() + ", expected " + expected.text());
  require_memory(scale_out, "scale_out", context);
  const bool is_matrix = scale_out.shape == expected;
  a.scale_row_stride = is_matrix ? scale_out.strides[0] : groups;
  a.scale_column_stride = is_matrix ? scale_out.strides[1] : 1;
  a.group = options.group.col;
  a.ue8m0 = options.ue8m0;
}

void quantize_fp8(const ConstTensorView& x, const Fp8QuantOptions& options, const TensorView& q,
                  const TensorView& scale_out, Context& context) {
  const GroupShape& group = options.group;
  cuda::QuantizeFp8 a{};
  if (q.dtype != DType::kE4M3FN && q.dtype != DType::kE4M3FNUZ)
    fail("q is " + std::string(name(q.dtype)) + ", must be e4m3fn or e4m3fnuz");
  if (!(group.is_per_tensor() || group.is_per_token() || group.is_per_group()))
    fail("scales are " + group.text() + ", must be per tensor, per token or in groups of a row");
  if (options.scale_ub && (options.scale || !group.is_per_token()))
    fail("scale_ub is for dynamic scales per token only");
  if (options.ue8m0 && (options.scale || !group.is_per_group())) fail("ue8m0 is for dynamic scales per group only");
  if (options.scale_ub) require_scale(*options.scale_ub, "scale_ub");
  a.x = checked_activations(x, q, context);
  a.dtype = q.dtype;
  a.q = static_cast<std::uint8_t*>(q.data);
  a.q_columns = a.x.k;
  a.q_stride = rows_of(q, "q").stride;
  a.scale_out = scale_out.data;
  a.scale_dtype = scale_out.dtype;
  a.scale_row_stride = a.scale_column_stride = 1;
  a.upper_bound = options.scale_ub.value_or(std::numeric_limits<float>::infinity());
  if (options.scale) {
    require_scale(*options.scale, "scale");
    a.scheme = cuda::Fp8Scheme::kStaticTensor;
    a.scale = *options.scale;
  } else if (group.is_per_tensor()) {
    require_values(scale_out, "scale_out", DType::kF32, 1, context);
    a.scheme = cuda::Fp8Scheme::kDynamicTensor;
    std::byte* const memory = context.scratch(sizeof(std::uint32_t));
    a.absmax = reinterpret_cast<std::uint32_t*>(memory);
    a.counters = reinterpret_cast<std::uint32_t*>(memory - kZeroedBytes);
  } else if (group.is_per_token()) {
    require_values(scale_out, "scale_out", DType::kF32, a.x.m, context);
    a.scheme = cuda::Fp8Scheme::kDynamicToken;
  } else {
    take_group_scales(options, scale_out, context, a);
    a.scheme = cuda::Fp8Scheme::kDynamicGroup;
  }
  if (a.x.m > 0 && a.x.k > 0) check_cuda(cuda_api().quantize_fp8(place_of(context), &a));
}

}  // namespace

void scaled_int8_quant(ConstTensorView x, const Int8QuantOptions& options, TensorView q, TensorView scale_out,
                       TensorView zero_point_out, Context& context) {
  if (context.device().kind == DeviceKind::kCpu) return scaled_int8_quant(x, options, q, scale_out, zero_point_out);
  quantize_int8(x, options, q, scale_out, zero_point_out, context);
}

void scaled_fp8_quant(ConstTensorView x, const Fp8QuantOptions& options, TensorView q, TensorView scale_out,
                      Context& context) {
  if (context.device().kind == DeviceKind::kCpu) return scaled_fp8_quant(x, options, q, scale_out);
  quantize_fp8(x, options, q, scale_out, context);
}

}  // namespace scaledmm
