// The row functions of int8_rows.hpp with registers of 16, for the kernels whose machine has AVX-512: the same bits.
// What is rare - static scales, rows too small for a plain scale, zero points that need int64 - is left to the AVX2
// form.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <variant>

#include "device/target.hpp"
#include "kernels/cpu/int8_rows.hpp"
#include "kernels/cpu/row_loads_avx512.hpp"
#include "kernels/cpu/row_stores_avx512.hpp"
#include "numerics/formats.hpp"
#include "numerics/int8.hpp"

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
// clang-format on
namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileBytes = 64;    // of one row of a tile
constexpr std::int32_t kCodeOffset = 128;  // int8 code to uint8

float absmax_of_row(LoadF32, const float* x, std::int64_t k) {
  const __m512i magnitude = _mm512_set1_epi32(std::numeric_limits<std::int32_t>::max());
  __m512i largest[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
    largest[0] = _mm512_max_epu32(largest[0], _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
    largest[1] = _mm512_max_epu32(largest[1], _mm512_and_si512(_mm512_loadu_si512(x + i + kLanes), magnitude));
  }
  for (; i < k; i += kLanes) {
    const __m512i bits = _mm512_maskz_loadu_epi32(lanes_below(k - i), x + i);
    largest[0] = _mm512_max_epu32(largest[0], _mm512_and_si512(bits, magnitude));
  }
  return std::bit_cast<float>(_mm512_reduce_max_epu32(_mm512_max_epu32(largest[0], largest[1])));
}

// The largest magnitude of 16-bit floats, as bits.
std::uint16_t largest_magnitude(const std::uint16_t* x, std::int64_t k) {
  constexpr std::int64_t kWords = 2 * kLanes;
  const __m512i magnitude = _mm512_set1_epi16(std::numeric_limits<std::int16_t>::max());
  __m512i largest[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  std::int64_t i = 0;
  for (; i + 2 * kWords <= k; i += 2 * kWords) {
    largest[0] = _mm512_max_epu16(largest[0], _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
    largest[1] = _mm512_max_epu16(largest[1], _mm512_and_si512(_mm512_loadu_si512(x + i + kWords), magnitude));
  }
  for (; i < k; i += kWords) {
    const std::int64_t count = k - i;
    const auto mask = static_cast<__mmask32>(count >= kWords ? ~0u : (1u << count) - 1);
    largest[0] = _mm512_max_epu16(largest[0], _mm512_and_si512(_mm512_maskz_loadu_epi16(mask, x + i), magnitude));
  }
  const __m512i all = _mm512_max_epu16(largest[0], largest[1]);
  // Odd and even words apart, as there is no reduction of words.
  const __m512i words = _mm512_max_epu32(_mm512_srli_epi32(all, 16), _mm512_and_si512(all, _mm512_set1_epi32(0xffff)));
  return static_cast<std::uint16_t>(_mm512_reduce_max_epu32(words));
}

float absmax_of_row(LoadBF16, const std::uint16_t* x, std::int64_t k) {
  return scaledmm::bf16_to_f32(largest_magnitude(x, k));
}
float absmax_of_row(LoadF16, const std::uint16_t* x, std::int64_t k) { return f16_to_f32(largest_magnitude(x, k)); }

template <class Load>
Int8Scale scale_of_row(const typename Load::Element* x, std::int64_t k, bool symmetric) {
  const float absmax = absmax_of_row(Load(), x, k);
  if (symmetric) return dynamic_symmetric_int8(absmax);
  if (!is_finite(absmax)) return dynamic_asymmetric_int8(absmax, absmax);
  __m512 least = _mm512_setzero_ps(), largest = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < k; i += kLanes) {
    const __m512 values = Load::load(x + i, lanes_below(k - i));
    least = _mm512_min_ps(least, values);
    largest = _mm512_max_ps(largest, values);
  }
  return dynamic_asymmetric_int8(_mm512_reduce_min_ps(least), _mm512_reduce_max_ps(largest));
}

// Stores 16 codes at `place` of a row.
template <CodeLayout layout>
void store_codes(std::byte* row, std::int64_t place, __m128i codes) {
  if constexpr (layout == CodeLayout::kInt16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * place), _mm256_cvtepi8_epi16(codes));
  } else if constexpr (layout == CodeLayout::kOffsetBytes) {
    const __m128i offset = _mm_set1_epi8(static_cast<char>(kCodeOffset));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + place), _mm_xor_si128(codes, offset));
  } else {
    std::byte* tile = row + place / kTileBytes * (kTileBytes * kTileRows);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(tile + place % kTileBytes), codes);
  }
}

// Steps of 16 may end past a segment's padding: what they write there is overwritten by the next segment, or is slack.
template <CodeLayout layout, class Load>
void quantize_values(const Int8Weights& weights, const typename Load::Element* x, const Int8Scale& scale,
                     std::byte* row) {
  const __m512 inverse = _mm512_set1_ps(scale.inverse);
  const __m512i zero_point = _mm512_set1_epi32(scale.zero_point);
  for (const Int8Segment segment : weights.segments) {
    for (std::int64_t i = 0; i < segment.padded; i += kLanes) {
      const std::int64_t count = segment.length - i;
      const auto* from = x + segment.begin + i;
      const __m512 values = count >= kLanes ? Load::load(from)
                            : count > 0     ? Load::load(from, lanes_below(count))
                                            : _mm512_setzero_ps();
      const __m512i steps = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(values, inverse)), zero_point);
      store_codes<layout>(row, segment.place + i, _mm512_cvtsepi32_epi8(steps));
    }
  }
}

// The same for bf16 and tiles, a row of a tile at a time: even and odd values apart until they are bytes.
void quantize_bf16_tiles(const Int8Weights& weights, const std::uint16_t* x, const Int8Scale& scale, std::byte* row) {
  constexpr std::int64_t kWords = kTileBytes / 2;
  const __m512 inverse = _mm512_set1_ps(scale.inverse);
  const __m512i zero_point = _mm512_set1_epi32(scale.zero_point);
  const __m512i odd_bits = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  // The packs leave 4 even and 4 odd codes of the first 32 values and then of the others in each 16 bytes.
  const __m512i bytes_in_order = _mm512_set4_epi32(0x0f0b0e0a, 0x0d090c08, 0x07030602, 0x05010400);
  const __m512i eights_in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const auto steps = [&](__m512i bits) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(bits), inverse));
    return _mm512_add_epi32(rounded, zero_point);
  };
  const auto words = [&](__m512i values) {
    return _mm512_packs_epi32(steps(_mm512_slli_epi32(values, 16)), steps(_mm512_and_si512(values, odd_bits)));
  };
  for (const Int8Segment segment : weights.segments) {
    for (std::int64_t i = 0; i < segment.padded; i += kTileBytes) {
      const auto* from = x + segment.begin + i;
      const auto load = [&](std::int64_t at) {
        const std::int64_t count = std::clamp<std::int64_t>(segment.length - i - at, 0, kWords);
        return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((std::uint64_t{1} << count) - 1), from + at);
      };
      const __m512i bytes =
          _mm512_shuffle_epi8(_mm512_packs_epi16(words(load(0)), words(load(kWords))), bytes_in_order);
      _mm512_store_si512(row + (segment.place + i) * kTileRows, _mm512_permutexvar_epi64(eights_in_order, bytes));
    }
  }
}

template <class Load>
Int8RowScale quantize_float_row(const LayerConfig& config, const Int8Weights& weights, const ApplyArguments& arguments,
                                std::int64_t m, CodeLayout layout, std::byte* row) {
  const auto* x = static_cast<const typename Load::Element*>(arguments.x) + m * arguments.x_stride;
  const bool symmetric = std::get<Int8ScaledMMLinearLayerConfig>(config).input_symmetric;
  const Int8Scale scale = scale_of_row<Load>(x, weights.k, symmetric);
  if (scale.prescale != 1.0f) return quantize_int8_row(config, weights, arguments, m, layout, row);
  if (layout == CodeLayout::kTiles) {
    if constexpr (std::is_same_v<Load, LoadBF16>) {
      quantize_bf16_tiles(weights, x, scale, row);
    } else {
      quantize_values<CodeLayout::kTiles, Load>(weights, x, scale, row);
    }
  }
  if (layout == CodeLayout::kOffsetBytes) quantize_values<CodeLayout::kOffsetBytes, Load>(weights, x, scale, row);
  if (layout == CodeLayout::kInt16) quantize_values<CodeLayout::kInt16, Load>(weights, x, scale, row);
  return {scale.scale, scale.zero_point};
}

// Sums of one row. `correction` times the sum of the weights is taken off, in int32: sums and products may wrap, and
// come right again because the corrected sum fits.
struct RowSums {
  const std::int32_t* sums;
  const std::int32_t* column_sums;
  __m512i correction;

  __m512 operator()(std::int64_t c) const {
    const __m512i product = _mm512_mullo_epi32(_mm512_loadu_si512(column_sums + c), correction);
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(sums + c), product));
  }
};
struct PlainSums {
  const std::int32_t* sums;
  __m512 operator()(std::int64_t c) const { return _mm512_cvtepi32_ps(_mm512_loadu_si512(sums + c)); }
};

// Calls plain(row's sums), or wide() where the corrected sum may not fit in int32.
template <class Plain, class Wide>
void with_row(const Int8Weights& weights, std::int64_t segment, const Int8Sums& sums, std::int64_t row,
              const Plain& plain, const Wide& wide) {
  const std::int32_t* from = sums.sums + row * sums.stride;
  const std::int32_t offset = sums.offset ? kCodeOffset : 0;
  const std::int32_t zero_point = sums.scales[row].zero_point;
  if (zero_point == 0 && offset == 0) return plain(PlainSums{from});
  const std::int64_t reach = std::int64_t{kCodeOffset} * (kCodeOffset + std::abs(std::int64_t{zero_point}));
  const std::int64_t length = weights.segments[static_cast<std::size_t>(segment)].length;
  if (reach > std::numeric_limits<std::int32_t>::max() / length) return wide();
  plain(RowSums{from, weights.column_sums_of(segment) + sums.n, _mm512_set1_epi32(zero_point + offset)});
}

// One row of a rectangle.
Int8Sums row_of(const Int8Sums& sums, std::int64_t row) {
  Int8Sums one = sums;
  one.sums += row * sums.stride;
  one.scales += row;
  one.rows = 1;
  return one;
}

// y = left(c) * right(c), or fma(left(c), right(c), bias).
template <class Store, class Left, class Right>
void write_columns(typename Store::Element* y, const float* bias, std::int64_t count, const Left& left,
                   const Right& right) {
  for (std::int64_t c = 0; c < count; c += kLanes) {
    const __mmask16 mask = lanes_below(count - c);
    const __m512 a = left(c), b = right(c);
    Store::store(y + c, mask,
                 bias == nullptr ? _mm512_mul_ps(a, b) : _mm512_fmadd_ps(a, b, _mm512_maskz_loadu_ps(mask, bias + c)));
  }
}

template <class Left, class Right>
void write_row(const Int8Weights& weights, const ApplyArguments& arguments, std::int64_t m, const Int8Sums& sums,
               const Left& left, const Right& right) {
  const std::int64_t count = std::min(sums.columns, weights.n - sums.n);
  const std::int64_t index = m * arguments.y_stride + sums.n;
  const float* bias = arguments.bias == nullptr ? nullptr : arguments.bias + sums.n;
  if (arguments.y_dtype == DType::kF32) {
    return write_columns<StoreF32>(static_cast<float*>(arguments.y) + index, bias, count, left, right);
  }
  auto* y = static_cast<std::uint16_t*>(arguments.y) + index;
  if (arguments.y_dtype == DType::kBF16) return write_columns<StoreBF16>(y, bias, count, left, right);
  write_columns<StoreF16>(y, bias, count, left, right);
}

Int8RowScale quantize_row(const LayerConfig& config, const Int8Weights& weights, const ApplyArguments& arguments,
                          std::int64_t m, CodeLayout layout, std::byte* row) {
  const bool is_plain =
      arguments.x_dtype != DType::kInt8 && !std::get<Int8ScaledMMLinearLayerConfig>(config).is_static_input_scheme;
  if (!is_plain) return quantize_int8_row(config, weights, arguments, m, layout, row);
  if (arguments.x_dtype == DType::kBF16) {
    return quantize_float_row<LoadBF16>(config, weights, arguments, m, layout, row);
  }
  if (arguments.x_dtype == DType::kF16) return quantize_float_row<LoadF16>(config, weights, arguments, m, layout, row);
  return quantize_float_row<LoadF32>(config, weights, arguments, m, layout, row);
}

void add_segment(const Int8Weights& weights, std::int64_t segment, const Int8Sums& sums, float* totals) {
  const float* sw = weights.scales_of(segment) + sums.n;
  for (std::int64_t r = 0; r < sums.rows; ++r) {
    float* row = totals + r * sums.stride;
    with_row(
        weights, segment, sums, r,
        [&](const auto& row_sums) {
          for (std::int64_t c = 0; c < sums.columns; c += kLanes) {
            const __m512 total = _mm512_fmadd_ps(row_sums(c), _mm512_loadu_ps(sw + c), _mm512_loadu_ps(row + c));
            _mm512_storeu_ps(row + c, total);
          }
        },
        [&] { add_int8_segment(weights, segment, row_of(sums, r), row); });
  }
}

void write_sums(const Int8Weights& weights, const ApplyArguments& arguments, std::int64_t m, const Int8Sums& sums) {
  const float* sw = weights.scales_of(0) + sums.n;
  for (std::int64_t r = 0; r < sums.rows; ++r) {
    const __m512 sx = _mm512_set1_ps(sums.scales[r].scale);
    with_row(
        weights, 0, sums, r,
        [&](const auto& row_sums) {
          write_row(
              weights, arguments, m + r, sums, [&](std::int64_t c) { return _mm512_mul_ps(row_sums(c), sx); },
              [&](std::int64_t c) { return _mm512_loadu_ps(sw + c); });
        },
        [&] { write_int8_sums(weights, arguments, m + r, row_of(sums, r)); });
  }
}

void write_totals(const Int8Weights& weights, const ApplyArguments& arguments, std::int64_t m, const Int8Sums& sums,
                  const float* totals) {
  for (std::int64_t r = 0; r < sums.rows; ++r) {
    const __m512 sx = _mm512_set1_ps(sums.scales[r].scale);
    const float* row = totals + r * sums.stride;
    write_row(
        weights, arguments, m + r, sums, [&](std::int64_t c) { return _mm512_loadu_ps(row + c); },
        [&](std::int64_t) { return sx; });
  }
}

}  // namespace

const Int8RowFunctions& int8_rows_avx512() {
  static constexpr Int8RowFunctions kFunctions{quantize_row, add_segment, write_sums, write_totals};
  return kFunctions;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
SCALEDMM_TARGET_END
