#include "kernels/cpu/fp8_packing.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "kernels/cpu/adopted_section.hpp"
#include "kernels/cpu/shares.hpp"
#include "kernels/round_up.hpp"
#include "numerics/formats.hpp"

namespace scaledmm::fp8 {
namespace {

// Of the packed bytes: a change of their order or meaning needs another number, or old files would be taken.
constexpr int kLayoutVersion = 2;

std::vector<KBlock> k_blocks(const CheckedWeights& weights, std::int64_t k_step) {
  std::vector<KBlock> blocks;
  std::int64_t position = 0;
  for (std::int64_t begin = 0; begin < weights.k;) {
    const std::int64_t to_edge = weights.block_k - (begin + weights.offset_k) % weights.block_k;
    const std::int64_t count = std::min(to_edge, weights.k - begin);
    blocks.push_back({begin, count, position});
    position += divide_up(count, k_step) * k_step;
    begin += count;
  }
  return blocks;
}

// Chunks of at most chunk_k. Only scale blocks longer than that are cut.
Chunks cut_chunks(const std::vector<KBlock>& blocks, std::int64_t k_step, std::int64_t chunk_k) {
  Chunks chunks;
  std::int64_t room = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const KBlock& block = blocks[b];
    const std::int64_t padded = divide_up(block.count, k_step) * k_step;
    for (std::int64_t done = 0, steps; done < padded; done += steps) {
      if (room < std::min(padded - done, chunk_k)) {
        chunks.emplace_back();
        room = chunk_k;
      }
      steps = std::min(padded - done, room);
      chunks.back().push_back(
          {block.position + done, steps, static_cast<std::int64_t>(b), done == 0, done + steps == padded});
      room -= steps;
    }
  }
  return chunks;
}

void pack_panel(const CheckedWeights& weights, const PackedFp8& packed, std::int64_t panel, std::uint8_t* codes,
                float* scales) {
  const std::array<float, 256>& values = fp8_values(packed.dtype);
  const std::uint8_t* numbers = packed.order == Order::kPairs ? fp8_numbering(packed.dtype).number_of.data() : nullptr;
  const std::int64_t first = panel * kPanelColumns;
  const std::int64_t columns = std::min(kPanelColumns, packed.n - first);
  for (std::int64_t column = 0; column < columns; ++column) {
    const std::uint8_t* row = weights.bytes + (first + column) * weights.row_pitch;
    bool has_nan = false;
    for (std::size_t b = 0; b < packed.blocks.size(); ++b) {
      const KBlock& block = packed.blocks[b];
      for (std::int64_t i = 0; i < block.count; ++i) {
        const std::uint8_t code = row[block.begin + i];
        has_nan |= values[code] != values[code];
        codes[code_offset(packed.order, block.position + i, column)] = numbers == nullptr ? code : numbers[code];
      }
      scales[static_cast<std::int64_t>(b) * kPanelColumns + column] = weights.scale(first + column, block.begin);
    }
    if (has_nan) scales[column] = std::numeric_limits<float>::quiet_NaN();
  }
}

// Sizes and places, but no memory.
std::unique_ptr<PackedFp8> lay_out(const Packing& packing, const CheckedWeights& weights) {
  auto packed = std::make_unique<PackedFp8>();
  packed->n = weights.n;
  packed->k = weights.k;
  packed->dtype = weights.dtype;
  packed->order = packing.order;
  packed->per_channel = weights.per_channel;
  packed->panels = divide_up(weights.n, kPanelColumns);
  packed->blocks = k_blocks(weights, packing.k_step);
  packed->first_scale = weights.offset_k / weights.block_k;
  packed->input_scale = weights.input_scale;
  packed->input_scale_ub = weights.input_scale_ub;
  packed->ue8m0_input_scales = weights.ue8m0_input_scales;
  const KBlock& last = packed->blocks.back();
  packed->padded_k = last.position + divide_up(last.count, packing.k_step) * packing.k_step;
  packed->whole = cut_chunks(packed->blocks, packing.k_step, packed->padded_k);
  packed->chunks = cut_chunks(packed->blocks, packing.k_step, packing.chunk_k);
  return packed;
}

std::int64_t codes_bytes(const PackedFp8& packed) { return packed.panels * packed.padded_k * kPanelColumns; }
std::int64_t scales_bytes(const PackedFp8& packed) {
  return packed.panels * kPanelColumns * static_cast<std::int64_t>(packed.blocks.size() * sizeof(float));
}

std::string text(DType dtype) { return std::string(name(dtype)); }

}  // namespace

std::int64_t PackedFp8::size_bytes() const {
  return codes.size_bytes() + scales.size_bytes() +
         static_cast<std::int64_t>(sizeof(*this) + blocks.size() * sizeof(KBlock));
}

std::vector<PackedSection> PackedFp8::sections() const {
  return {{"codes", codes.bytes()}, {"scales", scales.bytes()}};
}

std::unique_ptr<PackedFp8> pack(const Packing& packing, const CheckedWeights& weights, Context& context) {
  std::unique_ptr<PackedFp8> packed = lay_out(packing, weights);
  packed->codes = HugeBuffer(codes_bytes(*packed));
  packed->scales = HugeBuffer(scales_bytes(*packed));
  auto* codes = packed->codes.as<std::uint8_t>();
  auto* scales = packed->scales.as<float>();
  const auto blocks = static_cast<std::int64_t>(packed->blocks.size());
  share_panels(packed->panels, context, [&](std::int64_t panel) {
    pack_panel(weights, *packed, panel, codes + panel * packed->padded_k * kPanelColumns,
               scales + panel * blocks * kPanelColumns);
  });
  return packed;
}

std::string packed_layout(const Packing& packing) {
  constexpr const char* kOrders[] = {"rows", "pairs", "quads"};
  return "fp8 panels of " + std::to_string(kPanelColumns) + ", version " + std::to_string(kLayoutVersion) +
         ": k step " + std::to_string(packing.k_step) + ", order " + kOrders[static_cast<std::size_t>(packing.order)];
}

std::unique_ptr<PackedFp8> adopt(const Packing& packing, const CheckedWeights& weights,
                                 std::span<const PackedSection> sections, const std::shared_ptr<const void>& memory) {
  std::unique_ptr<PackedFp8> packed = lay_out(packing, weights);
  packed->codes = adopted_section(sections, "codes", codes_bytes(*packed), memory);
  packed->scales = adopted_section(sections, "scales", scales_bytes(*packed), memory);
  return packed;
}

std::vector<std::uint8_t> unpack(const PackedFp8& packed) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(packed.n * packed.k));
  for (std::int64_t n = 0; n < packed.n; ++n) {
    for (const KBlock& block : packed.blocks) {
      const std::uint8_t* codes = packed.panel_codes(n / kPanelColumns, 0);
      for (std::int64_t i = 0; i < block.count; ++i) {
        bytes[static_cast<std::size_t>(n * packed.k + block.begin + i)] = code_of(
            packed.order, packed.dtype, codes[code_offset(packed.order, block.position + i, n % kPanelColumns)]);
      }
    }
  }
  return bytes;
}

Support can_implement_w8a16(const LayerConfig& config) {
  const auto* fp8 = std::get_if<FP8ScaledMMLinearLayerConfig>(&config);
  if (fp8 == nullptr) return Support::no("weights are int8, this kernel takes fp8");
  const auto [n, k] = fp8->weight_shape;
  if (n < 1) return Support::no("N = " + std::to_string(n) + " is less than 1");
  if (k < 1) return Support::no("K = " + std::to_string(k) + " is less than 1");
  const QuantKey& key = fp8->weight_quant_key;
  if (!is_fp8(key.dtype)) {
    return Support::no("weights are " + text(key.dtype) + ", this kernel takes e4m3fn, e4m3fnuz or e5m2");
  }
  if (key.scale2) return Support::no("weights have a second level of scales, this kernel takes one");
  if (!key.symmetric) return Support::no("weights are asymmetric, this kernel takes symmetric ones");
  if (!is_float16_or_32(fp8->input_dtype)) {
    return Support::no("input is " + text(fp8->input_dtype) + ", this kernel takes f32, bf16 or f16");
  }
  if (!is_float16_or_32(fp8->out_dtype)) {
    return Support::no("output is " + text(fp8->out_dtype) + ", this kernel gives f32, bf16 or f16");
  }
  return Support::yes();
}

Support can_implement_w8a8(const LayerConfig& config) {
  const Support weights = can_implement_w8a16(config);
  if (!weights) return weights;
  const auto& fp8 = std::get<FP8ScaledMMLinearLayerConfig>(config);
  if (!fp8.activation_quant_key) return Support::no("activations are not quantized, this kernel takes W8A8 layers");
  const QuantKey& key = *fp8.activation_quant_key;
  if (!is_fp8(key.dtype)) return Support::no("activations are " + text(key.dtype) + ", not an 8-bit float");
  if (key.scale2) return Support::no("activations have a second level of scales, this kernel takes one");
  if (!key.symmetric) return Support::no("activations are asymmetric, this kernel takes symmetric ones");
  const GroupShape& group = key.scale.group_shape;
  if (!group.is_per_tensor() && !group.is_per_token() && !group.is_per_group()) {
    return Support::no("activation scales are " + group.text() +
                       ", this kernel takes per tensor, per token and (1, c)");
  }
  if (key.scale.is_static && !group.is_per_tensor()) {
    return Support::no("static activation scales are " + group.text() + ", a checkpoint has one per tensor");
  }
  const GroupShape& block = fp8.weight_quant_key.scale.group_shape;
  const bool splits_k = block.row >= 1 && block.col >= 1;
  if (splits_k != group.is_per_group() || (splits_k && block.col != group.col)) {
    return Support::no("weight scales are " + block.text() + " and activation scales " + group.text() +
                       ", both must have the same extent along K");
  }
  return Support::yes();
}

std::optional<QuantKey> activation_key(const LayerConfig& config) {
  const auto& fp8 = std::get<FP8ScaledMMLinearLayerConfig>(config);
  std::optional<QuantKey> key = fp8.activation_quant_key;
  if (key && fp8.weight_quant_key.dtype == DType::kE4M3FNUZ) key->dtype = DType::kE4M3FNUZ;
  return key;
}

}  // namespace scaledmm::fp8
