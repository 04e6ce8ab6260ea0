#include "kernels/cpu/int8_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <variant>

#include "device/target.hpp"
#include "kernels/cpu/row_values.hpp"
#include "numerics/epilogue.hpp"
#include "numerics/formats.hpp"
#include "numerics/int8.hpp"

namespace scaledmm {

namespace {

constexpr std::int64_t kCodesPerStep = 16;
constexpr std::uint64_t kTileRows = 16;
constexpr std::uint64_t kTileBytes = 64;   // of one row of a tile
constexpr std::int32_t kCodeOffset = 128;  // int8 code to uint8
constexpr std::int64_t kCacheLine = 64;

// The extremes of a row. absmax is NaN or Inf where the row holds one; least and largest include 0.
struct Extremes {
  float absmax = 0.0f;
  float least = 0.0f;
  float largest = 0.0f;
};

}  // namespace

SCALEDMM_TARGET_BEGIN("avx2,fma,f16c")
namespace {

// Up to 16 values, zeros after them.
template <class Load>
struct Step {
  __m256 low, high;
};
template <class Load>
Step<Load> load_step(const typename Load::Element* x, std::int64_t count) {
  if (count >= kCodesPerStep) return {Load::load(x), Load::load(x + kLanes)};
  typename Load::Element values[kCodesPerStep] = {};
  if (count > 0) std::memcpy(values, x, static_cast<std::size_t>(count) * sizeof(values[0]));
  return {Load::load(values), Load::load(values + kLanes)};
}

template <class Load>
Extremes extremes_of_row(const typename Load::Element* x, std::int64_t k, bool symmetric) {
  Extremes result{absmax_of_row(Load(), x, k)};
  if (symmetric) return result;
  __m256 least = _mm256_setzero_ps(), largest = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < k; i += kCodesPerStep) {
    const Step<Load> values = load_step<Load>(x + i, k - i);
    least = _mm256_min_ps(least, _mm256_min_ps(values.low, values.high));
    largest = _mm256_max_ps(largest, _mm256_max_ps(values.low, values.high));
  }
  alignas(32) float lanes[kLanes];
  _mm256_store_ps(lanes, least);
  result.least = *std::min_element(lanes, lanes + kLanes);
  _mm256_store_ps(lanes, largest);
  result.largest = *std::max_element(lanes, lanes + kLanes);
  return result;
}

// quantize_int8 on 8 lanes but for the clamp to int8, which is left to the saturation of pack_codes. Dynamic: the scale
// keeps steps within a few hundred. (In a row that is not finite codes do not matter: its scale is NaN.)
struct DynamicSteps {
  explicit DynamicSteps(const Int8Scale& s)
      : inverse(_mm256_set1_ps(s.inverse)), zero_point(_mm256_set1_epi32(s.zero_point)) {}
  __m256i operator()(__m256 x) const {
    return _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)), zero_point);
  }
  __m256 inverse;
  __m256i zero_point;
};

// Static: NaN becomes 0 steps, and steps are clamped before they are rounded. The limits are whole numbers that f32
// holds exactly, so the order does not matter, and no conversion overflows.
template <bool divides>
struct StaticSteps {
  explicit StaticSteps(const Int8Scale& s)
      : factor(_mm256_set1_ps(divides ? s.scale : s.inverse)),
        least(_mm256_set1_ps(static_cast<float>(kInt8Min - s.zero_point))),
        largest(_mm256_set1_ps(static_cast<float>(kInt8Max - s.zero_point))),
        zero_point(_mm256_set1_epi32(s.zero_point)) {}
  __m256i operator()(__m256 x) const {
    __m256 steps = divides ? _mm256_div_ps(x, factor) : _mm256_mul_ps(x, factor);
    steps = _mm256_and_ps(steps, _mm256_cmp_ps(steps, steps, _CMP_ORD_Q));
    steps = _mm256_min_ps(_mm256_max_ps(steps, least), largest);
    return _mm256_add_epi32(_mm256_cvtps_epi32(steps), zero_point);
  }
  __m256 factor, least, largest;
  __m256i zero_point;
};

__m128i pack_codes(__m256i low, __m256i high) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
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
    const auto at = static_cast<std::uint64_t>(place);
    std::byte* tile = row + at / kTileBytes * (kTileBytes * kTileRows);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(tile + at % kTileBytes), codes);
  }
}

// Steps of 16 may end past a segment's padding: what they write there is overwritten by the next segment, or is slack.
// codes(k, count) gives 16 codes, of which `count` are wanted; a step that is full passes kCodesPerStep itself.
template <CodeLayout layout, class Codes>
void for_each_step(const Int8Weights& weights, std::byte* row, const Codes& codes) {
  for (const Int8Segment segment : weights.segments) {
    std::int64_t i = 0;
    for (; i + kCodesPerStep <= segment.length; i += kCodesPerStep) {
      store_codes<layout>(row, segment.place + i, codes(segment.begin + i, kCodesPerStep));
    }
    for (; i < segment.padded; i += kCodesPerStep) {
      store_codes<layout>(row, segment.place + i, codes(segment.begin + i, segment.length - i));
    }
  }
}

template <CodeLayout layout, class Load, class Steps>
void quantize_row_by(const Int8Weights& weights, const typename Load::Element* x, const Steps steps, std::byte* row) {
  for_each_step<layout>(weights, row, [&](std::int64_t k, std::int64_t count) {
    const Step<Load> step = load_step<Load>(x + k, count);
    return pack_codes(steps(step.low), steps(step.high));
  });
}

template <CodeLayout layout, class Load>
void quantize_row_one_by_one(const Int8Weights& weights, const typename Load::Element* x, const Int8Scale& scale,
                             std::byte* row) {
  for_each_step<layout>(weights, row, [&](std::int64_t k, std::int64_t count) {
    alignas(32) float values[kCodesPerStep];
    const Step<Load> step = load_step<Load>(x + k, count);
    _mm256_store_ps(values, step.low);
    _mm256_store_ps(values + kLanes, step.high);
    alignas(16) std::int8_t codes[kCodesPerStep];
    for (std::int64_t i = 0; i < kCodesPerStep; ++i) codes[i] = quantize_int8(values[i], scale);
    return _mm_load_si128(reinterpret_cast<const __m128i*>(codes));
  });
}

template <CodeLayout layout, class Load>
void quantize_row(const Int8Weights& weights, const typename Load::Element* x, const Int8Scale& scale, bool is_static,
                  std::byte* row) {
  constexpr std::int32_t kExact = 1 << 23;  // up to here f32 holds a zero point and the limits beside it exactly
  const bool is_rare = scale.prescale != 1.0f || scale.zero_point < -kExact || scale.zero_point > kExact;
  if (is_rare) return quantize_row_one_by_one<layout, Load>(weights, x, scale, row);
  if (!is_static) return quantize_row_by<layout, Load>(weights, x, DynamicSteps(scale), row);
  if (scale.divides) return quantize_row_by<layout, Load>(weights, x, StaticSteps<true>(scale), row);
  quantize_row_by<layout, Load>(weights, x, StaticSteps<false>(scale), row);
}

template <CodeLayout layout>
void copy_codes(const Int8Weights& weights, const std::int8_t* x, std::byte* row) {
  for_each_step<layout>(weights, row, [&](std::int64_t k, std::int64_t count) {
    if (count >= kCodesPerStep) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + k));
    alignas(16) std::int8_t codes[kCodesPerStep] = {};
    if (count > 0) std::memcpy(codes, x + k, static_cast<std::size_t>(count));
    return _mm_load_si128(reinterpret_cast<const __m128i*>(codes));
  });
}

template <class Load>
void quantize_row(const Int8Weights& weights, const typename Load::Element* x, const Int8Scale& scale, bool is_static,
                  CodeLayout layout, std::byte* row) {
  switch (layout) {
    case CodeLayout::kInt16:
      return quantize_row<CodeLayout::kInt16, Load>(weights, x, scale, is_static, row);
    case CodeLayout::kOffsetBytes:
      return quantize_row<CodeLayout::kOffsetBytes, Load>(weights, x, scale, is_static, row);
    case CodeLayout::kTiles:
      return quantize_row<CodeLayout::kTiles, Load>(weights, x, scale, is_static, row);
  }
}

void copy_codes(const Int8Weights& weights, const std::int8_t* x, CodeLayout layout, std::byte* row) {
  switch (layout) {
    case CodeLayout::kInt16:
      return copy_codes<CodeLayout::kInt16>(weights, x, row);
    case CodeLayout::kOffsetBytes:
      return copy_codes<CodeLayout::kOffsetBytes>(weights, x, row);
    case CodeLayout::kTiles:
      return copy_codes<CodeLayout::kTiles>(weights, x, row);
  }
}

// One row's corrected sums as f32, 8 columns at a time.
struct PlainSums {
  const std::int32_t* sums;
  __m256i load(std::int64_t c) const { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + c)); }
  __m256 operator()(std::int64_t c) const { return _mm256_cvtepi32_ps(load(c)); }
};

// In int32: sums and products may wrap, and come right again because the corrected sum fits.
struct CorrectedSums : PlainSums {
  const std::int32_t* column_sums;
  __m256i correction;
  __m256i corrected(std::int64_t c) const {
    const __m256i sum_of_w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(column_sums + c));
    return _mm256_sub_epi32(load(c), _mm256_mullo_epi32(sum_of_w, correction));
  }
  __m256 operator()(std::int64_t c) const { return _mm256_cvtepi32_ps(corrected(c)); }
};

// In int64, for zero points so large that the corrected sum may not fit. `corrected` takes off the offset of the codes.
struct WideSums : CorrectedSums {
  std::int32_t zero_point;
  __m256 operator()(std::int64_t c) const {
    alignas(32) std::int32_t values[kLanes];
    alignas(32) float results[kLanes];
    _mm256_store_si256(reinterpret_cast<__m256i*>(values), corrected(c));
    for (std::int64_t i = 0; i < kLanes; ++i) {
      results[i] = static_cast<float>(correct_zero_point(values[i], zero_point, column_sums[c + i]));
    }
    return _mm256_load_ps(results);
  }
};

template <class Fn>
void with_row(const Int8Weights& weights, std::int64_t segment, const Int8Sums& sums, std::int64_t row, const Fn& fn) {
  const PlainSums plain{sums.sums + row * sums.stride};
  const std::int32_t offset = sums.offset ? kCodeOffset : 0;
  const std::int32_t zero_point = sums.scales[row].zero_point;
  if (zero_point == 0 && offset == 0) return fn(plain);
  const std::int64_t reach = std::int64_t{kCodeOffset} * (kCodeOffset + std::abs(std::int64_t{zero_point}));
  const std::int64_t length = weights.segments[static_cast<std::size_t>(segment)].length;
  const std::int32_t* column_sums = weights.column_sums_of(segment) + sums.n;
  if (reach > std::numeric_limits<std::int32_t>::max() / length) {
    return fn(WideSums{{plain, column_sums, _mm256_set1_epi32(offset)}, zero_point});
  }
  fn(CorrectedSums{plain, column_sums, _mm256_set1_epi32(zero_point + offset)});
}

// Stores of 8 outputs, rounded once.
struct StoreF32 {
  using Element = float;
  static void store(float* y, __m256 values) { _mm256_storeu_ps(y, values); }
};
struct StoreBF16 {
  using Element = std::uint16_t;
  static void store(std::uint16_t* y, __m256 values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y), to_bf16(values));
  }
};
struct StoreF16 {
  using Element = std::uint16_t;
  static void store(std::uint16_t* y, __m256 values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
};

// factors(column) gives left and right: y = left * right, or fma(left, right, bias).
struct Factors {
  __m256 left, right;
};

template <class Store, class GetFactors>
void write_columns(typename Store::Element* y, const float* bias, std::int64_t count, const GetFactors factors) {
  std::int64_t c = 0;
  if (bias == nullptr) {
    for (; c + kLanes <= count; c += kLanes) {
      const Factors f = factors(c);
      Store::store(y + c, _mm256_mul_ps(f.left, f.right));
    }
  } else {
    for (; c + kLanes <= count; c += kLanes) {
      const Factors f = factors(c);
      Store::store(y + c, _mm256_fmadd_ps(f.left, f.right, _mm256_loadu_ps(bias + c)));
    }
  }
  if (c == count) return;
  const auto rest = static_cast<std::size_t>(count - c);
  const Factors f = factors(c);
  float last_bias[kLanes] = {};
  if (bias != nullptr) std::memcpy(last_bias, bias + c, rest * sizeof(float));
  typename Store::Element last[kLanes];
  Store::store(last, bias == nullptr ? _mm256_mul_ps(f.left, f.right)
                                     : _mm256_fmadd_ps(f.left, f.right, _mm256_loadu_ps(last_bias)));
  std::memcpy(y + c, last, rest * sizeof(last[0]));
}

template <class GetFactors>
void write_row(const Int8Weights& weights, const ApplyArguments& arguments, std::int64_t m, const Int8Sums& sums,
               const GetFactors& factors) {
  const std::int64_t count = std::min(sums.columns, weights.n - sums.n);
  const std::int64_t index = m * arguments.y_stride + sums.n;
  const float* bias = arguments.bias == nullptr ? nullptr : arguments.bias + sums.n;
  if (arguments.y_dtype == DType::kF32) {
    return write_columns<StoreF32>(static_cast<float*>(arguments.y) + index, bias, count, factors);
  }
  auto* y = static_cast<std::uint16_t*>(arguments.y) + index;
  if (arguments.y_dtype == DType::kBF16) return write_columns<StoreBF16>(y, bias, count, factors);
  write_columns<StoreF16>(y, bias, count, factors);
}

}  // namespace

void add_int8_segment(const Int8Weights& weights, std::int64_t segment, const Int8Sums& sums, float* totals) {
  const float* sw = weights.scales_of(segment) + sums.n;
  for (std::int64_t r = 0; r < sums.rows; ++r) {
    float* row = totals + r * sums.stride;
    with_row(weights, segment, sums, r, [&](const auto row_sums) {
      for (std::int64_t c = 0; c < sums.columns; c += kLanes) {
        const __m256 total = _mm256_fmadd_ps(row_sums(c), _mm256_loadu_ps(sw + c), _mm256_loadu_ps(row + c));
        _mm256_storeu_ps(row + c, total);
      }
    });
  }
}

void write_int8_sums(const Int8Weights& weights, const ApplyArguments& arguments, std::int64_t m,
                     const Int8Sums& sums) {
  const float* sw = weights.scales_of(0) + sums.n;
  for (std::int64_t r = 0; r < sums.rows; ++r) {
    const __m256 sx = _mm256_set1_ps(sums.scales[r].scale);
    with_row(weights, 0, sums, r, [&](const auto& row_sums) {
      write_row(weights, arguments, m + r, sums, [=](std::int64_t c) {
        return Factors{_mm256_mul_ps(row_sums(c), sx), _mm256_loadu_ps(sw + c)};
      });
    });
  }
}

void write_int8_totals(const Int8Weights& weights, const ApplyArguments& arguments, std::int64_t m,
                       const Int8Sums& sums, const float* totals) {
  for (std::int64_t r = 0; r < sums.rows; ++r) {
    const __m256 sx = _mm256_set1_ps(sums.scales[r].scale);
    const float* row = totals + r * sums.stride;
    write_row(weights, arguments, m + r, sums, [=](std::int64_t c) { return Factors{_mm256_loadu_ps(row + c), sx}; });
  }
}
SCALEDMM_TARGET_END

namespace {

Int8Scale row_scale(const Int8ScaledMMLinearLayerConfig& layer, const Int8Weights& weights, const Extremes& extremes) {
  if (layer.is_static_input_scheme) {
    return layer.input_symmetric ? static_symmetric_int8(*weights.input_scale)
                                 : static_asymmetric_int8(*weights.input_scale, weights.input_zero_point);
  }
  if (layer.input_symmetric) return dynamic_symmetric_int8(extremes.absmax);
  if (!is_finite(extremes.absmax)) return dynamic_asymmetric_int8(extremes.absmax, extremes.absmax);
  return dynamic_asymmetric_int8(extremes.least, extremes.largest);
}

template <class Load>
Int8RowScale quantize_float_row(const Int8ScaledMMLinearLayerConfig& layer, const Int8Weights& weights, const void* x,
                                std::int64_t offset, CodeLayout layout, std::byte* row) {
  const auto* values = static_cast<const typename Load::Element*>(x) + offset;
  Extremes extremes;
  if (!layer.is_static_input_scheme) extremes = extremes_of_row<Load>(values, weights.k, layer.input_symmetric);
  const Int8Scale scale = row_scale(layer, weights, extremes);
  quantize_row<Load>(weights, values, scale, layer.is_static_input_scheme, layout, row);
  return {scale.scale, scale.zero_point};
}

}  // namespace

CodeRows CodeRows::plan(CodeLayout layout, const Int8Weights& weights) {
  CodeRows codes;
  codes.layout = layout;
  if (layout == CodeLayout::kTiles) {
    codes.row_bytes = weights.packed_k;
    return codes;
  }
  // Slack for the last step of 16, and an odd number of cache lines: rows one power of two apart would share cache
  // sets.
  const std::int64_t bytes = (weights.packed_k + kCodesPerStep) * (layout == CodeLayout::kInt16 ? 2 : 1);
  const std::int64_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  codes.row_bytes = (lines | 1) * kCacheLine;
  return codes;
}

std::byte* CodeRows::row(std::int64_t m) const {
  if (layout != CodeLayout::kTiles) return data + m * row_bytes;
  const auto at = static_cast<std::uint64_t>(m);
  return data + at / kTileRows * kTileRows * static_cast<std::uint64_t>(row_bytes) + at % kTileRows * kTileBytes;
}

Int8RowScale quantize_int8_row(const LayerConfig& config, const Int8Weights& weights, const ApplyArguments& arguments,
                               std::int64_t m, CodeLayout layout, std::byte* row) {
  const auto& layer = std::get<Int8ScaledMMLinearLayerConfig>(config);
  const std::int64_t offset = m * arguments.x_stride;
  switch (arguments.x_dtype) {
    case DType::kInt8:
      copy_codes(weights, static_cast<const std::int8_t*>(arguments.x) + offset, layout, row);
      return {arguments.x_scale[m], arguments.x_zero_point == nullptr ? 0 : arguments.x_zero_point[m]};
    case DType::kBF16:
      return quantize_float_row<LoadBF16>(layer, weights, arguments.x, offset, layout, row);
    case DType::kF16:
      return quantize_float_row<LoadF16>(layer, weights, arguments.x, offset, layout, row);
    default:
      return quantize_float_row<LoadF32>(layer, weights, arguments.x, offset, layout, row);
  }
}

const Int8RowFunctions& int8_rows_avx2() {
  static constexpr Int8RowFunctions kFunctions{quantize_int8_row, add_int8_segment, write_int8_sums, write_int8_totals};
  return kFunctions;
}

}  // namespace scaledmm
