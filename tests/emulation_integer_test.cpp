// Emulated integer, permute, mask and conversion intrinsics against scalar code written from the manuals.
#include <gtest/gtest.h>

#include <algorithm>

#include "emulation_values.hpp"

namespace scaledmm::emulated {
namespace {

// ---- integer dot products ----

template <class A, class B, class V>
std::int64_t byte_sum(const V& a, const V& b, std::size_t lane) {
  const auto x = lanes_of<A>(a);
  const auto y = lanes_of<B>(b);
  std::int64_t sum = 0;
  for (std::size_t i = 4 * lane; i < 4 * lane + 4; ++i) sum += std::int64_t{x[i]} * y[i];
  return sum;
}
std::int32_t clamp_signed(std::int64_t a) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(std::max<std::int64_t>(a, INT32_MIN), INT32_MAX));
}

TEST(Emulation, VnniSumsFourProductsAndWraps) {
  for (int trial = 0; trial < 200; ++trial) {
    const auto c = random_vector<__m512i>(), a = random_vector<__m512i>(), b = random_vector<__m512i>();
    const auto start = lanes_of<std::int32_t>(c);
    const auto expected = [&](std::size_t i) {
      return static_cast<std::int32_t>(start[i] + byte_sum<std::uint8_t, std::int8_t>(a, b, i));
    };
    expect_lanes<std::int32_t>(_mm512_dpbusd_epi32(c, a, b), expected, "512");
    expect_lanes<std::int32_t>(_mm256_dpbusd_epi32(c.lo, a.lo, b.lo), expected, "256");
    expect_lanes<std::int32_t>(_mm256_dpbusd_avx_epi32(c.lo, a.lo, b.lo), expected, "256 avx");
    const __m128i c4 = _mm512_castsi512_si128(c), a4 = _mm512_castsi512_si128(a), b4 = _mm512_castsi512_si128(b);
    expect_lanes<std::int32_t>(_mm_dpbusd_epi32(c4, a4, b4), expected, "128");
    const auto k = static_cast<__mmask16>(random_bits()());
    expect_lanes<std::int32_t>(
        _mm512_mask_dpbusd_epi32(c, k, a, b), [&](std::size_t i) { return k >> i & 1 ? expected(i) : start[i]; },
        "mask");
    expect_lanes<std::int32_t>(
        _mm512_maskz_dpbusd_epi32(k, c, a, b), [&](std::size_t i) { return k >> i & 1 ? expected(i) : 0; }, "maskz");
  }
  const __m512i most = _mm512_set1_epi32(INT32_MAX);
  EXPECT_EQ(_mm512_cvtsi512_si32(_mm512_dpbusd_epi32(most, _mm512_set1_epi8(1), _mm512_set1_epi8(1))), INT32_MIN + 3);
}

TEST(Emulation, SaturatingVnniSaturatesOnceAfterTheExactSum) {
  for (int trial = 0; trial < 200; ++trial) {
    auto near_limit = lanes_of<std::int32_t>(random_vector<__m512i>());
    for (auto& lane : near_limit) lane = lane < 0 ? INT32_MIN + (lane & 0x1FFFF) : INT32_MAX - (lane & 0x1FFFF);
    const auto c = vector_of<__m512i>(near_limit), a = random_vector<__m512i>(), b = random_vector<__m512i>();
    expect_lanes<std::int32_t>(
        _mm512_dpbusds_epi32(c, a, b),
        [&](std::size_t i) { return clamp_signed(near_limit[i] + byte_sum<std::uint8_t, std::int8_t>(a, b, i)); },
        "us");
    expect_lanes<std::int32_t>(
        _mm512_dpbssds_epi32(c, a, b),
        [&](std::size_t i) { return clamp_signed(near_limit[i] + byte_sum<std::int8_t, std::int8_t>(a, b, i)); }, "ss");
    expect_lanes<std::uint32_t>(
        _mm512_dpbuuds_epi32(c, a, b),
        [&](std::size_t i) {
          return std::min<std::int64_t>(
              static_cast<std::uint32_t>(near_limit[i]) + byte_sum<std::uint8_t, std::uint8_t>(a, b, i), UINT32_MAX);
        },
        "uu");
  }
}

TEST(Emulation, ByteDotProductsTakeEverySignedness) {
  for (int trial = 0; trial < 100; ++trial) {
    const auto c = random_vector<__m512i>(), a = random_vector<__m512i>(), b = random_vector<__m512i>();
    const auto start = lanes_of<std::int32_t>(c);
    expect_lanes<std::int32_t>(
        _mm512_dpbssd_epi32(c, a, b),
        [&](std::size_t i) { return start[i] + byte_sum<std::int8_t, std::int8_t>(a, b, i); }, "ss");
    expect_lanes<std::int32_t>(
        _mm512_dpbsud_epi32(c, a, b),
        [&](std::size_t i) { return start[i] + byte_sum<std::int8_t, std::uint8_t>(a, b, i); }, "su");
    expect_lanes<std::int32_t>(
        _mm512_dpbuud_epi32(c, a, b),
        [&](std::size_t i) { return start[i] + byte_sum<std::uint8_t, std::uint8_t>(a, b, i); }, "uu");
  }
}

TEST(Emulation, WordDotProductsWrapOrSaturate) {
  for (int trial = 0; trial < 200; ++trial) {
    const auto c = random_vector<__m512i>();
    const auto a = trial == 0 ? _mm512_set1_epi16(INT16_MIN) : random_vector<__m512i>(),
               b = trial == 0 ? a : random_vector<__m512i>();
    const auto start = lanes_of<std::int32_t>(c);
    const auto x = lanes_of<std::int16_t>(a), y = lanes_of<std::int16_t>(b);
    const auto sum = [&](std::size_t i) {
      return start[i] + std::int64_t{x[2 * i]} * y[2 * i] + std::int64_t{x[2 * i + 1]} * y[2 * i + 1];
    };
    expect_lanes<std::int32_t>(_mm512_dpwssd_epi32(c, a, b), sum, "wrap");
    expect_lanes<std::int32_t>(
        _mm512_dpwssds_epi32(c, a, b), [&](std::size_t i) { return clamp_signed(sum(i)); }, "saturate");
  }
}

// ---- lane by lane integer operations ----

template <class T, class Vector, class Scalar>
void check_binary(const char* what, Vector vector, Scalar scalar) {
  for (int trial = 0; trial < 50; ++trial) {
    const auto a = random_vector<__m512i>(), b = random_vector<__m512i>();
    const auto x = lanes_of<T>(a), y = lanes_of<T>(b);
    expect_lanes<T>(
        vector(a, b), [&](std::size_t i) { return scalar(x[i], y[i]); }, what);
  }
}

#define CHECK_BINARY(op, T, ...) \
  check_binary<T>(               \
      #op, [](__m512i va, __m512i vb) { return _mm512_##op(va, vb); }, [](T a, T b) { return __VA_ARGS__; })

TEST(Emulation, IntegerArithmeticEqualsScalarArithmetic) {
  CHECK_BINARY(add_epi8, std::uint8_t, a + b);
  CHECK_BINARY(add_epi32, std::uint32_t, a + b);
  CHECK_BINARY(sub_epi64, std::uint64_t, a - b);
  CHECK_BINARY(adds_epi16, std::int16_t, std::min(std::max(a + b, -32768), 32767));
  CHECK_BINARY(subs_epu8, std::uint8_t, std::max(a - b, 0));
  CHECK_BINARY(mullo_epi16, std::uint16_t, static_cast<std::uint32_t>(a) * b);
  CHECK_BINARY(mullo_epi32, std::uint32_t, a * b);
  CHECK_BINARY(mullo_epi64, std::uint64_t, a * b);
  CHECK_BINARY(mulhi_epi16, std::int16_t, (a * b) >> 16);
  CHECK_BINARY(mulhi_epu16, std::uint16_t, (std::uint32_t{a} * b) >> 16);
  CHECK_BINARY(mulhrs_epi16, std::int16_t, ((a * b >> 14) + 1) >> 1);
  CHECK_BINARY(mul_epi32, std::int64_t, std::int64_t{static_cast<std::int32_t>(a)} * static_cast<std::int32_t>(b));
  CHECK_BINARY(mul_epu32, std::uint64_t, (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF));
  CHECK_BINARY(max_epi8, std::int8_t, std::max(a, b));
  CHECK_BINARY(min_epu16, std::uint16_t, std::min(a, b));
  CHECK_BINARY(max_epi64, std::int64_t, std::max(a, b));
  CHECK_BINARY(min_epu64, std::uint64_t, std::min(a, b));
  CHECK_BINARY(andnot_epi32, std::uint32_t, ~a & b);
  CHECK_BINARY(xor_si512, std::uint64_t, a ^ b);
  CHECK_BINARY(or_epi64, std::uint64_t, a | b);
  CHECK_BINARY(rolv_epi32, std::uint32_t,
               __builtin_bit_cast(std::uint32_t, a << (b & 31)) | (b & 31 ? a >> (32 - (b & 31)) : 0));
}

TEST(Emulation, PairwiseMultipliesSumNeighbours) {
  for (int trial = 0; trial < 50; ++trial) {
    const auto a = random_vector<__m512i>(), b = random_vector<__m512i>();
    const auto x = lanes_of<std::int16_t>(a), y = lanes_of<std::int16_t>(b);
    const auto u = lanes_of<std::uint8_t>(a);
    const auto s = lanes_of<std::int8_t>(b);
    expect_lanes<std::int32_t>(
        _mm512_madd_epi16(a, b),
        [&](std::size_t i) { return std::int64_t{x[2 * i]} * y[2 * i] + std::int64_t{x[2 * i + 1]} * y[2 * i + 1]; },
        "madd");
    expect_lanes<std::int16_t>(
        _mm512_maddubs_epi16(a, b),
        [&](std::size_t i) {
          return std::min(std::max(u[2 * i] * s[2 * i] + u[2 * i + 1] * s[2 * i + 1], -32768), 32767);
        },
        "maddubs");
  }
}

TEST(Emulation, ShiftsPastTheLaneGiveZeroOrSign) {
  for (unsigned n = 0; n < 80; ++n) {
    const auto a = random_vector<__m512i>();
    const auto words = lanes_of<std::uint16_t>(a);
    const auto dwords = lanes_of<std::uint32_t>(a);
    const auto qwords = lanes_of<std::int64_t>(a);
    const __m128i count = _mm_cvtsi32_si128(static_cast<int>(n));
    const auto left = [&](std::size_t i) { return n < 16 ? static_cast<std::uint32_t>(words[i]) << n : 0; };
    expect_lanes<std::uint16_t>(_mm512_slli_epi16(a, n), left, "slli");
    expect_lanes<std::uint16_t>(_mm512_sll_epi16(a, count), left, "sll");
    expect_lanes<std::uint16_t>(_mm512_sllv_epi16(a, _mm512_set1_epi16(static_cast<short>(n))), left, "sllv");
    expect_lanes<std::uint32_t>(
        _mm512_srli_epi32(a, n), [&](std::size_t i) { return n < 32 ? dwords[i] >> n : 0; }, "srli");
    expect_lanes<std::int64_t>(
        _mm512_srai_epi64(a, n), [&](std::size_t i) { return qwords[i] >> std::min(n, 63u); }, "srai");
    expect_lanes<std::int16_t>(
        _mm512_srav_epi16(a, _mm512_set1_epi16(static_cast<short>(n))),
        [&](std::size_t i) { return static_cast<std::int16_t>(words[i]) >> std::min(n, 15u); }, "srav");
  }
}

TEST(Emulation, TernaryLogicReadsItsTable) {
  for (int table = 0; table < 256; ++table) {
    const auto a = random_vector<__m512i>(), b = random_vector<__m512i>(), c = random_vector<__m512i>();
    const auto x = lanes_of<std::uint32_t>(a), y = lanes_of<std::uint32_t>(b), z = lanes_of<std::uint32_t>(c);
    expect_lanes<std::uint32_t>(
        _mm512_ternarylogic_epi32(a, b, c, table),
        [&](std::size_t i) {
          std::uint32_t r = 0;
          for (int bit = 0; bit < 32; ++bit)
            r |= static_cast<std::uint32_t>(
                     table >> ((x[i] >> bit & 1) << 2 | (y[i] >> bit & 1) << 1 | (z[i] >> bit & 1)) & 1)
                 << bit;
          return r;
        },
        "ternarylogic");
  }
}

TEST(Emulation, AffineOfTheIdentityMatrixKeepsBytesAndAddsTheConstant) {
  const auto a = random_vector<__m512i>();
  const auto x = lanes_of<std::uint8_t>(a);
  const __m512i identity = _mm512_set1_epi64(0x0102040810204080);
  const __m512i reversed = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201));
  expect_lanes<std::uint8_t>(
      _mm512_gf2p8affine_epi64_epi8(a, identity, 0x5A), [&](std::size_t i) { return x[i] ^ 0x5A; }, "identity");
  expect_lanes<std::uint8_t>(
      _mm512_gf2p8affine_epi64_epi8(a, reversed, 0),
      [&](std::size_t i) {
        int r = 0;
        for (int bit = 0; bit < 8; ++bit) r |= (x[i] >> bit & 1) << (7 - bit);
        return r;
      },
      "bits reversed");
}

template <class T, class Compare>
void check_compare(Compare compare) {
  for (int trial = 0; trial < 50; ++trial) {
    auto x = lanes_of<T>(random_vector<__m512i>()), y = lanes_of<T>(random_vector<__m512i>());
    for (std::size_t i = 0; i < x.size(); i += 3) y[i] = x[i];
    for (int predicate = 0; predicate < 8; ++predicate) {
      const std::uint64_t k = compare(vector_of<__m512i>(x), vector_of<__m512i>(y), predicate);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const bool truth[] = {x[i] == y[i], x[i]<y[i], x[i] <= y[i], false, x[i] != y[i], x[i] >= y[i], x[i]> y[i],
                              true};
        ASSERT_EQ(k >> i & 1, truth[predicate]) << "predicate " << predicate << " lane " << i;
      }
      if (x.size() < 64) {
        ASSERT_EQ(k >> (x.size() % 64), 0u);
      }
    }
  }
}
TEST(Emulation, ComparisonsKnowSignAndSize) {
#define CHECK_COMPARE(T, type) \
  check_compare<T>([](__m512i a, __m512i b, int p) -> std::uint64_t { return _mm512_cmp_##type##_mask(a, b, p); })
  CHECK_COMPARE(std::int8_t, epi8);
  CHECK_COMPARE(std::uint8_t, epu8);
  CHECK_COMPARE(std::int16_t, epi16);
  CHECK_COMPARE(std::uint16_t, epu16);
  CHECK_COMPARE(std::int32_t, epi32);
  CHECK_COMPARE(std::uint32_t, epu32);
  CHECK_COMPARE(std::int64_t, epi64);
  CHECK_COMPARE(std::uint64_t, epu64);
#undef CHECK_COMPARE
  EXPECT_EQ(_mm256_cmpeq_epi8_mask(_mm256_setzero_si256(), _mm256_setzero_si256()), ~0u);
  EXPECT_EQ(_mm_cmpge_epu32_mask(_mm_set1_epi32(-1), _mm_setr_epi32(0, 1, -1, 5)), 0xF);
  EXPECT_EQ(_mm512_mask_cmpgt_epi32_mask(0x00F0, _mm512_set1_epi32(1), _mm512_setzero_si512()), 0x00F0);
}

TEST(Emulation, MaskRegistersAddShiftAndUnpack) {
  EXPECT_EQ(_mm512_kunpackb(0x12, 0x34), 0x1234);
  EXPECT_EQ(_mm512_kunpackd(0x1, 0x2), 0x100000002u);
  EXPECT_EQ(_kshiftli_mask16(0xFFFF, 4), 0xFFF0);
  EXPECT_EQ(_kshiftri_mask64(~0ull, 64), 0u);
  EXPECT_EQ(_kandn_mask8(0x0F, 0xFF), 0xF0);
  EXPECT_EQ(_knot_mask8(0x0F), 0xF0);
  EXPECT_EQ(_kortestc_mask8_u8(0xF0, 0x0F), 1);
  EXPECT_EQ(_cvtu32_mask16(0x12345), 0x2345);
  EXPECT_EQ(_bzhi_u32(~0u, 5), 31u);
  EXPECT_EQ(_bzhi_u32(~0u, 32), ~0u);
  for (int i = 0; i < 64; ++i) {
    const std::uint64_t one = std::uint64_t{1} << i;
    EXPECT_EQ(_mm512_movepi8_mask(_mm512_movm_epi8(one)), one);
    EXPECT_EQ(_mm512_movepi16_mask(_mm512_movm_epi16(static_cast<__mmask32>(one))), static_cast<__mmask32>(one));
    EXPECT_EQ(_mm512_movepi32_mask(_mm512_movm_epi32(static_cast<__mmask16>(one))), static_cast<__mmask16>(one));
    EXPECT_EQ(_mm_movepi16_mask(_mm_movm_epi16(static_cast<__mmask8>(one))), static_cast<__mmask8>(one));
  }
}

// ---- permutes ----

TEST(Emulation, TwoTablePermutesIndexTheConcatenation) {
  for (int trial = 0; trial < 50; ++trial) {
    const auto a = random_vector<__m512i>(), b = random_vector<__m512i>(), at = random_vector<__m512i>();
    const auto k = random_bits()();
    {
      const auto x = lanes_of<std::uint8_t>(a), y = lanes_of<std::uint8_t>(b), j = lanes_of<std::uint8_t>(at);
      const auto expected = [&](std::size_t i) { return j[i] & 64 ? y[j[i] & 63] : x[j[i] & 63]; };
      expect_lanes<std::uint8_t>(_mm512_permutex2var_epi8(a, at, b), expected, "vpermt2b");
      expect_lanes<std::uint8_t>(
          _mm512_mask_permutex2var_epi8(a, k, at, b), [&](std::size_t i) { return k >> i & 1 ? expected(i) : x[i]; },
          "mask");
      expect_lanes<std::uint8_t>(
          _mm512_mask2_permutex2var_epi8(a, at, k, b), [&](std::size_t i) { return k >> i & 1 ? expected(i) : j[i]; },
          "mask2");
      expect_lanes<std::uint8_t>(
          _mm512_maskz_permutex2var_epi8(k, a, at, b), [&](std::size_t i) { return k >> i & 1 ? expected(i) : 0; },
          "maskz");
      expect_lanes<std::uint8_t>(
          _mm512_permutexvar_epi8(at, a), [&](std::size_t i) { return x[j[i] & 63]; }, "vpermb");
    }
    const auto x = lanes_of<std::uint16_t>(a), y = lanes_of<std::uint16_t>(b), j = lanes_of<std::uint16_t>(at);
    expect_lanes<std::uint16_t>(
        _mm512_permutex2var_epi16(a, at, b), [&](std::size_t i) { return j[i] & 32 ? y[j[i] & 31] : x[j[i] & 31]; },
        "vpermt2w");
    expect_lanes<std::uint16_t>(
        _mm512_permutexvar_epi16(at, a), [&](std::size_t i) { return x[j[i] & 31]; }, "vpermw");
    const auto d = lanes_of<std::uint32_t>(a), n = lanes_of<std::uint32_t>(at);
    expect_lanes<std::uint32_t>(
        _mm512_permutexvar_epi32(at, a), [&](std::size_t i) { return d[n[i] & 15]; }, "vpermd");
  }
}

TEST(Emulation, ShufflesStayInTheirLanes) {
  const auto a = random_vector<__m512i>(), b = random_vector<__m512i>();
  const auto x = lanes_of<std::uint8_t>(a), y = lanes_of<std::uint8_t>(b);
  const auto d = lanes_of<std::uint32_t>(a), e = lanes_of<std::uint32_t>(b);
  expect_lanes<std::uint8_t>(
      _mm512_shuffle_epi8(a, b), [&](std::size_t i) { return y[i] & 128 ? 0 : x[i / 16 * 16 + (y[i] & 15)]; },
      "pshufb");
  expect_lanes<std::uint8_t>(
      _mm512_unpacklo_epi8(a, b), [&](std::size_t i) { return (i % 2 ? y : x)[i / 16 * 16 + i % 16 / 2]; }, "unpacklo");
  expect_lanes<std::uint8_t>(
      _mm512_unpackhi_epi8(a, b), [&](std::size_t i) { return (i % 2 ? y : x)[i / 16 * 16 + 8 + i % 16 / 2]; },
      "unpackhi");
  expect_lanes<std::uint32_t>(
      _mm512_shuffle_epi32(a, 0x1B), [&](std::size_t i) { return d[i / 4 * 4 + 3 - i % 4]; }, "shuffle_epi32");
  expect_lanes<std::uint32_t>(
      _mm512_shuffle_i32x4(a, b, 0xD8),
      [&](std::size_t i) {
        const std::size_t from[] = {0, 2, 1, 3};
        return (i < 8 ? d : e)[from[i / 4] * 4 + i % 4];
      },
      "shuffle_i32x4");
  expect_lanes<std::uint32_t>(
      _mm512_alignr_epi32(a, b, 5), [&](std::size_t i) { return i + 5 < 16 ? e[i + 5] : d[i - 11]; }, "alignr_epi32");
  expect_lanes<std::uint8_t>(
      _mm512_alignr_epi8(a, b, 7), [&](std::size_t i) { return i % 16 + 7 < 16 ? y[i + 7] : x[i - 9]; }, "alignr_epi8");
  expect_lanes<std::uint8_t>(
      _mm512_bslli_epi128(a, 3), [&](std::size_t i) { return i % 16 < 3 ? 0 : x[i - 3]; }, "bslli");
  expect_lanes<std::uint8_t>(
      _mm512_bsrli_epi128(a, 3), [&](std::size_t i) { return i % 16 < 13 ? x[i + 3] : 0; }, "bsrli");
  expect_lanes<std::uint32_t>(
      _mm512_inserti32x4(a, _mm512_extracti32x4_epi32(b, 1), 3),
      [&](std::size_t i) { return i < 12 ? d[i] : e[i - 8]; }, "insert");
  expect_lanes<std::uint32_t>(
      _mm512_broadcast_i32x4(_mm512_extracti32x4_epi32(a, 2)), [&](std::size_t i) { return d[8 + i % 4]; },
      "broadcast");
  expect_lanes<std::uint32_t>(
      _mm512_inserti64x4(a, _mm512_extracti64x4_epi64(b, 0), 1), [&](std::size_t i) { return i < 8 ? d[i] : e[i - 8]; },
      "insert half");
}

TEST(Emulation, SetPutsItsLastArgumentFirstAndSetrItsFirst) {
  const auto last = lanes_of<std::int32_t>(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  const auto first = lanes_of<std::int32_t>(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(last[static_cast<std::size_t>(i)], i);
    EXPECT_EQ(first[static_cast<std::size_t>(i)], i);
  }
  EXPECT_EQ(lanes_of<std::int32_t>(_mm512_set4_epi32(4, 3, 2, 1))[4], 1);
}

TEST(Emulation, WideningCastLeavesGarbageAbove) {
  const auto r = lanes_of<std::uint8_t>(_mm512_castsi256_si512(_mm256_setzero_si256()));
  EXPECT_EQ(r[31], 0);
  EXPECT_EQ(r[32], 0xA5);
  EXPECT_EQ(lanes_of<std::uint8_t>(_mm512_zextsi256_si512(_mm256_setzero_si256()))[32], 0);
}

// ---- conversions ----

TEST(Emulation, WideningKeepsTheSignOfSignedLanesOnly) {
  const auto a = random_vector<__m256i>();
  const auto s8 = lanes_of<std::int8_t>(a);
  const auto u8 = lanes_of<std::uint8_t>(a);
  const auto u16 = lanes_of<std::uint16_t>(a);
  expect_lanes<std::int16_t>(
      _mm512_cvtepi8_epi16(a), [&](std::size_t i) { return s8[i]; }, "epi8_epi16");
  expect_lanes<std::int16_t>(
      _mm512_cvtepu8_epi16(a), [&](std::size_t i) { return u8[i]; }, "epu8_epi16");
  expect_lanes<std::int32_t>(
      _mm512_cvtepi8_epi32(_mm256_castsi256_si128(a)), [&](std::size_t i) { return s8[i]; }, "epi8_epi32");
  expect_lanes<std::int32_t>(
      _mm512_cvtepu16_epi32(a), [&](std::size_t i) { return u16[i]; }, "epu16_epi32");
}

TEST(Emulation, NarrowingTruncatesOrSaturates) {
  for (int trial = 0; trial < 50; ++trial) {
    auto x = lanes_of<std::int32_t>(random_vector<__m512i>());
    for (std::size_t i = 0; i < 16; ++i) x[i] >>= 2 * i;
    const auto a = vector_of<__m512i>(x);
    expect_lanes<std::int8_t>(
        _mm512_cvtepi32_epi8(a), [&](std::size_t i) { return x[i]; }, "truncate");
    expect_lanes<std::int8_t>(
        _mm512_cvtsepi32_epi8(a), [&](std::size_t i) { return std::min(std::max(x[i], -128), 127); }, "signed");
    expect_lanes<std::uint8_t>(
        _mm512_cvtusepi32_epi8(a), [&](std::size_t i) { return std::min(static_cast<std::uint32_t>(x[i]), 255u); },
        "unsigned");
    expect_lanes<std::int16_t>(
        _mm512_cvtsepi32_epi16(a), [&](std::size_t i) { return std::min(std::max(x[i], -32768), 32767); }, "to 16");
    std::array<std::int8_t, 16> stored{};
    _mm512_mask_cvtsepi32_storeu_epi8(stored.data(), 0x0F0F, a);
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(stored[i], i % 8 < 4 ? std::min(std::max(x[i], -128), 127) : 0);
  }
  const __m128i low = _mm_maskz_cvtepi32_epi8(0x5, _mm_setr_epi32(1, 2, 3, 4));
  expect_lanes<std::int8_t>(
      low, [](std::size_t i) { return i == 0   ? 1
                                      : i == 2 ? 3
                                               : 0; }, "maskz");
}

TEST(Emulation, FloatsConvertToIntegersByTheirRoundingMode) {
  auto a = _mm512_setr_ps(0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 3e9f, -3e9f, NAN, 127.5f, 126.5f, 1e-40f, -0.0f, 2147483520.f,
                          8388609.f, 0.49999997f, -2.5f);
  asm volatile("" : "+m"(a));  // g++ folds conversions of constants out of range to INT32_MAX, which no processor gives
  const std::int32_t nearest[] = {0,   2,   2, 0, -2,         INT32_MIN, INT32_MIN, INT32_MIN,
                                  128, 126, 0, 0, 2147483520, 8388609,   0,         -2};
  const std::int32_t truncated[] = {0,   1,   2, 0, -1,         INT32_MIN, INT32_MIN, INT32_MIN,
                                    127, 126, 0, 0, 2147483520, 8388609,   0,         -2};
  const std::uint32_t as_unsigned[] = {0,   2,   2, 0, ~0u,        3000000000u, ~0u, ~0u,
                                       128, 126, 0, 0, 2147483520, 8388609,     0,   ~0u};
  const std::int32_t down[] = {0,   1,   2, -1, -2,         INT32_MIN, INT32_MIN, INT32_MIN,
                               127, 126, 0, 0,  2147483520, 8388609,   0,         -3};
  expect_lanes<std::int32_t>(
      _mm512_cvtps_epi32(a), [&](std::size_t i) { return nearest[i]; }, "cvtps");
  expect_lanes<std::int32_t>(
      _mm512_cvttps_epi32(a), [&](std::size_t i) { return truncated[i]; }, "cvttps");
  expect_lanes<std::uint32_t>(
      _mm512_cvtps_epu32(a), [&](std::size_t i) { return as_unsigned[i]; }, "cvtps_epu32");
  expect_lanes<std::int32_t>(
      _mm512_cvt_roundps_epi32(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC), [&](std::size_t i) { return down[i]; },
      "round down");
  const auto x = random_vector<__m512i>();
  const auto words = lanes_of<std::int32_t>(x);
  expect_lanes<float>(
      _mm512_cvtepi32_ps(x), [&](std::size_t i) { return static_cast<float>(words[i]); }, "cvtepi32");
  expect_lanes<float>(
      _mm512_cvtepu32_ps(x), [&](std::size_t i) { return static_cast<float>(static_cast<std::uint32_t>(words[i])); },
      "cvtepu32");
}

}  // namespace
}  // namespace scaledmm::emulated
