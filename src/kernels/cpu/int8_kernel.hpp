// What the int8_w8a8 kernels of the CPUs share: everything but a name, a machine, a tile and a method.
#pragma once

#include "kernels/cpu/int8_product.hpp"

namespace scaledmm {

class Int8Kernel : public LinearKernel {
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

 protected:
  static constexpr Guarantees kGuarantees{.accumulator = "int32",
                                          .exactness = "integer sums exact; equal to the reference bit for bit"};

 private:
  virtual const Int8Tile& tile() const = 0;
  virtual Int8Method method(std::int64_t m) const = 0;
};

}  // namespace scaledmm
