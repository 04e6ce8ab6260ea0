#include "kernels/cpu/int8_kernel.hpp"

namespace scaledmm {

Support Int8Kernel::can_implement(const LayerConfig& config) const { return can_implement_int8(config); }

std::optional<QuantKey> Int8Kernel::input_quant_key(const LayerConfig& config) const {
  return int8_input_quant_key(config);
}

std::unique_ptr<PackedWeights> Int8Kernel::pack(const LayerConfig&, const CheckedWeights& weights,
                                                Context& context) const {
  return pack_int8(weights, tile(), context);
}

void Int8Kernel::multiply(const LayerConfig& config, const PackedWeights& packed, const ApplyArguments& arguments,
                          Context& context) const {
  multiply_int8(config, static_cast<const Int8Weights&>(packed), arguments, method(arguments.m), context);
}

std::vector<std::uint8_t> Int8Kernel::unpack(const LayerConfig&, const PackedWeights& packed) const {
  return unpack_int8(static_cast<const Int8Weights&>(packed));
}

std::string Int8Kernel::packed_layout() const { return int8_layout(tile()); }

std::unique_ptr<PackedWeights> Int8Kernel::adopt(const LayerConfig&, const CheckedWeights& weights,
                                                 std::span<const PackedSection> sections,
                                                 const std::shared_ptr<const void>& memory) const {
  return adopt_int8(weights, tile(), sections, memory);
}

}  // namespace scaledmm
