// cublaslt_fp8
//   y[m, n] = (sum over k of q[m, k] * w[n, k]) * sx[m] * sw[n] (+ bias[n])                docs/quantization.md 4
//   x [M, K] f32, bf16 or f16, or e4m3fn quantized before; w [N, K] e4m3fn; y [M, N] f32, bf16 or f16; any M, N and K
// cuBLASLt multiplies codes padded with zeros, by the algorithm that its heuristic chooses once for each shape. With
// one scale for x and one for W, no bias and aligned rows it writes y; otherwise it writes f32 sums, and a third launch
// scales them. Exactness: its sums are promoted to f32 as often as the library sees fit, without its fast accumulation.
#include "kernels/cuda/gpu_activations.hpp"
#include "kernels/cuda/gpu_multiply.hpp"
#include "kernels/kernel_list.hpp"

namespace scaledmm::native {
namespace {

class Kernel final : public LinearKernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        .name = "cublaslt_fp8",
        .upstream = "PerTensorTorchFP8ScaledMMLinearKernel, ChannelWiseTorchFP8ScaledMMLinearKernel",
        .device = DeviceKind::kCuda,
        .computes = "w8a8",
        .guarantees = {.batch_invariant = false,
                       .accumulator = "f32, as cuBLASLt forms it",
                       .exactness = "within (2^-24 (K + 12) + 2^-9) sum|a w s| of the exact product"}};
    return kInfo;
  }

  Support is_supported(const Device& device) const override { return is_vendor_supported(device); }
  Support can_implement(const LayerConfig& config) const override { return can_implement_gpu_fp8(config); }
  std::optional<QuantKey> input_quant_key(const LayerConfig& config) const override {
    return gpu_fp8_input_key(config);
  }

  std::unique_ptr<PackedWeights> pack(const LayerConfig&, const CheckedWeights& weights,
                                      Context& context) const override {
    return pack_on_gpu(weights, kVendorStepN, context);
  }

  void multiply(const LayerConfig& config, const PackedWeights& packed, const ApplyArguments& a,
                Context& context) const override {
    multiply_vendor(config, static_cast<const GpuWeights&>(packed), a, context);
  }

  std::vector<std::uint8_t> unpack(const LayerConfig&, const PackedWeights& packed) const override {
    return unpack_from_gpu(static_cast<const GpuWeights&>(packed));
  }
};

}  // namespace

const LinearKernel& cublaslt_fp8() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::native
