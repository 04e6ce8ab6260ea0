// int8_w8a8_sm90
//   y[m, n] = (sum over k of (q[m, k] - zx[m]) * w[n, k]) * sx[m] * sw[n] (+ bias[n])     docs/quantization.md 4
//   x [M, K] f32, bf16 or f16, or int8 quantized before; w [N, K] int8; y [M, N] f32, bf16 or f16; any M and N, K <
//   2^17
// Two launches: x is quantized (static per tensor or dynamic per token, symmetric or with a zero point), then TMA and
// wgmma on Hopper multiply; zero points are corrected by the sums of W's rows. Exactness: sums are exact in int32,
// corrected in int64 where K needs it, so the result has the bits of every other INT8 kernel.
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
        .name = "int8_w8a8_sm90",
        .upstream = "CutlassInt8ScaledMMLinearKernel, TritonInt8ScaledMMLinearKernel",
        .device = DeviceKind::kCuda,
        .computes = "w8a8",
        .guarantees = {.accumulator = "int32", .exactness = "integer sums exact; equal to the reference bit for bit"}};
    return kInfo;
  }

  Support is_supported(const Device& device) const override { return is_capability(device, kHopper, kHopper); }
  Support can_implement(const LayerConfig& config) const override { return can_implement_gpu_int8(config); }

  // The correction holds for zero points that are int8 codes, which a caller's need not be.
  std::optional<QuantKey> input_quant_key(const LayerConfig& config) const override {
    const std::optional<QuantKey> key = gpu_int8_input_key(config);
    return key->symmetric ? key : std::nullopt;
  }

  std::unique_ptr<PackedWeights> pack(const LayerConfig&, const CheckedWeights& weights,
                                      Context& context) const override {
    std::unique_ptr<GpuWeights> packed = pack_on_gpu(weights, 1, context);
    prepare_sm90(*packed, true, context);
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

const LinearKernel& int8_w8a8_sm90() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::native
