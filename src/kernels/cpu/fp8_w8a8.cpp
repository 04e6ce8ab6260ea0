#include "kernels/cpu/fp8_w8a8.hpp"

namespace scaledmm::fp8 {

Support W8A8Kernel::can_implement(const LayerConfig& config) const { return can_implement_w8a8(config); }

std::optional<QuantKey> W8A8Kernel::input_quant_key(const LayerConfig& config) const { return activation_key(config); }

std::unique_ptr<PackedWeights> W8A8Kernel::pack(const LayerConfig&, const CheckedWeights& weights,
                                                Context& context) const {
  return fp8::pack(tiles().packing, weights, context);
}

void W8A8Kernel::multiply(const LayerConfig& config, const PackedWeights& packed, const ApplyArguments& arguments,
                          Context& context) const {
  multiply_quantized(tiles(), config, static_cast<const PackedFp8&>(packed), arguments, context);
}

std::vector<std::uint8_t> W8A8Kernel::unpack(const LayerConfig&, const PackedWeights& packed) const {
  return fp8::unpack(static_cast<const PackedFp8&>(packed));
}

std::string W8A8Kernel::packed_layout() const { return fp8::packed_layout(tiles().packing); }

std::unique_ptr<PackedWeights> W8A8Kernel::adopt(const LayerConfig&, const CheckedWeights& weights,
                                                 std::span<const PackedSection> sections,
                                                 const std::shared_ptr<const void>& memory) const {
  return fp8::adopt(tiles().packing, weights, sections, memory);
}

}  // namespace scaledmm::fp8
