// What the fp8_w8a8 kernels share: everything but a name, a machine and the tiles. Most take the tiles of the fp8_w8a16
// kernel of their instruction set, because the values of FP8 codes are exact in bf16 and f32.
#pragma once

#include "device/target.hpp"
#include "kernels/cpu/fp8_product.hpp"

namespace scaledmm::fp8 {

class W8A8Kernel : public LinearKernel {
 public:
  Support can_implement(const LayerConfig& config) const override;
  std::optional<QuantKey> input_quant_key(const LayerConfig& config) const override;
  std::unique_ptr<PackedWeights> pack(const LayerConfig& config, const CheckedWeights& weights,
                                      Context& context) const override;
  void multiply(const LayerConfig& config, const PackedWeights& packed, const ApplyArguments& arguments,
                Context& context) const override;
  std::vector<std::uint8_t> unpack(const LayerConfig& config, const PackedWeights& packed) const override;
  std::string packed_layout() const override;
  std::unique_ptr<PackedWeights> adopt(const LayerConfig& config, const CheckedWeights& weights,
                                       std::span<const PackedSection> sections,
                                       const std::shared_ptr<const void>& memory) const override;

 private:
  virtual const TileKernels& tiles() const = 0;
};

}  // namespace scaledmm::fp8

namespace scaledmm::native {
const fp8::TileKernels& fp8_tiles_avx2();
}  // namespace scaledmm::native

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
const fp8::TileKernels& fp8_tiles_avx512();
const fp8::TileKernels& fp8_tiles_amx();
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
