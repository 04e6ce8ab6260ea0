#include "kernels/cuda/gpu_activations.hpp"

#include <limits>

#include "device/cuda_module.hpp"

namespace scaledmm {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kCodeAlignment = 16;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

bool is_aligned(const ApplyArguments& a) {
  return reinterpret_cast<std::uintptr_t>(a.x) % kCodeAlignment == 0 && (a.m == 1 || a.x_stride % kCodeAlignment == 0);
}

// Pre-quantized rows brought `pitch` bytes apart, zeros behind K.
void copy_codes(const ApplyArguments& a, const GpuWeights& w, std::byte* codes, const Context& context) {
  cuda::StridedRows rows{};
  rows.data = const_cast<void*>(a.x);
  rows.dimensions = 1;
  rows.sizes[0] = a.m;
  rows.stride_bytes[0] = a.x_stride;
  check_cuda(cuda_api().gather_rows(place_of(context), &rows, codes, a.m, w.k, w.pitch));
}

cuda::ActivationRows activation_rows(const ApplyArguments& a, const GpuWeights& w) {
  return {a.x, a.x_dtype, a.m, w.k, a.x_stride};
}

// Where one row's scales and zero points go.
struct Outputs {
  float* scale;
  std::int32_t* zero_point;
  std::uint32_t* absmax;
};

void quantize_int8(const Int8ScaledMMLinearLayerConfig& config, const GpuWeights& w, const ApplyArguments& a,
                   std::byte* codes, const Outputs& outputs, const Context& context, GpuActivations& result) {
  cuda::QuantizeInt8 q{};
  q.x = activation_rows(a, w);
  q.is_static = config.is_static_input_scheme;
  q.symmetric = config.input_symmetric;
  q.scale = w.input_scale.value_or(1.0f);
  q.zero_point = w.input_zero_point;
  q.q = reinterpret_cast<std::int8_t*>(codes);
  q.q_columns = q.q_stride = w.pitch;
  q.scale_out = outputs.scale;
  q.zero_point_out = outputs.zero_point;
  check_cuda(cuda_api().quantize_int8(place_of(context), &q));
  result.scale = q.is_static ? w.input.as<float>() : outputs.scale;
  result.scale_per_token = !q.is_static;
  if (!q.symmetric) {
    result.zero_point = q.is_static ? w.input.as<std::int32_t>() + 1 : outputs.zero_point;
    result.zero_point_per_token = !q.is_static;
  }
}

void quantize_fp8(const FP8ScaledMMLinearLayerConfig& config, const GpuWeights& w, const ApplyArguments& a,
                  std::byte* codes, const Outputs& outputs, const Context& context, GpuActivations& result) {
  const ScaleDesc& scale = config.activation_quant_key->scale;
  const bool per_token = scale.group_shape.is_per_token();
  cuda::QuantizeFp8 q{};
  q.x = activation_rows(a, w);
  q.scheme = scale.is_static ? cuda::Fp8Scheme::kStaticTensor
             : per_token     ? cuda::Fp8Scheme::kDynamicToken
                             : cuda::Fp8Scheme::kDynamicTensor;
  q.dtype = DType::kE4M3FN;
  q.scale = w.input_scale.value_or(1.0f);
  q.upper_bound = w.input_scale_ub.value_or(std::numeric_limits<float>::infinity());
  q.q = reinterpret_cast<std::uint8_t*>(codes);
  q.q_columns = q.q_stride = w.pitch;
  q.scale_out = outputs.scale;
  q.scale_dtype = DType::kF32;
  q.scale_row_stride = q.scale_column_stride = 1;
  q.absmax = outputs.absmax;
  check_cuda(cuda_api().quantize_fp8(place_of(context), &q));
  result.scale = scale.is_static ? w.input.as<float>() : outputs.scale;
  result.scale_per_token = per_token;
}

}  // namespace

GpuActivations quantize_on_gpu(const LayerConfig& config, const GpuWeights& w, const ApplyArguments& a,
                               std::int64_t rows, bool own_copy, std::int64_t rest_bytes, Context& context) {
  const bool quantized = !is_float16_or_32(a.x_dtype);
  const bool as_it_is = quantized && !own_copy && is_aligned(a);
  const std::int64_t codes_bytes = as_it_is ? 0 : round_up(rows * w.pitch, kAlignment);
  const std::int64_t scale_bytes = quantized ? 0 : round_up(rows * 4, kAlignment);
  std::byte* const memory = context.scratch(codes_bytes + 2 * scale_bytes + kAlignment + rest_bytes);
  std::byte* const scale = memory + codes_bytes;
  std::byte* const absmax = scale + 2 * scale_bytes;
  GpuActivations result;
  result.codes = memory;
  result.pitch = w.pitch;
  result.rest = absmax + kAlignment;
  if (quantized) {
    result.scale = a.x_scale;
    result.scale_per_token = true;
    result.zero_point = a.x_zero_point;
    result.zero_point_per_token = true;
    if (as_it_is) {
      result.codes = a.x;
      result.pitch = a.m == 1 ? w.pitch : a.x_stride;
    } else {
      copy_codes(a, w, memory, context);
    }
    return result;
  }
  const Outputs outputs{reinterpret_cast<float*>(scale), reinterpret_cast<std::int32_t*>(scale + scale_bytes),
                        reinterpret_cast<std::uint32_t*>(absmax)};
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
    quantize_int8(*int8, w, a, memory, outputs, context, result);
  } else {
    quantize_fp8(std::get<FP8ScaledMMLinearLayerConfig>(config), w, a, memory, outputs, context, result);
  }
  return result;
}

std::optional<QuantKey> gpu_int8_input_key(const LayerConfig& config) {
  const auto& int8 = std::get<Int8ScaledMMLinearLayerConfig>(config);
  const ScaleDesc scale = int8.is_static_input_scheme ? kStaticTensorScale : kDynamicTokenScale;
  return QuantKey{DType::kInt8, scale, std::nullopt, int8.input_symmetric};
}

std::optional<QuantKey> gpu_fp8_input_key(const LayerConfig& config) {
  return std::get<FP8ScaledMMLinearLayerConfig>(config).activation_quant_key;
}

}  // namespace scaledmm
