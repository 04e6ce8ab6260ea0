// Quantizers as functions: activations for every scheme, and weights for the converter. Formulas: docs/quantization.md.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scaledmm/linear.hpp"
#include "scaledmm/scheme.hpp"
#include "scaledmm/tensor.hpp"

namespace scaledmm {

// INT8 activations.
// Shapes: x [..., K] f32, bf16 or f16, any row stride; q [..., K] int8, packed. Static: scale one value, zero_point one
// value for asymmetric input. Dynamic (scale null): one scale for each row is written to scale_out [rows] f32, and for
// asymmetric input one zero point to zero_point_out [rows] int32.
// Units: x ~ scale * (q - zero_point).
// Errors: InvalidArgument for shapes, dtypes, a scale that is not finite and positive.
struct Int8QuantOptions {
  std::optional<float> scale = std::nullopt;
  std::optional<std::int32_t> zero_point = std::nullopt;  // static asymmetric
  bool symmetric = true;
};
void scaled_int8_quant(ConstTensorView x, const Int8QuantOptions& options, TensorView q, TensorView scale_out,
                       TensorView zero_point_out = {});

// FP8 activations.
// Shapes: x [..., K] f32, bf16 or f16, any row stride; q [..., K] e4m3fn or e4m3fnuz, packed; scale_out f32: [1] per
// tensor, [rows] per token, [rows, ceil(K / group)] per group; not written when `scale` is given.
// Units: x ~ scale * q.
// Errors: InvalidArgument for shapes, dtypes, a scale that is not finite and positive.
struct Fp8QuantOptions {
  std::optional<float> scale = std::nullopt;  // static, per tensor
  GroupShape group = GroupShape::per_token();
  std::optional<float> scale_ub = std::nullopt;  // per token: upper bound of the absmax
  bool ue8m0 = false;                            // per group: scales are rounded up to powers of two
};
void scaled_fp8_quant(ConstTensorView x, const Fp8QuantOptions& options, TensorView q, TensorView scale_out);

// The same where the context is: on a GPU all tensors are in its memory, and the work is put on the context's stream.
// There q and the outputs may have any row stride, scale_out [rows, groups] any strides - column-major (1, rows), or
// with the rows padded to a multiple of 4 - and group scales with ue8m0 may be written as e8m0 codes.
void scaled_int8_quant(ConstTensorView x, const Int8QuantOptions& options, TensorView q, TensorView scale_out,
                       TensorView zero_point_out, Context& context);
void scaled_fp8_quant(ConstTensorView x, const Fp8QuantOptions& options, TensorView q, TensorView scale_out,
                      Context& context);

// A quantized weight matrix with its scales, owned.
struct QuantizedWeight {
  DType dtype = DType::kInt8;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::vector<std::uint8_t> bytes;  // [N, K]
  std::vector<float> scales;        // [scale_rows, scale_columns]; multiply to dequantize
  std::int64_t scale_rows = 1;
  std::int64_t scale_columns = 1;
};

// Weights for a checkpoint: int8 or FP8, per tensor (-1, -1), per channel (-1, 1) or block (bn, bk), symmetric.
// Shapes: w [N, K] f32, bf16 or f16, any row stride.
// Errors: InvalidArgument for shapes and dtypes, and for a weight that is not finite, with its position.
// Source: compressed-tensors' arithmetic, but int8 scales are absmax / 127 so that the largest weight keeps its value.
QuantizedWeight quantize_weight(ConstTensorView w, DType dtype, GroupShape group);

}  // namespace scaledmm
