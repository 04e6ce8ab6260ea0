// reference
//   y[m, n] = bias[n] + sum over K blocks b, in K order, of
//             sx[m, b] * sw[n, b] * (sum over k in b of (q[m, k] - zx[m]) * w[n, k])
//   x [M, K] f32, bf16, f16, or quantized before; w [N, K] int8, e4m3fn, e4m3fnuz or e5m2; y [M, N] f32, bf16 or f16
// Every scheme of docs/quantization.md on any N and K: the oracle of the other kernels, and the fallback. There is one
// K block where weights have a scale per tensor or channel; weight-only FP8 keeps x as it is, and sx is 1. Exactness:
// INT8 sums are exact in int64. FP8 products are exact and summed in f64 within a K block; each block's sum is rounded
// to f32 once, then scaled and added in f32 (docs/quantization.md 4).
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel_list.hpp"
#include "kernels/reference_rows.hpp"
#include "numerics/epilogue.hpp"

namespace scaledmm::native {
namespace {

// bytes[n * k + k'] = w[n, k']
struct ReferenceWeights final : PackedWeights {
  CheckedWeights w;
  std::vector<std::uint8_t> bytes;
  std::int64_t size_bytes() const override {
    return static_cast<std::int64_t>(bytes.size() + w.scales.size() * sizeof(float));
  }
};

Support can_take_activation(const QuantKey& key) {
  const ScaleDesc& scale = key.scale;
  if (!is_fp8(key.dtype))
    return Support::no("activations are " + std::string(name(key.dtype)) + ", not an 8-bit float");
  if (!key.symmetric) return Support::no("fp8 activations are asymmetric, only symmetric ones have a meaning");
  if (scale.group_shape.row > 1) return Support::no("activation groups " + scale.group_shape.text() + " span rows");
  if (scale.group_shape.is_per_channel()) return Support::no("activation scales are per_channel, along K");
  if (scale.is_static && !scale.group_shape.is_per_tensor())
    return Support::no("static activation scales are " + scale.group_shape.text() +
                       ", a checkpoint has one per tensor");
  return Support::yes();
}

Support can_take_fp8(const FP8ScaledMMLinearLayerConfig& config) {
  const QuantKey& weight = config.weight_quant_key;
  const GroupShape& group = weight.scale.group_shape;
  if (!is_fp8(weight.dtype))
    return Support::no("weights are " + std::string(name(weight.dtype)) + ", not an 8-bit float");
  if (!weight.symmetric) return Support::no("weights are asymmetric, only symmetric ones have a meaning");
  if (weight.scale2)
    return Support::no("weights have a second scale " + weight.scale2->text() + ", at most one is taken");
  if (!weight.scale.is_static) return Support::no("weight scales are dynamic, they must come with the checkpoint");
  if (!config.activation_quant_key) return Support::yes();
  const GroupShape& activation = config.activation_quant_key->scale.group_shape;
  const bool splits_weight = group.row >= 1 && group.col >= 1;
  if (splits_weight != activation.is_per_group() || (splits_weight && group.col != activation.col))
    return Support::no("weight scales are " + group.text() + " and activation scales " + activation.text() +
                       ", both must have the same extent along K");
  return can_take_activation(*config.activation_quant_key);
}

void multiply_int8(const Int8ScaledMMLinearLayerConfig& config, const ReferenceWeights& packed, const ApplyArguments& a,
                   Context& context) {
  const CheckedWeights& w = packed.w;
  const Rows<std::int8_t> rows = scratch_rows<std::int8_t>(a, w, 1, context);
  for (std::int64_t m = 0; m < a.m; ++m) quantize_int8_row(config, w, a, rows, m);

  context.parallel(w.n, [&](std::int64_t n) {
    const auto* weights = reinterpret_cast<const std::int8_t*>(packed.bytes.data()) + n * w.k;
    for (std::int64_t m = 0; m < a.m; ++m) {
      const float sx = rows.scale[m];
      float y = 0.0f;
      for (std::int64_t begin = 0, end = 0; begin < w.k; begin = end) {
        end = block_end(w, begin);
        std::int64_t sum = 0;
        std::int64_t column_sum = 0;
        for (std::int64_t k = begin; k < end; ++k) {
          sum += rows.q[m * w.k + k] * weights[k];
          column_sum += weights[k];
        }
        const std::int64_t corrected = correct_zero_point(sum, rows.zero_point[m], column_sum);
        const float sw = w.scale(n, begin);
        if (!w.per_channel)
          y = add_int8_block(y, corrected, sw);
        else
          y = a.bias ? rescale_int8(corrected, sx, sw, a.bias[n]) : rescale_int8(corrected, sx, sw);
      }
      if (!w.per_channel) y = a.bias ? finish_int8_block(y, sx, a.bias[n]) : finish_int8_block(y, sx);
      store_f32(y, a.y, a.y_dtype, m * a.y_stride + n);
    }
  });
}

void multiply_fp8(const FP8ScaledMMLinearLayerConfig& config, const ReferenceWeights& packed, const ApplyArguments& a,
                  Context& context) {
  const CheckedWeights& w = packed.w;
  const Rows<float> rows = scratch_rows<float>(a, w, block_of(w, w.k - 1) + 1, context);
  const Fp8Scale tensor_scale = whole_tensor_scale(config, w, a);
  for (std::int64_t m = 0; m < a.m; ++m) quantize_fp8_row(config, w, a, tensor_scale, rows, m);

  const std::array<float, 256>& values = fp8_values(w.dtype);
  context.parallel(w.n, [&](std::int64_t n) {
    const std::uint8_t* weights = packed.bytes.data() + n * w.k;
    for (std::int64_t m = 0; m < a.m; ++m) {
      const float* x = rows.q + m * w.k;
      float y = 0.0f;
      for (std::int64_t begin = 0, end = 0; begin < w.k; begin = end) {
        end = block_end(w, begin);
        double sum = 0.0;
        for (std::int64_t k = begin; k < end; ++k) sum += static_cast<double>(x[k]) * values[weights[k]];
        const auto partial = static_cast<float>(sum);
        const float sx = rows.scale[m * rows.blocks + block_of(w, begin)];
        const float sw = w.scale(n, begin);
        if (!w.per_channel)
          y = add_fp8_block(y, partial, sx, sw);
        else
          y = a.bias ? rescale_fp8(partial, sx, sw, a.bias[n]) : rescale_fp8(partial, sx, sw);
      }
      if (!w.per_channel && a.bias) y += a.bias[n];
      store_f32(y, a.y, a.y_dtype, m * a.y_stride + n);
    }
  });
}

class Reference final : public LinearKernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        .name = "reference",
        .upstream =
            "PerTensorTorchFP8ScaledMMLinearKernel, ChannelWiseTorchFP8ScaledMMLinearKernel, "
            "RowWiseTorchFP8ScaledMMLinearKernel, BlockWiseTorchFP8ScaledMMLinearKernel, "
            "TritonInt8ScaledMMLinearKernel, TritonFp8BlockScaledMMKernel",
        .isa = Isa::kScalar,
        .computes = "w8a8",
        .guarantees = {
            .accumulator = "int64, f64 in a K block",
            .exactness = "int8 sums exact; fp8 within 2^-24 (4 blocks + 8) sum|a w s| of the exact product"}};
    return kInfo;
  }

  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu)
      return Support::no("the device is " + std::string(scaledmm::name(device.kind)) + ", this kernel runs on cpu");
    return Support::yes();
  }

  Support can_implement(const LayerConfig& config) const override {
    const auto [n, k] = weight_shape(config);
    if (n < 1 || k < 1)
      return Support::no("N = " + std::to_string(n) + " and K = " + std::to_string(k) + ", both must be at least 1");
    for (const DType dtype : {input_dtype(config), out_dtype(config)}) {
      if (!is_float16_or_32(dtype))
        return Support::no("x or y is " + std::string(scaledmm::name(dtype)) + ", must be f32, bf16 or f16");
    }
    if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
      if (int8->weight_block && int8->is_static_input_scheme)
        return Support::no("int8 weights in blocks with a static input scale, activations must be dynamic per token");
      return Support::yes();
    }
    return can_take_fp8(std::get<FP8ScaledMMLinearLayerConfig>(config));
  }

  std::optional<QuantKey> input_quant_key(const LayerConfig& config) const override {
    if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
      const ScaleDesc scale = int8->is_static_input_scheme ? kStaticTensorScale : kDynamicTokenScale;
      return QuantKey{DType::kInt8, scale, std::nullopt, int8->input_symmetric};
    }
    const auto& fp8 = std::get<FP8ScaledMMLinearLayerConfig>(config);
    std::optional<QuantKey> key = fp8.activation_quant_key;
    if (key) key->dtype = activation_dtype(fp8);
    return key;
  }

  std::unique_ptr<PackedWeights> pack(const LayerConfig&, const CheckedWeights& w, Context&) const override {
    auto packed = std::make_unique<ReferenceWeights>();
    packed->w = w;
    packed->bytes.resize(static_cast<std::size_t>(w.n * w.k));
    for (std::int64_t n = 0; n < w.n; ++n) std::copy_n(w.bytes + n * w.row_pitch, w.k, packed->bytes.data() + n * w.k);
    packed->w.bytes = packed->bytes.data();
    packed->w.row_pitch = w.k;
    return packed;
  }

  void multiply(const LayerConfig& config, const PackedWeights& packed, const ApplyArguments& arguments,
                Context& context) const override {
    const auto& weights = static_cast<const ReferenceWeights&>(packed);
    if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
      multiply_int8(*int8, weights, arguments, context);
    } else {
      multiply_fp8(std::get<FP8ScaledMMLinearLayerConfig>(config), weights, arguments, context);
    }
  }

  std::vector<std::uint8_t> unpack(const LayerConfig&, const PackedWeights& packed) const override {
    return static_cast<const ReferenceWeights&>(packed).bytes;
  }
};

}  // namespace

const LinearKernel& reference() {
  static const Reference kernel;
  return kernel;
}

}  // namespace scaledmm::native
