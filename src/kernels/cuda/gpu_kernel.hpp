// The shape that the kernels on GPUs share: which layers, packing, and back. They differ in what multiplies.
#pragma once

#include "kernels/cuda/gpu_activations.hpp"
#include "kernels/cuda/gpu_multiply.hpp"

namespace scaledmm {

enum class GpuGemm { kSm90, kSm90Fast, kVendor };

class GpuKernel final : public LinearKernel {
 public:
  GpuKernel(const KernelInfo& info, DType weights, GpuGemm gemm)
      : info_(info), is_int8_(weights == DType::kInt8), gemm_(gemm) {}

  const KernelInfo& info() const override { return info_; }

  Support is_supported(const Device& device) const override {
    constexpr int kHopper = 90;
    return gemm_ == GpuGemm::kVendor ? is_vendor_supported(device) : is_capability(device, kHopper, kHopper);
  }
  Support can_implement(const LayerConfig& config) const override {
    return is_int8_ ? can_implement_gpu_int8(config) : can_implement_gpu_fp8(config);
  }
  std::optional<QuantKey> input_quant_key(const LayerConfig& config) const override {
    return is_int8_ ? gpu_int8_input_key(config) : gpu_fp8_input_key(config);
  }

  std::unique_ptr<PackedWeights> pack(const LayerConfig&, const CheckedWeights& weights,
                                      Context& context) const override {
    if (gemm_ == GpuGemm::kVendor) return pack_on_gpu(weights, kVendorStepN, context);
    std::unique_ptr<GpuWeights> packed = pack_on_gpu(weights, 1, context);
    prepare_sm90(*packed, is_int8_, context);
    return packed;
  }

  void multiply(const LayerConfig& config, const PackedWeights& packed, const ApplyArguments& a,
                Context& context) const override {
    const auto& weights = static_cast<const GpuWeights&>(packed);
    if (gemm_ == GpuGemm::kVendor) {
      multiply_vendor(config, weights, a, context);
    } else {
      multiply_sm90(config, weights, gemm_ == GpuGemm::kSm90Fast, a, context);
    }
  }

  std::vector<std::uint8_t> unpack(const LayerConfig&, const PackedWeights& packed) const override {
    return unpack_from_gpu(static_cast<const GpuWeights&>(packed));
  }

 private:
  KernelInfo info_;
  bool is_int8_;
  GpuGemm gemm_;
};

}  // namespace scaledmm
