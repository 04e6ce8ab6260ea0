#include "kernels/cuda/gpu_activations.hpp"

#include <limits>

#include "device/cuda_module.hpp"
#include "kernels/round_up.hpp"

namespace scaledmm {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kCodeAlignment = 16;

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

// Where codes, and each row's scale and zero point, go.
struct Outputs {
  std::byte* codes;
  float* scale;
  std::int32_t* zero_point;
  std::uint32_t* absmax;
  std::uint32_t* counters;
};

const ScaleDesc& activation_scale(const FP8ScaledMMLinearLayerConfig& config) {
  return config.activation_quant_key->scale;
}

void quantize(const Int8ScaledMMLinearLayerConfig& config, const GpuWeights& w, const ApplyArguments& a,
              const Outputs& outputs, const Context& context) {
  cuda::QuantizeInt8 q{};
  q.x = activation_rows(a, w);
  q.is_static = config.is_static_input_scheme;
  q.symmetric = config.input_symmetric;
  q.scale = w.input_scale.value_or(1.0f);
  q.zero_point = w.input_zero_point;
  q.q = reinterpret_cast<std::int8_t*>(outputs.codes);
  q.q_columns = q.q_stride = w.pitch;
  q.scale_out = outputs.scale;
  q.zero_point_out = outputs.zero_point;
  check_cuda(cuda_api().quantize_int8(place_of(context), &q));
}

void quantize(const FP8ScaledMMLinearLayerConfig& config, const GpuWeights& w, const ApplyArguments& a,
              const Outputs& outputs, const Context& context) {
  const ScaleDesc& scale = activation_scale(config);
  cuda::QuantizeFp8 q{};
  q.x = activation_rows(a, w);
  q.scheme = scale.is_static                    ? cuda::Fp8Scheme::kStaticTensor
             : scale.group_shape.is_per_token() ? cuda::Fp8Scheme::kDynamicToken
                                                : cuda::Fp8Scheme::kDynamicTensor;
  q.dtype = DType::kE4M3FN;
  q.scale = w.input_scale.value_or(1.0f);
  q.upper_bound = w.input_scale_ub.value_or(std::numeric_limits<float>::infinity());
  q.q = reinterpret_cast<std::uint8_t*>(outputs.codes);
  q.q_columns = q.q_stride = w.pitch;
  q.scale_out = outputs.scale;
  q.scale_dtype = DType::kF32;
  q.scale_row_stride = q.scale_column_stride = 1;
  q.absmax = outputs.absmax;
  q.counters = outputs.counters;
  check_cuda(cuda_api().quantize_fp8(place_of(context), &q));
}

bool is_static(const LayerConfig& config) {
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) return int8->is_static_input_scheme;
  return activation_scale(std::get<FP8ScaledMMLinearLayerConfig>(config)).is_static;
}

bool is_symmetric(const LayerConfig& config) {
  const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config);
  return int8 == nullptr || int8->input_symmetric;
}

bool is_per_token(const LayerConfig& config) {
  const auto* fp8 = std::get_if<FP8ScaledMMLinearLayerConfig>(&config);
  return !is_static(config) && (fp8 == nullptr || activation_scale(*fp8).group_shape.is_per_token());
}

// What cuda::FusedRows can be. A dynamic scale for the whole tensor needs all rows before the first code.
bool can_fuse(const LayerConfig& config, const ApplyArguments& a, const GpuWeights& w) {
  constexpr std::int64_t kValues = 8, kBytes = 16;
  return a.m <= cuda::kMaxFusedRows && (is_static(config) || is_per_token(config)) && size_bytes(a.x_dtype) == 2 &&
         w.k % kValues == 0 && reinterpret_cast<std::uintptr_t>(a.x) % kBytes == 0 &&
         (a.m == 1 || a.x_stride % kValues == 0);
}

// A row that each CTA quantizes for itself sooner than a launch of its own would: 29.8 us instead of 30.4 for 28672 x
// 4096, 6.6 instead of 7.5 for 4096 x 4096.
bool fuses_alone(const ApplyArguments& a, const GpuWeights& w) {
  constexpr std::int64_t kLongest = 32768;
  return a.m == 1 && w.pitch <= kLongest;
}

// More rows, which CTAs share, cost 1 to 2.6 us more than a launch of their own on small layers and for long rows, but
// only 1 to 2 % where fetching the weights takes long: there one launch spares the calling thread half of its time.
bool fuses_shared(const GpuWeights& w) {
  constexpr std::int64_t kLongest = 8192, kWeights = std::int64_t{64} << 20;
  return w.pitch <= kLongest && w.n * w.pitch >= kWeights;
}

}  // namespace

GpuActivations quantize_on_gpu(const LayerConfig& config, const GpuWeights& w, const ApplyArguments& a,
                               const ActivationNeeds& needs, Context& context) {
  const bool quantized = !is_float16_or_32(a.x_dtype);
  const bool as_it_is = quantized && !needs.own_copy && is_aligned(a);
  const bool may_fuse = needs.may_fuse && !quantized && can_fuse(config, a, w);
  const bool alone = may_fuse && fuses_alone(a, w);
  const bool fused = alone || (may_fuse && fuses_shared(w));
  const std::int64_t rows = alone ? cuda::kFusedCopies * a.m : needs.rows;
  const std::int64_t codes_bytes = as_it_is || alone ? 0 : round_up(rows * w.pitch, kAlignment);
  const std::int64_t scale_bytes = quantized ? 0 : round_up(rows * 4, kAlignment);
  std::byte* const memory = context.scratch(codes_bytes + 2 * scale_bytes + kAlignment + needs.rest_bytes);
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
  const Outputs outputs{memory, reinterpret_cast<float*>(scale), reinterpret_cast<std::int32_t*>(scale + scale_bytes),
                        reinterpret_cast<std::uint32_t*>(absmax),
                        reinterpret_cast<std::uint32_t*>(memory - kZeroedBytes)};
  result.scale = is_static(config) ? w.input.as<float>() : outputs.scale;
  result.scale_per_token = is_per_token(config);
  if (!is_symmetric(config)) {
    result.zero_point = is_static(config) ? w.input.as<std::int32_t>() + 1 : outputs.zero_point;
    result.zero_point_per_token = result.scale_per_token;
  }
  if (fused) {
    result.fused = {.x = activation_rows(a, w),
                    .is_static = is_static(config),
                    .symmetric = is_symmetric(config),
                    .scale = w.input_scale.value_or(1.0f),
                    .zero_point = w.input_zero_point,
                    .upper_bound = w.input_scale_ub.value_or(std::numeric_limits<float>::infinity()),
                    .alone = alone,
                    .counters = outputs.counters};
  } else {
    std::visit([&](const auto& scheme) { quantize(scheme, w, a, outputs, context); }, config);
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
