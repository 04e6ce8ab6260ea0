// Emulated float, bfloat16 and float16 intrinsics against scalar code, and, where a rule is about rounding, against
// this machine's own FMA unit.
#include <gtest/gtest.h>

#include <vector>

#include "emulation_values.hpp"

namespace scaledmm::emulated {
namespace {

// ---- float ----

TEST(Emulation, FloatArithmeticRoundsOnceAnOperation) {
  for (int trial = 0; trial < 300; ++trial) {
    const auto a = random_floats<__m512>(trial % 3), b = random_floats<__m512>(trial % 3),
               c = random_floats<__m512>(trial % 3);
    const auto x = lanes_of<float>(a), y = lanes_of<float>(b), z = lanes_of<float>(c);
    expect_lanes<float>(
        _mm512_add_ps(a, b), [&](std::size_t i) { return x[i] + y[i]; }, "add");
    expect_lanes<float>(
        _mm512_div_ps(a, b), [&](std::size_t i) { return x[i] / y[i]; }, "div");
    expect_lanes<float>(
        _mm512_fmadd_ps(a, b, c), [&](std::size_t i) { return std::fma(x[i], y[i], z[i]); }, "fmadd");
    expect_lanes<float>(
        _mm512_fmsub_ps(a, b, c), [&](std::size_t i) { return std::fma(x[i], y[i], -z[i]); }, "fmsub");
    expect_lanes<float>(
        _mm512_fnmadd_ps(a, b, c), [&](std::size_t i) { return std::fma(-x[i], y[i], z[i]); }, "fnmadd");
    expect_lanes<float>(
        _mm512_add_ps(_mm512_mul_ps(a, b), c),
        [&](std::size_t i) {
          volatile float product = x[i] * y[i];
          return product + z[i];
        },
        "mul then add");
    expect_lanes<float>(
        _mm512_max_ps(a, b), [&](std::size_t i) { return x[i] > y[i] ? x[i] : y[i]; }, "max");
    expect_lanes<float>(
        _mm512_mask3_fmadd_ps(a, b, c, 0xFF00),
        [&](std::size_t i) { return i < 8 ? z[i] : std::fma(x[i], y[i], z[i]); }, "mask3");
    expect_lanes<float>(
        _mm512_mask_mul_ps(c, 0xFF00, a, b), [&](std::size_t i) { return i < 8 ? z[i] : x[i] * y[i]; }, "mask mul");
    expect_lanes<float>(
        _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT), [&](std::size_t i) { return std::nearbyint(x[i]); },
        "roundscale");
    expect_lanes<float>(
        _mm512_roundscale_ps(a, 0x30 | _MM_FROUND_TO_ZERO),
        [&](std::size_t i) { return std::fabs(x[i]) > 1e9f ? x[i] : std::trunc(x[i] * 8) / 8; },
        "roundscale by eighths");
    expect_lanes<float>(
        _mm512_abs_ps(a), [&](std::size_t i) { return std::fabs(x[i]); }, "abs");
  }
}

template <int kPredicate>
void check_float_predicate(__m512 a, __m512 b) {
  const int expected = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, kPredicate)) |
                       _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, kPredicate)) << 8;
  EXPECT_EQ(_mm512_cmp_ps_mask(a, b, kPredicate), expected) << kPredicate;
}
template <int... kPredicates>
void check_float_predicates(__m512 a, __m512 b, std::integer_sequence<int, kPredicates...>) {
  (check_float_predicate<kPredicates>(a, b), ...);
}
TEST(Emulation, FloatComparisonsFollowAll32Predicates) {
  const auto a = _mm512_setr_ps(0, 1, 2, NAN, NAN, -0.0f, INFINITY, -INFINITY, 1, 1, 5, 6, 7, NAN, 0, 1);
  const auto b = _mm512_setr_ps(1, 1, 1, 1, NAN, 0, INFINITY, INFINITY, NAN, 2, 5, 5, 8, 0, -0.0f, 1);
  check_float_predicates(a, b, std::make_integer_sequence<int, 32>());
}

TEST(Emulation, RangeScalefAndGetexpFollowTheManual) {
  const auto one = [](__m512 r) { return _mm512_cvtss_f32(r); };
  const __m512 a = _mm512_set1_ps(-3), b = _mm512_set1_ps(2);
  EXPECT_EQ(one(_mm512_range_ps(a, b, 0x4)), -3);
  EXPECT_EQ(one(_mm512_range_ps(a, b, 0x5)), 2);
  EXPECT_EQ(one(_mm512_range_ps(a, b, 0x6)), 2);
  EXPECT_EQ(one(_mm512_range_ps(a, b, 0x7)), -3);
  EXPECT_EQ(one(_mm512_range_ps(a, b, 0x1)), -2);
  EXPECT_EQ(one(_mm512_range_ps(a, b, 0xB)), 3);
  EXPECT_EQ(one(_mm512_scalef_ps(_mm512_set1_ps(3), _mm512_set1_ps(2.7f))), 12);
  EXPECT_EQ(one(_mm512_scalef_ps(_mm512_set1_ps(1), _mm512_set1_ps(-149))), 0x1p-149f);
  EXPECT_EQ(one(_mm512_getexp_ps(_mm512_set1_ps(-0x1p-149f))), -149);
  EXPECT_EQ(one(_mm512_getexp_ps(_mm512_setzero_ps())), -INFINITY);
  EXPECT_EQ(_mm512_fpclass_ps_mask(
                _mm512_setr_ps(0, -0.0f, INFINITY, -INFINITY, 1e-40f, -1, NAN, 1, 0, 0, 0, 0, 0, 0, 0, 0), 0x39),
            0x5C);
}

TEST(Emulation, ReductionsHalveTheVector) {
  const auto a = random_floats<__m512>(0);
  auto x = lanes_of<float>(a);
  float largest = x[0];
  for (const float lane : x) largest = std::max(largest, lane);
  EXPECT_EQ(_mm512_reduce_max_ps(a), largest);
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) x[i] += x[i + half];
  EXPECT_EQ(_mm512_reduce_add_ps(a), x[0]);
  EXPECT_EQ(_mm512_reduce_add_epi32(_mm512_setr_epi32(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)), 136);
  EXPECT_EQ(
      _mm512_mask_reduce_add_epi32(0x8001, _mm512_setr_epi32(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)),
      17);
  EXPECT_EQ(_mm512_mask_reduce_max_epi32(0, _mm512_setzero_si512()), INT32_MIN);
  EXPECT_EQ(_mm512_reduce_min_epu32(_mm512_set1_epi32(-2)), 0xFFFFFFFEu);
}

// ---- bfloat16 ----

TEST(Emulation, Bfloat16DotFusesTheOddPairFirstAndFlushesDenormals) {
  for (int trial = 0; trial < 2000; ++trial) {
    const auto a = random_floats<__m512>(trial % 3), b = random_floats<__m512>(trial % 2),
               c = random_floats<__m512>(trial % 3);
    expect_bfloat16_dot(c, (__m512bh)a, (__m512bh)b);
    expect_bfloat16_dot(c, (__m512bh)random_floats<__m512>(0), (__m512bh)random_floats<__m512>(1));
  }
}
TEST(Emulation, Bfloat16DotDecidesDenormalsBeforeTheExponentIsBounded) {
  int flushed = 0;
  for (std::uint32_t step = 0; step < 4; ++step) {
    for (std::uint32_t fraction = 0; fraction < 128; ++fraction) {
      const float c = __builtin_bit_cast(float, 0x00800000 + step);
      const float product = std::ldexp(1.0f + static_cast<float>(fraction) / 128, -75);
      for (const int exponent : {-75, -76, -77}) {
        const std::uint32_t x = __builtin_bit_cast(std::uint32_t, -product),
                            y = __builtin_bit_cast(std::uint32_t, std::ldexp(1.0f, exponent));
        const __m512 start = _mm512_set1_ps(c);
        const auto a = (__m512bh)_mm512_set1_epi32(static_cast<int>(x & 0xFFFF0000)),
                   b = (__m512bh)_mm512_set1_epi32(static_cast<int>(y));
        expect_bfloat16_dot(start, a, b);
        flushed += _mm512_cvtss_f32(_mm512_dpbf16_ps(start, a, b)) == 0;
      }
    }
  }
  EXPECT_GT(flushed, 0);
}

TEST(Emulation, FloatsRoundToTheNearerBfloat16TiesToEven) {
  for (std::uint32_t high = 0; high < 65536; high += 16) {
    for (const std::uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      std::array<std::uint32_t, 16> bits;
      for (std::uint32_t i = 0; i < 16; ++i) bits[i] = (high + i) << 16 | low;
      const auto r = lanes_of<std::uint16_t>(_mm512_cvtneps_pbh(vector_of<__m512>(bits)));
      for (std::size_t i = 0; i < 16; ++i) {
        const float value = __builtin_bit_cast(float, bits[i]);
        const std::uint16_t below = static_cast<std::uint16_t>(bits[i] >> 16),
                            above = static_cast<std::uint16_t>(below + 1);
        std::uint16_t expected;
        if (std::isnan(value)) {
          expected = below | 0x40;
        } else if (std::fabs(value) < 0x1p-126f) {
          expected = below & 0x8000;
        } else if (std::isinf(value)) {
          expected = below;
        } else {
          // The spacing after the largest bfloat16 goes on to 2^128, where infinity stands.
          const double to_below = std::fabs(static_cast<double>(value) - lower_bfloat16(below));
          const double next =
              std::isinf(lower_bfloat16(above)) ? std::copysign(0x1p128, value) : double{lower_bfloat16(above)};
          const double to_above = std::fabs(next - static_cast<double>(value));
          expected = to_below < to_above ? below : to_above < to_below ? above : below % 2 == 0 ? below : above;
        }
        ASSERT_EQ(r[i], expected) << std::hex << bits[i];
      }
    }
  }
}

TEST(Emulation, TwoOperandConversionPutsItsSecondOperandBelow) {
  const auto r = lanes_of<std::uint16_t>(_mm512_cvtne2ps_pbh(_mm512_set1_ps(2), _mm512_set1_ps(1)));
  EXPECT_EQ(r[0], 0x3F80);
  EXPECT_EQ(r[15], 0x3F80);
  EXPECT_EQ(r[16], 0x4000);
  const auto half = lanes_of<std::uint16_t>(_mm256_cvtne2ps_pbh(_mm256_set1_ps(2), _mm256_set1_ps(1)));
  EXPECT_EQ(half[7], 0x3F80);
  EXPECT_EQ(half[8], 0x4000);
  EXPECT_EQ(lanes_of<std::uint16_t>(_mm_mask_cvtneps_pbh((__m128bh)_mm_set1_epi16(7), 0xF1, _mm_set1_ps(1)))[4], 0);
  EXPECT_EQ(_mm512_cvtss_f32(_mm512_cvtpbh_ps((__m256bh)_mm256_set1_epi16(0x0001))), 0x1p-133f);
}

// ---- float16 ----

#ifdef __FLT16_MAX__
// The exact value in units of 2^-48; c and a * b of finite float16 stay below 2^82 units.
__int128 float16_units(float a) { return static_cast<__int128>(std::ldexp(static_cast<double>(a), 48)); }
TEST(Emulation, Float16FusedMultiplyAddRoundsOnce) {
  const auto value = [](std::uint16_t code) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(code))); };
  int checked = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const auto a = random_vector<__m512h>(), b = random_vector<__m512h>();
    const auto c = trial % 2 ? random_vector<__m512h>() : _mm512_mul_ph(a, b);
    const auto x = lanes_of<std::uint16_t>(a), y = lanes_of<std::uint16_t>(b), z = lanes_of<std::uint16_t>(c);
    const auto r = lanes_of<std::uint16_t>(_mm512_fmadd_ph(a, b, c));
    for (std::size_t i = 0; i < 32; ++i) {
      if (!std::isfinite(value(x[i])) || !std::isfinite(value(y[i])) || !std::isfinite(value(z[i])) ||
          !std::isfinite(value(r[i])))
        continue;
      const __int128 exact = float16_units(value(x[i]) * value(y[i])) + float16_units(value(z[i]));
      const auto distance = [&](std::uint16_t code) {
        const __int128 d = exact - float16_units(value(code));
        return d < 0 ? -d : d;
      };
      for (const int neighbour : {-1, 1}) {
        const auto other = static_cast<std::uint16_t>(r[i] + neighbour);
        if ((r[i] & 0x7FFF) == 0 || !std::isfinite(value(other))) continue;
        ASSERT_TRUE(distance(r[i]) < distance(other) || (distance(r[i]) == distance(other) && r[i] % 2 == 0))
            << x[i] << " " << y[i] << " " << z[i];
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 10000);
  EXPECT_EQ(lanes_of<std::uint16_t>(_mm512_cvtepi32_ph(_mm512_set1_epi32(2049)))[0], 0x6800);
  EXPECT_EQ(lanes_of<std::uint16_t>(_mm512_cvtepi32_ph(_mm512_set1_epi32(-70000)))[0], 0xFC00);
  EXPECT_EQ(static_cast<float>(_mm512_reduce_add_ph(_mm512_set1_ph(static_cast<_Float16>(0.5)))), 16);
}
#endif

}  // namespace
}  // namespace scaledmm::emulated
