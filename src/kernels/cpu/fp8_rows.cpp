#include "kernels/cpu/fp8_rows.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "device/target.hpp"
#include "kernels/cpu/row_values.hpp"
#include "numerics/formats.hpp"

namespace scaledmm::fp8 {
namespace {

constexpr std::int64_t kTileRows = 16;   // of AMX
constexpr std::int64_t kTileBytes = 64;  // of a row of an AMX tile

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
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,prfchw")
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

// `count` activations, times `multiplier`, to every rows-th float from `out` on. Returns the largest magnitude, as
// bits.
std::uint32_t pack_scaled_run(const TileRows& rows, const std::byte* x, std::int64_t count, float multiplier,
                              float* out) {
  const __m256 factor = _mm256_set1_ps(multiplier);
  __m256i largest = _mm256_setzero_si256();
  alignas(32) float lanes[kLanes];
  std::int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
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
  for (; k < count; ++k) {
    const float value = load_f32(x, rows.dtype, k) * multiplier;
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
    result = magnitude > result ? magnitude : result;
    out[k * rows.rows] = value;
  }
  return result;
}

// Eight outputs of a row as y's type.
template <DType kDType>
inline void store_eight(__m256 values, std::byte* y) {
  if constexpr (kDType == DType::kF32) {
    _mm256_storeu_ps(reinterpret_cast<float*>(y), values);
  } else if constexpr (kDType == DType::kBF16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y), to_bf16(values));
  } else {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y),
                     _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
}

// Panels go innermost: a row of y is a page or more away from the next, so a row is visited once for all of them. Lines
// of y that are fetched when they are written cost more than everything else here.
template <DType kDType, bool kHasScales>
void store_rows_as(const StoreCall& call) {
  constexpr std::int64_t kBytes = kDType == DType::kF32 ? 4 : 2;
  constexpr std::int64_t kRowsAhead = 3;
  const std::int64_t panels = (call.columns + kPanelColumns - 1) / kPanelColumns;
  const std::int64_t last = call.columns - (panels - 1) * kPanelColumns;
  alignas(32) float last_bias[kPanelColumns] = {};
  if (call.bias != nullptr) {
    const float* from = call.bias + (panels - 1) * kPanelColumns;
    std::memcpy(last_bias, from, static_cast<std::size_t>(last) * sizeof(float));
  }
  for (std::int64_t row = 0; row < call.rows; ++row) {
    std::byte* y = static_cast<std::byte*>(call.y) + row * call.y_stride * kBytes;
    const __m256 factor = _mm256_set1_ps(call.factors[row]);
    for (std::int64_t panel = 0; panel < panels; ++panel, y += kPanelColumns * kBytes) {
      alignas(32) std::byte ragged[kPanelColumns * sizeof(float)];
      __builtin_prefetch(y + kRowsAhead * call.y_stride * kBytes, 1);
      const bool is_last = panel + 1 == panels;
      const bool is_ragged = is_last && last < kPanelColumns;
      std::byte* out = is_ragged ? ragged : y;
      const float* bias = is_last || call.bias == nullptr ? last_bias : call.bias + panel * kPanelColumns;
      const float* from = call.totals + panel * call.panel_totals + row * kPanelColumns;
      for (std::int64_t c = 0; c < kPanelColumns; c += kLanes) {
        const __m256 totals = _mm256_load_ps(from + c);
        const __m256 added = _mm256_loadu_ps(bias + c);
        __m256 values;
        if constexpr (kHasScales) {
          const __m256 scales = _mm256_load_ps(call.scales + panel * kPanelColumns + c);
          values = _mm256_fmadd_ps(_mm256_mul_ps(totals, factor), scales, added);
        } else {
          values = _mm256_fmadd_ps(totals, factor, added);
        }
        store_eight<kDType>(values, out + c * kBytes);
      }
      if (is_ragged) std::memcpy(y, ragged, static_cast<std::size_t>(last * kBytes));
    }
  }
}

template <DType kDType>
void store_rows_of(const StoreCall& call) {
  if (call.scales != nullptr) return store_rows_as<kDType, true>(call);
  store_rows_as<kDType, false>(call);
}

}  // namespace

void store_rows(const StoreCall& call) {
  if (call.dtype == DType::kF32) return store_rows_of<DType::kF32>(call);
  if (call.dtype == DType::kBF16) return store_rows_of<DType::kBF16>(call);
  store_rows_of<DType::kF16>(call);
}

SCALEDMM_TARGET_END

namespace {

float power_of_row(const TileRows& rows, std::int64_t row) {
  if (!rows.finds_power) return 1.0f;
  const Bf16Range range = bf16_range(reinterpret_cast<const std::uint16_t*>(row_begin(rows, row)), rows.k());
  if (range.below == 0xffff) return 1.0f;  // all zero
  // A denormal bf16 has at most 6 leading zeros: exponent field 0 stands for -6 to 0.
  const int smallest = (range.below + 1) >> 7;
  return bf16_row_power(smallest == 0 ? -6 : smallest, range.largest >> 7);
}

// Calls visit(k, elements, count) for the part of the row in one chunk, times `power`, in runs of a tile's row or less,
// padded with zeros.
template <class Element, class Visit>
void for_each_run(const TileRows& rows, std::int64_t row, const Chunk& chunk, float power, const Visit& visit) {
  constexpr std::int64_t kRun = kTileBytes / static_cast<std::int64_t>(sizeof(Element));
  const auto* x = reinterpret_cast<const Element*>(row_begin(rows, row));
  for (const Piece& piece : chunk) {
    const KBlock& block = rows.blocks[static_cast<std::size_t>(piece.block)];
    const std::int64_t done = piece.position - block.position;
    std::int64_t i = 0;
    if (power == 1.0f) {
      // As they are.
      for (; i + kRun <= std::min(piece.steps, block.count - done); i += kRun) {
        visit(piece.position - chunk_begin(chunk) + i, x + block.begin + done + i, kRun);
      }
    }
    for (; i < piece.steps; i += kRun) {
      const std::int64_t padded = std::min(kRun, piece.steps - i);
      const std::int64_t count = std::clamp<std::int64_t>(block.count - done - i, 0, padded);
      Element run[kRun];
      copy_run(x + block.begin + done + i, count, padded, power, run);
      visit(piece.position - chunk_begin(chunk) + i, run, padded);
    }
  }
}

// tile[row / 16][k / e][row % 16][k % e], e elements in a row of a tile; the last row writes the missing ones, zero.
template <class Element>
void pack_amx_tiles(const TileRows& rows, std::int64_t row, float power) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Element));
  for (const Chunk& chunk : rows.chunks) {
    std::byte* tile = rows.packed.tile(rows.tile, chunk);
    const std::int64_t row_bytes = chunk_length(chunk) * kBytes;
    const auto run_begin = [&](std::int64_t tile_row, std::int64_t byte) {
      return tile + tile_row / kTileRows * kTileRows * row_bytes + byte * kTileRows + tile_row % kTileRows * kTileBytes;
    };
    for_each_run<Element>(rows, row, chunk, power, [&](std::int64_t k, const Element* run, std::int64_t count) {
      if (count * kBytes == kTileBytes) {
        std::memcpy(run_begin(row, k * kBytes), run, kTileBytes);  // of known size: four instructions, not a call
      } else {
        std::memcpy(run_begin(row, k * kBytes), run, static_cast<std::size_t>(count * kBytes));
      }
    });
    if (row + 1 != rows.rows) continue;
    for (std::int64_t missing = rows.rows; missing % kTileRows != 0; ++missing) {
      for (std::int64_t byte = 0; byte < row_bytes; byte += kTileBytes) {
        std::memset(run_begin(missing, byte), 0, kTileBytes);
      }
    }
  }
}

float inverse(float power) { return power == 0.0f ? 0.0f : 1.0f / power; }

// One row, times `multiplier`. Returns the largest magnitude, as bits.
std::uint32_t pack_scaled_row(const TileRows& rows, std::int64_t row, float multiplier) {
  std::uint32_t largest = 0;
  for (const Chunk& chunk : rows.chunks) {
    const std::byte* x = row_begin(rows, row) + chunk_begin(chunk) * size_bytes(rows.dtype);
    float* out = reinterpret_cast<float*>(rows.packed.tile(rows.tile, chunk)) + row;
    largest = std::max(largest, pack_scaled_run(rows, x, chunk_length(chunk), multiplier, out));
  }
  return largest;
}

}  // namespace

float pack_f32_row(const TileRows& rows, std::int64_t row) {
  const float power = rows.weight_dtype == DType::kE5M2 ? 1.0f : rows.weight_dtype == DType::kE4M3FN ? 256.0f : 128.0f;
  constexpr std::uint32_t kLarge = (kF32ExponentBias + 64) << 23;  // 2^64
  if (pack_scaled_row(rows, row, power) < kLarge) return 1.0f;
  // With the power of two a sum of so large a row might overflow.
  pack_scaled_row(rows, row, 1.0f);
  return power;
}

float bf16_row_power(int smallest, int largest) {
  constexpr int kSmallest = kF32ExponentBias - 80;  // exponent fields
  constexpr int kLargest = kF32ExponentBias + 64;
  constexpr int kNotFinite = 0xff;
  const bool is_large = largest > kLargest && largest < kNotFinite;
  if (smallest >= kSmallest && !is_large) return 1.0f;
  const int shift = is_large ? kLargest - largest : kSmallest - smallest;
  if (largest + shift > kLargest || smallest + shift < kSmallest) return 0.0f;
  return std::bit_cast<float>((static_cast<std::uint32_t>(kF32ExponentBias) + static_cast<std::uint32_t>(shift)) << 23);
}

float pack_bf16_pairs(const TileRows& rows, std::int64_t row) {
  constexpr std::int64_t kPairBytes = 4;
  const float power = power_of_row(rows, row);
  for (const Chunk& chunk : rows.chunks) {
    std::byte* tile = rows.packed.tile(rows.tile, chunk);
    for_each_run<std::uint16_t>(rows, row, chunk, power,
                                [&](std::int64_t k, const std::uint16_t* run, std::int64_t count) {
                                  std::byte* out = tile + (k / 2 * rows.rows + row) * kPairBytes;
                                  for (std::int64_t i = 0; i < count; i += 2) {
                                    std::memcpy(out + i / 2 * rows.rows * kPairBytes, run + i, kPairBytes);
                                  }
                                });
  }
  return inverse(power);
}

float pack_bf16_tiles(const TileRows& rows, std::int64_t row) {
  const float power = power_of_row(rows, row);
  pack_amx_tiles<std::uint16_t>(rows, row, power);
  return inverse(power);
}

float pack_byte_tiles(const TileRows& rows, std::int64_t row) {
  pack_amx_tiles<std::uint8_t>(rows, row, 1.0f);
  return 1.0f;
}

}  // namespace scaledmm::fp8
