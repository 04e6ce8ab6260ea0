#include "kernels/cpu/int8_packing.hpp"

#include <algorithm>
#include <string>

#include "kernels/cpu/shares.hpp"

namespace scaledmm {

namespace {

constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

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

void pack_panel(const CheckedWeights& weights, Int8Weights& packed, std::int64_t panel) {
  std::int8_t* codes = packed.codes.as<std::int8_t>() + panel * packed.packed_k * kInt8PanelN;
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
      packed.scales[static_cast<std::size_t>(entry)] = weights.scale(n, segment.begin);
      packed.column_sums[static_cast<std::size_t>(entry)] = sum;
    }
  }
}

}  // namespace

std::int64_t Int8Weights::size_bytes() const {
  return codes.size_bytes() +
         static_cast<std::int64_t>(scales.size() * sizeof(float) + column_sums.size() * sizeof(std::int32_t));
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
  auto packed = std::make_unique<Int8Weights>();
  packed->n = weights.n;
  packed->k = weights.k;
  packed->padded_n = round_up(weights.n, tile.n);
  packed->block_scaled = !weights.per_channel;
  packed->tile = tile;
  packed->segments = split_k(weights, tile.k);
  packed->packed_k = packed->segments.back().place + packed->segments.back().padded;
  packed->codes = HugeBuffer(packed->padded_n * packed->packed_k);
  const std::size_t entries = packed->segments.size() * static_cast<std::size_t>(packed->padded_n);
  packed->scales.assign(entries, 0.0f);
  packed->column_sums.assign(entries, 0);
  packed->input_scale = weights.input_scale;
  packed->input_zero_point = weights.input_zero_point;
  share_panels(packed->panels(), context, [&](std::int64_t panel) { pack_panel(weights, *packed, panel); });
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
