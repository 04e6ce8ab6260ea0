#include "kernels/cuda/gpu_weights.hpp"

#include <algorithm>
#include <string>

#include "device/cuda_module.hpp"
#include "kernels/round_up.hpp"

namespace scaledmm {
namespace {

constexpr std::int64_t kPitch = 16;  // what the card's bulk copies ask of a row's address
constexpr std::int64_t kLargestSize = 1 << 30;
constexpr std::int64_t kLargestInt8K = (1 << 17) - 1;  // 128 * 128 * K stays below 2^31

DeviceBuffer upload_codes(const CheckedWeights& w, const GpuWeights& packed, const Device& device) {
  const std::int64_t bytes = packed.padded_n * packed.pitch;
  if (w.row_pitch == packed.pitch && packed.padded_n == w.n && packed.pitch == w.k) return {device, w.bytes, bytes};
  std::vector<std::uint8_t> padded(static_cast<std::size_t>(bytes));
  for (std::int64_t n = 0; n < w.n; ++n) {
    std::copy_n(w.bytes + n * w.row_pitch, w.k, padded.data() + n * packed.pitch);
  }
  return {device, padded.data(), bytes};
}

Support can_take_sizes(const LayerConfig& config) {
  const auto [n, k] = weight_shape(config);
  if (n < 1 || k < 1) {
    return Support::no("N = " + std::to_string(n) + " and K = " + std::to_string(k) + ", both must be at least 1");
  }
  if (std::max(n, k) > kLargestSize) {
    return Support::no("N = " + std::to_string(n) + " or K = " + std::to_string(k) + " is more than " +
                       std::to_string(kLargestSize));
  }
  for (const DType dtype : {input_dtype(config), out_dtype(config)}) {
    if (!is_float16_or_32(dtype)) {
      return Support::no("x or y is " + std::string(name(dtype)) + ", must be f32, bf16 or f16");
    }
  }
  return Support::yes();
}

Support can_take_activation(const QuantKey& key) {
  const GroupShape& group = key.scale.group_shape;
  if (key.dtype != DType::kE4M3FN) {
    return Support::no("activations are " + std::string(name(key.dtype)) + ", this kernel takes e4m3fn");
  }
  if (!key.symmetric) return Support::no("fp8 activations are asymmetric, only symmetric ones have a meaning");
  if (group.is_per_tensor()) return Support::yes();
  if (!group.is_per_token()) {
    return Support::no("activation scales are " + group.text() + ", must be per tensor or per token");
  }
  if (key.scale.is_static)
    return Support::no("static activation scales are per_token, a checkpoint has one per tensor");
  return Support::yes();
}

}  // namespace

std::int64_t GpuWeights::size_bytes() const {
  return codes.size_bytes() + scales.size_bytes() + column_sums.size_bytes() + input.size_bytes();
}

std::unique_ptr<GpuWeights> pack_on_gpu(const CheckedWeights& w, std::int64_t step_n, Context& context) {
  const Device& device = context.device();
  auto packed = std::make_unique<GpuWeights>();
  packed->n = w.n;
  packed->k = w.k;
  packed->padded_n = round_up(w.n, step_n);
  packed->pitch = round_up(w.k, kPitch);
  packed->codes = upload_codes(w, *packed, device);
  std::vector<float> scales = w.scales;
  scales.resize(static_cast<std::size_t>(packed->padded_n), 0.0f);
  packed->scales = DeviceBuffer(device, scales.data(), packed->padded_n * 4);
  packed->one_scale = std::all_of(w.scales.begin(), w.scales.end(), [&](float scale) { return scale == w.scales[0]; });
  packed->input_scale = w.input_scale;
  packed->input_zero_point = w.input_zero_point;
  packed->input_scale_ub = w.input_scale_ub;
  if (w.input_scale) {
    packed->input = DeviceBuffer(device, 8);
    packed->input.copy_from_host(&*w.input_scale, 4);
    packed->input.copy_from_host(&w.input_zero_point, 4, 4);
  }
  if (w.dtype == DType::kInt8) {
    packed->column_sums = DeviceBuffer(device, packed->padded_n * 4);
    const cuda::Place place{device.index, context.stream()};
    check_cuda(cuda_api().sum_columns(place, packed->codes.as<std::int8_t>(), packed->padded_n, w.k, packed->pitch,
                                      packed->column_sums.as<std::int32_t>()));
    check_cuda(cuda_api().synchronize(place));
  }
  return packed;
}

std::vector<std::uint8_t> unpack_from_gpu(const GpuWeights& weights) {
  std::vector<std::uint8_t> padded(static_cast<std::size_t>(weights.n * weights.pitch));
  weights.codes.copy_to_host(padded.data(), weights.n * weights.pitch);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(weights.n * weights.k));
  for (std::int64_t n = 0; n < weights.n; ++n) {
    std::copy_n(padded.data() + n * weights.pitch, weights.k, bytes.data() + n * weights.k);
  }
  return bytes;
}

Support is_capability(const Device& device, int least, int most) {
  const auto text = [](int capability) {
    return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
  };
  if (device.kind != DeviceKind::kCuda) {
    return Support::no("the device is " + std::string(name(device.kind)) + ", this kernel runs on cuda");
  }
  if (!device.capability) return Support::no("the device's compute capability is not known");
  if (*device.capability < least || *device.capability > most) {
    return Support::no("compute capability is " + text(*device.capability) + ", this kernel needs " + text(least) +
                       (most > least ? " or later" : ""));
  }
  return Support::yes();
}

Support can_implement_gpu_int8(const LayerConfig& config) {
  const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config);
  if (int8 == nullptr) return Support::no("weights are fp8, this kernel takes int8");
  if (const Support sizes = can_take_sizes(config); !sizes) return sizes;
  if (int8->weight_block) {
    return Support::no("weight scales are " + int8->weight_block->text() + ", must be per tensor or per channel");
  }
  if (int8->weight_shape.k > kLargestInt8K) {
    return Support::no("K = " + std::to_string(int8->weight_shape.k) + " is more than " +
                       std::to_string(kLargestInt8K));
  }
  return Support::yes();
}

Support can_implement_gpu_fp8(const LayerConfig& config) {
  const auto* fp8 = std::get_if<FP8ScaledMMLinearLayerConfig>(&config);
  if (fp8 == nullptr) return Support::no("weights are int8, this kernel takes fp8");
  if (const Support sizes = can_take_sizes(config); !sizes) return sizes;
  const QuantKey& weight = fp8->weight_quant_key;
  const GroupShape& group = weight.scale.group_shape;
  if (weight.dtype != DType::kE4M3FN) {
    return Support::no("weights are " + std::string(name(weight.dtype)) + ", this kernel takes e4m3fn");
  }
  if (!weight.symmetric) return Support::no("weights are asymmetric, only symmetric ones have a meaning");
  if (weight.scale2)
    return Support::no("weights have a second scale " + weight.scale2->text() + ", at most one is taken");
  if (!weight.scale.is_static) return Support::no("weight scales are dynamic, they must come with the checkpoint");
  if (!group.is_per_tensor() && !group.is_per_channel()) {
    return Support::no("weight scales are " + group.text() + ", must be per tensor or per channel");
  }
  if (!fp8->activation_quant_key) return Support::no("activations are not quantized, this kernel takes e4m3fn");
  return can_take_activation(*fp8->activation_quant_key);
}

}  // namespace scaledmm
