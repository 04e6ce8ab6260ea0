// cublaslt_int8
//   y[m, n] = (sum over k of (q[m, k] - zx[m]) * w[n, k]) * sx[m] * sw[n] (+ bias[n])      docs/quantization.md 4
//   x [M, K] f32, bf16 or f16, or int8 quantized before; w [N, K] int8; y [M, N] f32, bf16 or f16; any M and N, K <
//   2^17
// cuBLASLt multiplies codes padded with zeros into int32 sums, by the algorithm that its heuristic chooses once for
// each shape; a third launch corrects and scales them. Exactness: sums are exact, so the result has the bits of every
// other INT8 kernel.
#include "kernels/cuda/gpu_activations.hpp"
#include "kernels/cuda/gpu_multiply.hpp"
#include "kernels/kernel_list.hpp"

namespace scaledmm::native {
namespace {

class Kernel final : public LinearKernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        .name = "cublaslt_int8",
        .upstream = "CutlassInt8ScaledMMLinearKernel",
        .device = DeviceKind::kCuda,
        .computes = "w8a8",
        .guarantees = {.accumulator = "int32", .exactness = "integer sums exact; equal to the reference bit for bit"}};
    return kInfo;
  }

  Support is_supported(const Device& device) const override { return is_vendor_supported(device); }
  Support can_implement(const LayerConfig& config) const override { return can_implement_gpu_int8(config); }
  std::optional<QuantKey> input_quant_key(const LayerConfig& config) const override {
    return gpu_int8_input_key(config);
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

const LinearKernel& cublaslt_int8() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::native
