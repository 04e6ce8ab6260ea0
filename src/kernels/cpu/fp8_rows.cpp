#include "kernels/cpu/fp8_rows.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "device/target.hpp"
#include "kernels/cpu/row_values.hpp"
#include "numerics/formats.hpp"

namespace scaledmm::fp8 {
namespace {

constexpr std::int64_t kTileRows = 16;   // of AMX
constexpr std::int64_t kTileBytes = 64;  // of a row of an AMX tile

using Bf16Tables = std::array<std::uint8_t, 256>;

constexpr Bf16Tables make_bf16_tables(const std::array<float, 256>& values) {
  Bf16Tables tables{};
  for (std::size_t code = 0; code < 128; ++code) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[code]);
    tables[code] = static_cast<std::uint8_t>(bits >> 16);
    tables[128 + code] = static_cast<std::uint8_t>(bits >> 24);
  }
  return tables;
}

alignas(64) constexpr Bf16Tables kE4M3FNTables = make_bf16_tables(detail::kE4M3FNValues);
alignas(64) constexpr Bf16Tables kE4M3FNUZTables = make_bf16_tables(detail::kE4M3FNUZValues);
alignas(64) constexpr Bf16Tables kE5M2Tables = make_bf16_tables(detail::kE5M2Values);

const std::byte* row_begin(const TileRows& rows, std::int64_t row) {
  return static_cast<const std::byte*>(rows.x) + row * rows.stride * size_bytes(rows.dtype);
}

// Copies `count` elements of a row, bf16 ones times `power`, and zeros up to `padded`.
template <class Element>
void copy_run(const Element* x, std::int64_t count, std::int64_t padded, float power, Element* out) {
  if (power == 1.0f) {
    std::memcpy(out, x, static_cast<std::size_t>(count) * sizeof(*x));
  } else if constexpr (sizeof(Element) == 2) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = f32_to_bf16(bf16_to_f32(x[i]) * power);
  }
  std::fill(out + count, out + padded, Element{0});
}

// The largest magnitude of a bf16 row, and the smallest but zero minus 1: in 16 bits a zero wraps round to the top.
struct Bf16Range {
  std::uint16_t largest = 0;
  std::uint16_t below = 0xffff;

  void take(std::uint16_t bits) {
    const auto magnitude = static_cast<std::uint16_t>(bits & 0x7fff);
    largest = std::max(largest, magnitude);
    below = std::min(below, static_cast<std::uint16_t>(magnitude - 1));
  }
};

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c")
// clang-format on

Bf16Range bf16_range(const std::uint16_t* x, std::int64_t k) {
  constexpr std::int64_t kWords = 16;
  const __m256i magnitude_bits = _mm256_set1_epi16(0x7fff);
  __m256i largest = _mm256_setzero_si256();
  __m256i below = _mm256_set1_epi16(-1);
  std::int64_t i = 0;
  for (; i + kWords <= k; i += kWords) {
    const __m256i magnitudes =
        _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), magnitude_bits);
    largest = _mm256_max_epu16(largest, magnitudes);
    below = _mm256_min_epu16(below, _mm256_sub_epi16(magnitudes, _mm256_set1_epi16(1)));
  }
  alignas(32) std::uint16_t largest_of[kWords];
  alignas(32) std::uint16_t below_of[kWords];
  _mm256_store_si256(reinterpret_cast<__m256i*>(largest_of), largest);
  _mm256_store_si256(reinterpret_cast<__m256i*>(below_of), below);
  Bf16Range range;
  for (int lane = 0; lane < kWords; ++lane) {
    range.largest = largest_of[lane] > range.largest ? largest_of[lane] : range.largest;
    range.below = below_of[lane] < range.below ? below_of[lane] : range.below;
  }
  for (; i < k; ++i) range.take(x[i]);
  return range;
}

// Eight activations of one row as f32.
inline __m256 load_eight(const void* x, DType dtype, std::int64_t index) {
  if (dtype == DType::kF32) return LoadF32::load(static_cast<const float*>(x) + index);
  const auto* halves = static_cast<const std::uint16_t*>(x) + index;
  return dtype == DType::kF16 ? LoadF16::load(halves) : LoadBF16::load(halves);
}

// One row, times `multiplier`, to every rows-th float of the tile. Returns the largest magnitude, as bits.
std::uint32_t pack_scaled_row(const TileRows& rows, std::int64_t row, float multiplier, float* out) {
  const std::byte* x = row_begin(rows, row);
  const __m256 factor = _mm256_set1_ps(multiplier);
  __m256i largest = _mm256_setzero_si256();
  alignas(32) float lanes[kLanes];
  std::int64_t k = 0;
  for (; k + kLanes <= rows.padded_k; k += kLanes) {
    const __m256 values = _mm256_mul_ps(load_eight(x, rows.dtype, k), factor);
    largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(0x7fffffff)));
    if (rows.rows == 1) {
      _mm256_storeu_ps(out + k, values);
      continue;
    }
    _mm256_store_ps(lanes, values);
    for (std::int64_t i = 0; i < kLanes; ++i) out[(k + i) * rows.rows] = lanes[i];
  }
  alignas(32) std::uint32_t bits[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(bits), largest);
  std::uint32_t result = 0;
  for (const std::uint32_t b : bits) result = b > result ? b : result;
  for (; k < rows.padded_k; ++k) {
    const float value = load_f32(x, rows.dtype, k) * multiplier;
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
    result = magnitude > result ? magnitude : result;
    out[k * rows.rows] = value;
  }
  return result;
}

}  // namespace

void store_row(const StoreCall& call) {
  alignas(32) std::byte ragged[kPanelColumns * sizeof(float)];
  const bool whole = call.columns == kPanelColumns;
  void* y = whole ? call.y : ragged;
  alignas(32) float bias[kPanelColumns] = {};
  if (call.bias != nullptr) std::memcpy(bias, call.bias, static_cast<std::size_t>(call.columns) * sizeof(float));
  for (std::int64_t c = 0; c < kPanelColumns; c += kLanes) {
    const __m256 totals = _mm256_load_ps(call.totals + c), factor = _mm256_set1_ps(call.factor);
    const __m256 added = _mm256_load_ps(bias + c);
    const __m256 values = call.scales == nullptr
                              ? _mm256_fmadd_ps(totals, factor, added)
                              : _mm256_fmadd_ps(_mm256_mul_ps(totals, factor), _mm256_load_ps(call.scales + c), added);
    if (call.dtype == DType::kF32) {
      _mm256_storeu_ps(static_cast<float*>(y) + c, values);
    } else {
      const __m128i halves = call.dtype == DType::kBF16
                                 ? to_bf16(values)
                                 : _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<std::uint16_t*>(y) + c), halves);
    }
  }
  if (!whole) std::memcpy(call.y, ragged, static_cast<std::size_t>(call.columns * size_bytes(call.dtype)));
}

SCALEDMM_TARGET_END

namespace {

// The power of two that a bf16 row is multiplied by, 0 when none will do.
float bf16_row_power(const TileRows& rows, std::int64_t row) {
  constexpr std::uint32_t kSmallest = kF32ExponentBias - 80;  // exponent fields
  constexpr std::uint32_t kLargest = kF32ExponentBias + 64;
  const Bf16Range range = bf16_range(reinterpret_cast<const std::uint16_t*>(row_begin(rows, row)), rows.k());
  if (range.below == 0xffff) return 1.0f;  // all zero
  const std::uint32_t smallest = static_cast<std::uint32_t>(range.below + 1) >> 7;
  if (smallest >= kSmallest) return 1.0f;
  // A denormal bf16 has at most 6 leading zeros: exponent field 0 stands for -6 to 0.
  const std::uint32_t shift = kSmallest + 6 - smallest;
  if ((static_cast<std::uint32_t>(range.largest) >> 7) + shift > kLargest) return 0.0f;
  return std::bit_cast<float>((kF32ExponentBias + shift) << 23);
}

// Calls visit(position, elements, count) for the row times `power`, in runs of a tile's row or less, padded with zeros.
template <class Element, class Visit>
void for_each_run(const TileRows& rows, std::int64_t row, float power, const Visit& visit) {
  constexpr std::int64_t kRun = kTileBytes / static_cast<std::int64_t>(sizeof(Element));
  const auto* x = reinterpret_cast<const Element*>(row_begin(rows, row));
  for (std::size_t b = 0; b < rows.blocks.size(); ++b) {
    const KBlock& block = rows.blocks[b];
    const std::int64_t end = b + 1 < rows.blocks.size() ? rows.blocks[b + 1].position : rows.padded_k;
    for (std::int64_t i = 0; i < end - block.position; i += kRun) {
      const std::int64_t padded = std::min(kRun, end - block.position - i);
      const std::int64_t count = std::clamp<std::int64_t>(block.count - i, 0, padded);
      Element run[kRun];
      copy_run(x + block.begin + i, count, padded, power, run);
      visit(block.position + i, run, padded);
    }
  }
}

// tile[row / 16][k / e][row % 16][k % e], e elements in a row of a tile; the last row writes the missing ones, zero.
template <class Element>
void pack_amx_tiles(const TileRows& rows, std::int64_t row, float power, std::byte* tile) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Element));
  const std::int64_t row_bytes = rows.padded_k * kBytes;
  const auto run_begin = [&](std::int64_t tile_row, std::int64_t byte) {
    return tile + tile_row / kTileRows * kTileRows * row_bytes + byte * kTileRows + tile_row % kTileRows * kTileBytes;
  };
  for_each_run<Element>(rows, row, power, [&](std::int64_t position, const Element* run, std::int64_t count) {
    std::memcpy(run_begin(row, position * kBytes), run, static_cast<std::size_t>(count * kBytes));
  });
  if (row + 1 != rows.rows) return;
  for (std::int64_t missing = rows.rows; missing % kTileRows != 0; ++missing) {
    for (std::int64_t byte = 0; byte < row_bytes; byte += kTileBytes) {
      std::memset(run_begin(missing, byte), 0, kTileBytes);
    }
  }
}

float inverse(float power) { return power == 0.0f ? 0.0f : 1.0f / power; }

}  // namespace

float pack_f32_row(const TileRows& rows, std::int64_t row, std::byte* tile) {
  const float power = rows.weight_dtype == DType::kE5M2 ? 1.0f : rows.weight_dtype == DType::kE4M3FN ? 256.0f : 128.0f;
  constexpr std::uint32_t kLarge = (kF32ExponentBias + 64) << 23;  // 2^64
  float* out = reinterpret_cast<float*>(tile) + row;
  if (pack_scaled_row(rows, row, power, out) < kLarge) return 1.0f;
  // With the power of two a sum of so large a row might overflow.
  pack_scaled_row(rows, row, 1.0f, out);
  return power;
}

float pack_bf16_pairs(const TileRows& rows, std::int64_t row, std::byte* tile) {
  constexpr std::int64_t kPairBytes = 4;
  const float power = bf16_row_power(rows, row);
  for_each_run<std::uint16_t>(rows, row, power,
                              [&](std::int64_t position, const std::uint16_t* run, std::int64_t count) {
                                std::byte* out = tile + (position / 2 * rows.rows + row) * kPairBytes;
                                for (std::int64_t i = 0; i < count; i += 2)
                                  std::memcpy(out + i / 2 * rows.rows * kPairBytes, run + i, kPairBytes);
                              });
  return inverse(power);
}

float pack_bf16_tiles(const TileRows& rows, std::int64_t row, std::byte* tile) {
  const float power = bf16_row_power(rows, row);
  pack_amx_tiles<std::uint16_t>(rows, row, power, tile);
  return inverse(power);
}

float pack_byte_tiles(const TileRows& rows, std::int64_t row, std::byte* tile) {
  pack_amx_tiles<std::uint8_t>(rows, row, 1.0f, tile);
  return 1.0f;
}

const std::uint8_t* bf16_tables(DType weights) {
  if (weights == DType::kE5M2) return kE5M2Tables.data();
  return weights == DType::kE4M3FNUZ ? kE4M3FNUZTables.data() : kE4M3FNTables.data();
}

}  // namespace scaledmm::fp8
