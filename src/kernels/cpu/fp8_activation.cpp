#include "kernels/cpu/fp8_activation.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "device/target.hpp"
#include "kernels/cpu/row_values.hpp"
#include "numerics/formats.hpp"
#include "numerics/rows.hpp"

namespace scaledmm::fp8 {
namespace {

const Fp8Format& format_of(DType dtype) {
  if (dtype == DType::kE5M2) return kE5M2;
  return dtype == DType::kE4M3FNUZ ? kE4M3FNUZ : kE4M3FN;
}

float power_of_two(int exponent) {
  return std::bit_cast<float>((kF32ExponentBias + static_cast<std::uint32_t>(exponent)) << 23);
}

// The constants of quantize_fp8 for one scale and format.
struct Rounding {
  float factor;        // the scale where it divides, else its inverse
  float limit;         // the largest magnitude of a code
  float least_normal;  // below it, steps keep their size
  float to_whole;      // a binade times this, added and taken off again, rounds to steps of its size
  std::uint32_t bias;  // what the exponent field of f32 has more, in place
  int drop;            // bits of f32 below the mantissa of the format
  std::uint8_t nan_code;

  Rounding(const Fp8Scale& scale, DType dtype) {
    const Fp8Format& format = format_of(dtype);
    factor = scale.divides ? scale.scale : scale.inverse;
    limit = fp8_quantized_max(dtype);
    least_normal = power_of_two(1 - format.bias);
    drop = 23 - format.mantissa_bits;
    to_whole = power_of_two(drop);
    bias = (kF32ExponentBias - static_cast<std::uint32_t>(format.bias)) << format.mantissa_bits;
    nan_code = format.nan_code;
  }
};

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c")
// clang-format on

// quantize_fp8 on 8 lanes, as the values of the codes. A step of the format is the last bit of a sum with 2^23 steps,
// so that the addition rounds to nearest even. NaN runs through all of it.
template <bool kDivides, bool kInfIsNan>
struct RoundedValues {
  explicit RoundedValues(const Rounding& r)
      : factor(_mm256_set1_ps(r.factor)),
        limit(_mm256_set1_ps(r.limit)),
        least_normal(_mm256_set1_ps(r.least_normal)),
        to_whole(_mm256_set1_ps(r.to_whole)) {}

  __m256 operator()(__m256 x) const {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 exponent = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    __m256 value = kDivides ? _mm256_div_ps(x, factor) : _mm256_mul_ps(x, factor);
    if constexpr (kInfIsNan) value = _mm256_sub_ps(value, _mm256_sub_ps(x, x));  // -0 stays -0
    // A minimum gives its second operand where one is NaN.
    const __m256 magnitudes = _mm256_min_ps(limit, _mm256_andnot_ps(sign, value));
    const __m256 binades = _mm256_max_ps(_mm256_and_ps(magnitudes, exponent), least_normal);
    const __m256 large = _mm256_mul_ps(binades, to_whole);
    const __m256 rounded = _mm256_sub_ps(_mm256_add_ps(magnitudes, large), large);
    return _mm256_or_ps(rounded, _mm256_and_ps(value, sign));
  }

  __m256 factor, limit, least_normal, to_whole;
};

// Stores of 8 codes whose values are given.
struct StoreBF16 {
  static constexpr std::int64_t kBytes = 2;
  explicit StoreBF16(const Rounding&) {}
  void operator()(__m256 values, std::byte* out) const {
    const __m256i words = _mm256_srli_epi32(_mm256_castps_si256(values), 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
};

// Formats that have a -0.
struct StoreByte {
  static constexpr std::int64_t kBytes = 1;
  explicit StoreByte(const Rounding& r)
      : least_normal(_mm256_set1_ps(r.least_normal)),
        whole_steps(_mm256_set1_ps(r.least_normal * r.to_whole)),
        bias(_mm256_set1_epi32(static_cast<std::int32_t>(r.bias))),
        nan_code(_mm256_set1_epi32(r.nan_code)),
        drop(_mm_cvtsi32_si128(r.drop)) {}
  void operator()(__m256 values, std::byte* out) const {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 magnitudes = _mm256_andnot_ps(sign, values);
    const __m256i normal = _mm256_sub_epi32(_mm256_srl_epi32(_mm256_castps_si256(magnitudes), drop), bias);
    const __m256i steps =
        _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(magnitudes, whole_steps)), _mm256_castps_si256(whole_steps));
    const __m256 is_small = _mm256_cmp_ps(magnitudes, least_normal, _CMP_LT_OQ);
    const __m256i signs = _mm256_srli_epi32(_mm256_castps_si256(_mm256_and_ps(values, sign)), 24);
    const __m256i codes = _mm256_or_si256(_mm256_blendv_epi8(normal, steps, _mm256_castps_si256(is_small)), signs);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m256i all = _mm256_blendv_epi8(codes, nan_code, is_nan);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
  }
  __m256 least_normal, whole_steps;
  __m256i bias, nan_code;
  __m128i drop;
};

template <class Load, class Store, class Round>
void quantize_by(const typename Load::Element* x, std::int64_t count, const Round round, const Store store,
                 std::byte* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(round(Load::load(x + i)), out + i * Store::kBytes);
  if (i == count) return;
  typename Load::Element last[kLanes] = {};
  std::memcpy(last, x + i, static_cast<std::size_t>(count - i) * sizeof(last[0]));
  alignas(16) std::byte codes[kLanes * Store::kBytes];
  store(round(Load::load(last)), codes);
  std::memcpy(out + i * Store::kBytes, codes, static_cast<std::size_t>((count - i) * Store::kBytes));
}

template <class Load, class Store>
void quantize_as(const typename Load::Element* x, std::int64_t count, const Fp8Scale& scale, DType dtype,
                 std::byte* out) {
  const Rounding r(scale, dtype);
  const Store store(r);
  // Where it divides and Inf is NaN, the scale of a row with an Inf is NaN already.
  if (scale.divides) return quantize_by<Load>(x, count, RoundedValues<true, false>(r), store, out);
  if (scale.inf_is_nan) return quantize_by<Load>(x, count, RoundedValues<false, true>(r), store, out);
  quantize_by<Load>(x, count, RoundedValues<false, false>(r), store, out);
}

SCALEDMM_TARGET_END

// Calls visit(Load, elements of x) for x's type.
template <class Visit>
auto with_type(const void* x, DType dtype, const Visit& visit) {
  if (dtype == DType::kBF16) return visit(LoadBF16(), static_cast<const std::uint16_t*>(x));
  if (dtype == DType::kF16) return visit(LoadF16(), static_cast<const std::uint16_t*>(x));
  return visit(LoadF32(), static_cast<const float*>(x));
}

void take_codes(const std::uint8_t* codes, std::int64_t k, DType dtype, CodeForm form, std::byte* out) {
  if (form == CodeForm::kByte) {
    std::memcpy(out, codes, static_cast<std::size_t>(k));
    return;
  }
  const std::array<float, 256>& values = fp8_values(dtype);
  auto* words = reinterpret_cast<std::uint16_t*>(out);
  for (std::int64_t i = 0; i < k; ++i) words[i] = f32_to_bf16(values[codes[i]]);
}

}  // namespace

Quantizer quantizer_of(const LayerConfig& config, const PackedFp8& packed, const ApplyArguments& arguments) {
  const QuantKey key = *activation_key(config);
  const GroupShape& group = key.scale.group_shape;
  Quantizer q;
  q.dtype = key.dtype;
  q.ue8m0 = packed.ue8m0_input_scales;
  if (packed.input_scale_ub) q.upper_bound = *packed.input_scale_ub;
  if (is_fp8(arguments.x_dtype)) {
    q.scales = Quantizer::Scales::kGiven;
  } else if (group.is_per_tensor()) {
    q.scales = Quantizer::Scales::kTensor;
    q.needs_absmax = !key.scale.is_static;
    if (!q.needs_absmax) q.tensor = static_fp8(*packed.input_scale);
  } else {
    q.scales = group.is_per_group() ? Quantizer::Scales::kGroup : Quantizer::Scales::kToken;
  }
  return q;
}

float finite_absmax(const ApplyArguments& arguments, std::int64_t k, std::int64_t begin, std::int64_t end) {
  return with_type(arguments.x, arguments.x_dtype, [&](auto load, const auto* x) {
    float largest = 0.0f;
    for (std::int64_t m = begin; m < end; ++m) {
      largest = std::max(largest, absmax_of_row<true>(load, x + m * arguments.x_stride, k));
    }
    return largest;
  });
}

void quantize_values(const void* x, DType x_dtype, std::int64_t begin, std::int64_t count, const Fp8Scale& scale,
                     DType dtype, CodeForm form, std::byte* out) {
  with_type(x, x_dtype, [&](auto load, const auto* values) {
    using Load = decltype(load);
    if (form == CodeForm::kBF16) return quantize_as<Load, StoreBF16>(values + begin, count, scale, dtype, out);
    quantize_as<Load, StoreByte>(values + begin, count, scale, dtype, out);
  });
}

void quantize_row(const Quantizer& q, const PackedFp8& packed, const ApplyArguments& arguments, std::int64_t m,
                  CodeForm form, std::byte* out, float* sx) {
  const std::int64_t row = m * arguments.x_stride;
  const auto blocks = static_cast<std::int64_t>(packed.blocks.size());
  if (q.scales == Quantizer::Scales::kGiven) {
    const std::int64_t columns = arguments.x_scale_columns;
    for (std::int64_t b = 0; b < blocks; ++b) {
      sx[b] = arguments.x_scale[m * columns + std::min(packed.first_scale + b, columns - 1)];
    }
    return take_codes(static_cast<const std::uint8_t*>(arguments.x) + row, packed.k, q.dtype, form, out);
  }
  const std::int64_t code_bytes = form == CodeForm::kBF16 ? StoreBF16::kBytes : StoreByte::kBytes;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const KBlock& block = packed.blocks[static_cast<std::size_t>(b)];
    Fp8Scale scale = q.tensor;
    if (q.scales != Quantizer::Scales::kTensor) {
      const float absmax = with_type(arguments.x, arguments.x_dtype, [&](auto load, const auto* x) {
        return absmax_of_row(load, x + row + block.begin, block.count);
      });
      scale = q.scales == Quantizer::Scales::kGroup ? dynamic_group_fp8(absmax, q.dtype, q.ue8m0)
                                                    : dynamic_token_fp8(absmax, q.dtype, q.upper_bound);
    }
    quantize_values(arguments.x, arguments.x_dtype, row + block.begin, block.count, scale, q.dtype, form,
                    out + block.begin * code_bytes);
    sx[b] = scale.scale;
  }
}

}  // namespace scaledmm::fp8
