// fp8_w8a8_sm90
//   y[m, n] = (sum over k of q[m, k] * w[n, k]) * sx[m] * sw[n] (+ bias[n])      one f32 rounding a step, one to y's
//   type x [M, K] f32, bf16 or f16, or e4m3fn quantized before; w [N, K] e4m3fn; y [M, N] f32, bf16 or f16; any M, N
//   and K
// Two launches: x is quantized (static or dynamic, per tensor or per token), then TMA and wgmma on Hopper multiply.
// Exactness: products are exact; the tensor core adds 128 of them with about 13 bits, and these sums are added in f32
// in the order of K, for every M alike (docs/quantization.md 4).
#include "kernels/cuda/gpu_activations.hpp"
#include "kernels/cuda/gpu_multiply.hpp"
#include "kernels/kernel_list.hpp"

namespace scaledmm::native {
namespace {

constexpr int kHopper = 90;

class Kernel final : public LinearKernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        .name = "fp8_w8a8_sm90",
        .upstream =
            "CutlassFP8ScaledMMLinearKernel, FlashInferFP8ScaledMMLinearKernel, RowWiseTorchFP8ScaledMMLinearKernel, "
            "PerTensorTorchFP8ScaledMMLinearKernel",
        .device = DeviceKind::kCuda,
        .computes = "w8a8",
        .guarantees = {.accumulator = "f32, sums of 128 in the tensor core",
                       .exactness = "within (2^-24 (K + 12) + 2^-9) sum|a w s| of the exact product"}};
    return kInfo;
  }

  Support is_supported(const Device& device) const override { return is_capability(device, kHopper, kHopper); }
  Support can_implement(const LayerConfig& config) const override { return can_implement_gpu_fp8(config); }
  std::optional<QuantKey> input_quant_key(const LayerConfig& config) const override {
    return gpu_fp8_input_key(config);
  }

  std::unique_ptr<PackedWeights> pack(const LayerConfig&, const CheckedWeights& weights,
                                      Context& context) const override {
    std::unique_ptr<GpuWeights> packed = pack_on_gpu(weights, 1, context);
    prepare_sm90(*packed, false, context);
    return packed;
  }

  void multiply(const LayerConfig& config, const PackedWeights& packed, const ApplyArguments& a,
                Context& context) const override {
    multiply_sm90(config, static_cast<const GpuWeights&>(packed), a, context);
  }

  std::vector<std::uint8_t> unpack(const LayerConfig&, const PackedWeights& packed) const override {
    return unpack_from_gpu(static_cast<const GpuWeights&>(packed));
  }
};

}  // namespace

const LinearKernel& fp8_w8a8_sm90() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::native
