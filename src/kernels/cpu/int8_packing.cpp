#include "kernels/cpu/int8_packing.hpp"

#include <algorithm>
#include <string>

#include "kernels/cpu/adopted_section.hpp"
#include "kernels/cpu/shares.hpp"
#include "kernels/round_up.hpp"

namespace scaledmm {

namespace {

// Of the packed bytes: a change of their order or meaning needs another number, or old files would be taken.
constexpr int kLayoutVersion = 1;

std::vector<Int8Segment> split_k(const CheckedWeights& weights, std::int64_t step) {
  std::vector<Int8Segment> segments;
  std::int64_t place = 0;
  for (std::int64_t begin = 0; begin < weights.k;) {
    const std::int64_t left_in_block = weights.block_k - (begin + weights.offset_k) % weights.block_k;
    const std::int64_t length = weights.per_channel ? weights.k : std::min(left_in_block, weights.k - begin);
    segments.push_back({begin, length, place, round_up(length, step)});
    place += segments.back().padded;
    begin += length;
  }
  return segments;
}

// Where w[n, k] stands inside its panel, for the k at `place`.
std::int64_t code_index(std::int64_t n, std::int64_t place, std::int64_t products) {
  return (place / products * kInt8PanelN + n % kInt8PanelN) * products + place % products;
}

// Sizes and places, but no memory.
std::unique_ptr<Int8Weights> lay_out(const CheckedWeights& weights, const Int8Tile& tile) {
  auto packed = std::make_unique<Int8Weights>();
  packed->n = weights.n;
  packed->k = weights.k;
  packed->padded_n = round_up(weights.n, tile.n);
  packed->block_scaled = !weights.per_channel;
  packed->tile = tile;
  packed->segments = split_k(weights, tile.k);
  packed->packed_k = packed->segments.back().place + packed->segments.back().padded;
  packed->input_scale = weights.input_scale;
  packed->input_zero_point = weights.input_zero_point;
  return packed;
}

// Bytes of the codes, and of the scales as of the column sums.
std::int64_t codes_bytes(const Int8Weights& packed) { return packed.padded_n * packed.packed_k; }
std::int64_t entries_bytes(const Int8Weights& packed) {
  static_assert(sizeof(float) == sizeof(std::int32_t));
  return static_cast<std::int64_t>(packed.segments.size() * sizeof(float)) * packed.padded_n;
}

void pack_panel(const CheckedWeights& weights, Int8Weights& packed, std::int64_t panel) {
  std::int8_t* codes = packed.codes.as<std::int8_t>() + panel * packed.packed_k * kInt8PanelN;
  auto* scales = packed.scales.as<float>();
  auto* column_sums = packed.column_sums.as<std::int32_t>();
  const std::int64_t first = panel * kInt8PanelN;
  for (std::int64_t n = first; n < std::min(first + kInt8PanelN, packed.n); ++n) {
    const auto* row = reinterpret_cast<const std::int8_t*>(weights.bytes + n * weights.row_pitch);
    for (std::size_t s = 0; s < packed.segments.size(); ++s) {
      const Int8Segment& segment = packed.segments[s];
      std::int32_t sum = 0;
      for (std::int64_t i = 0; i < segment.length; ++i) {
        const std::int8_t code = row[segment.begin + i];
        codes[code_index(n, segment.place + i, packed.tile.products)] = code;
        sum += code;
      }
      const std::int64_t entry = static_cast<std::int64_t>(s) * packed.padded_n + n;
      scales[entry] = weights.scale(n, segment.begin);
      column_sums[entry] = sum;
    }
  }
}

}  // namespace

std::int64_t Int8Weights::size_bytes() const {
  return codes.size_bytes() + scales.size_bytes() + column_sums.size_bytes();
}

std::vector<PackedSection> Int8Weights::sections() const {
  return {{"codes", codes.bytes()}, {"scales", scales.bytes()}, {"column_sums", column_sums.bytes()}};
}

Support can_implement_int8(const LayerConfig& config) {
  const auto* layer = std::get_if<Int8ScaledMMLinearLayerConfig>(&config);
  if (layer == nullptr) return Support::no("weights are fp8, this kernel takes int8");
  if (!is_float16_or_32(layer->input_dtype)) {
    return Support::no("activations are " + std::string(name(layer->input_dtype)) +
                       ", this kernel takes f32, bf16 and f16");
  }
  if (!is_float16_or_32(layer->out_dtype)) {
    return Support::no("outputs are " + std::string(name(layer->out_dtype)) + ", this kernel writes f32, bf16 and f16");
  }
  const auto [n, k] = layer->weight_shape;
  if (n < 1) return Support::no("N = " + std::to_string(n) + " is less than 1");
  if (k < 1) return Support::no("K = " + std::to_string(k) + " is less than 1");
  if (k > kInt8LargestK) {
    return Support::no("K = " + std::to_string(k) + " is greater than " + std::to_string(kInt8LargestK) +
                       ", where int32 sums could wrap");
  }
  if (layer->weight_block) {
    const GroupShape block = *layer->weight_block;
    if (block.row < 1 || block.col < 1)
      return Support::no("weight block " + block.text() + " has an extent less than 1");
    if (layer->is_static_input_scheme)
      return Support::no("block-scaled weights take dynamic activations, these are static");
  }
  return Support::yes();
}

std::optional<QuantKey> int8_input_quant_key(const LayerConfig& config) {
  const auto* layer = std::get_if<Int8ScaledMMLinearLayerConfig>(&config);
  if (layer == nullptr) return std::nullopt;
  const bool is_static = layer->is_static_input_scheme;
  const GroupShape group = is_static ? GroupShape::per_tensor() : GroupShape::per_token();
  return QuantKey{DType::kInt8, ScaleDesc{DType::kF32, is_static, group}, std::nullopt, layer->input_symmetric};
}

std::unique_ptr<Int8Weights> pack_int8(const CheckedWeights& weights, const Int8Tile& tile, Context& context) {
  std::unique_ptr<Int8Weights> packed = lay_out(weights, tile);
  packed->codes = HugeBuffer(codes_bytes(*packed));
  packed->scales = HugeBuffer(entries_bytes(*packed));
  packed->column_sums = HugeBuffer(entries_bytes(*packed));
  share_panels(packed->panels(), context, [&](std::int64_t panel) { pack_panel(weights, *packed, panel); });
  return packed;
}

std::string int8_layout(const Int8Tile& tile) {
  return "int8 panels of " + std::to_string(kInt8PanelN) + ", version " + std::to_string(kLayoutVersion) + ": n step " +
         std::to_string(tile.n) + ", k step " + std::to_string(tile.k) + ", products " + std::to_string(tile.products);
}

std::unique_ptr<Int8Weights> adopt_int8(const CheckedWeights& weights, const Int8Tile& tile,
                                        std::span<const PackedSection> sections,
                                        const std::shared_ptr<const void>& memory) {
  std::unique_ptr<Int8Weights> packed = lay_out(weights, tile);
  packed->codes = adopted_section(sections, "codes", codes_bytes(*packed), memory);
  packed->scales = adopted_section(sections, "scales", entries_bytes(*packed), memory);
  packed->column_sums = adopted_section(sections, "column_sums", entries_bytes(*packed), memory);
  return packed;
}

std::vector<std::uint8_t> unpack_int8(const Int8Weights& weights) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(weights.n * weights.k));
  for (std::int64_t n = 0; n < weights.n; ++n) {
    const std::int8_t* codes = weights.panel(n / kInt8PanelN);
    std::uint8_t* row = bytes.data() + n * weights.k;
    for (const Int8Segment& segment : weights.segments) {
      for (std::int64_t i = 0; i < segment.length; ++i) {
        row[segment.begin + i] =
            static_cast<std::uint8_t>(codes[code_index(n, segment.place + i, weights.tile.products)]);
      }
    }
  }
  return bytes;
}

}  // namespace scaledmm
