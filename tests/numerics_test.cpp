// Number formats, rounding and quantizers: every code, ties, saturation, and golden vectors of an independent
// computation.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "golden.hpp"
#include "numerics/epilogue.hpp"
#include "numerics/int8_merge.hpp"
#include "numerics/rows.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/quantize.hpp"

namespace scaledmm {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr DType kFp8[] = {DType::kE4M3FN, DType::kE4M3FNUZ, DType::kE5M2};

std::uint8_t encode(float value, DType dtype) {
  if (dtype == DType::kE5M2) return f32_to_e5m2(value);
  return dtype == DType::kE4M3FNUZ ? f32_to_e4m3fnuz(value) : f32_to_e4m3fn(value);
}

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

TEST(Fp8, EveryCodeHasItsGoldenValue) {
  const nlohmann::json tables = golden("fp8_codes");
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    for (const DType dtype : {DType::kE4M3FN, DType::kE4M3FNUZ, DType::kE5M2, DType::kE8M0}) {
      const auto& expected = tables[std::string(name(dtype))][static_cast<std::size_t>(code)];
      const float value = dtype == DType::kE8M0 ? e8m0_to_f32(byte) : fp8_to_f32(byte, dtype);
      if (expected.is_string()) {
        EXPECT_TRUE(std::isnan(value)) << name(dtype) << " " << code;
      } else {
        EXPECT_EQ(bits(value), expected.get<std::uint32_t>()) << name(dtype) << " " << code;
      }
    }
  }
}

TEST(Fp8, EveryCodeSurvivesARoundTrip) {
  for (const DType dtype : kFp8) {
    for (int code = 0; code < 256; ++code) {
      const float value = fp8_to_f32(static_cast<std::uint8_t>(code), dtype);
      if (!std::isfinite(value)) continue;
      EXPECT_EQ(encode(value, dtype), code) << name(dtype);
    }
  }
}

TEST(Fp8, RoundsTiesToEvenAndSaturates) {
  const nlohmann::json tables = golden("fp8_rounding");
  for (const DType dtype : kFp8) {
    const auto& table = tables[std::string(name(dtype))];
    ASSERT_GT(table.size(), 300u);
    for (const auto& entry : table) {
      const float value = golden_float(entry[0]);
      EXPECT_EQ(encode(value, dtype), entry[1].get<int>()) << name(dtype) << " of " << value;
    }
  }
}

TEST(Bf16, EveryValueSurvivesARoundTrip) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_to_f32(static_cast<std::uint16_t>(code));
    const std::uint16_t back = f32_to_bf16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(back))) << code;
    } else {
      EXPECT_EQ(back, code);
    }
  }
}

TEST(F16, EveryValueSurvivesARoundTrip) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float value = f16_to_f32(static_cast<std::uint16_t>(code));
    const std::uint16_t back = f32_to_f16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(back))) << code;
    } else {
      EXPECT_EQ(back, code);
      const int exponent = static_cast<int>(code >> 10 & 31);
      const double fraction = static_cast<double>(code & 1023) / 1024;
      const double exact = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
      if (exponent < 31) {
        EXPECT_EQ(std::fabs(value), exact) << code;
      }
    }
  }
}

// Half way between neighbours the even code wins, and one f32 step further the nearer one.
template <class ToFloat, class FromFloat>
void expect_ties_to_even(std::uint32_t largest, ToFloat to_float, FromFloat from_float) {
  for (std::uint32_t code = 0; code < largest; ++code) {
    const float low = to_float(static_cast<std::uint16_t>(code));
    const float high = to_float(static_cast<std::uint16_t>(code + 1));
    const float middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    ASSERT_EQ(from_float(middle), code + (code & 1)) << code;
    ASSERT_EQ(from_float(-middle), 0x8000u + code + (code & 1)) << code;
    ASSERT_EQ(from_float(std::nextafter(middle, 0.0f)), code);
    ASSERT_EQ(from_float(std::nextafter(middle, kInf)), code + 1);
  }
}

TEST(Bf16, RoundsTiesToEven) {
  expect_ties_to_even(0x7f7f, bf16_to_f32, f32_to_bf16);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-kInf), 0xff80);
}

TEST(F16, RoundsTiesToEven) {
  expect_ties_to_even(0x7bff, f16_to_f32, f32_to_f16);
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
}

TEST(RoundEven, AgreesWithNearbyint) {
  for (const float value :
       {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 0.49999997f, 8388607.5f, -8388606.5f, 8388609.0f, 1e30f}) {
    EXPECT_EQ(round_even(value), std::nearbyint(value)) << value;
  }
  EXPECT_TRUE(std::isnan(round_even(kNaN)));
}

// PB-02: ties and saturation at every position and length.
TEST(Int8, RoundsTiesToEvenAndSaturatesAtEveryLength) {
  const float inputs[] = {0.5f,     1.5f, 2.5f, -0.5f,   -1.5f,   -2.5f, 126.5f, 127.5f,
                          127.625f, 128,  200,  -127.5f, -128.5f, -129,  -500};
  const std::int8_t codes[] = {0, 2, 2, 0, -2, -2, 126, 127, 127, 127, 127, -128, -128, -128, -128};
  for (const std::int64_t length : {1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129}) {
    std::vector<std::uint16_t> x;
    for (std::int64_t i = 0; i < length; ++i) x.push_back(f32_to_f16(inputs[i % 15]));
    std::vector<std::int8_t> q(static_cast<std::size_t>(length));
    scaled_int8_quant({x.data(), DType::kF16, {length}}, {.scale = 1.0f}, {q.data(), DType::kInt8, {length}}, {});
    for (std::int64_t i = 0; i < length; ++i) EXPECT_EQ(q[static_cast<std::size_t>(i)], codes[i % 15]) << i;
  }
}

TEST(Int8, SaturatesAfterTheZeroPointIsAdded) {
  const Int8Scale scale = static_asymmetric_int8(1.0f, -128);
  EXPECT_EQ(quantize_int8(200.0f, scale), 72);
  EXPECT_EQ(quantize_int8(kInf, scale), 127);
  EXPECT_EQ(quantize_int8(-kInf, scale), -128);
  EXPECT_EQ(quantize_int8(kNaN, static_asymmetric_int8(1.0f, 20)), 20);
  EXPECT_EQ(quantize_int8(2.147483648e9f, static_asymmetric_int8(1.0f, std::numeric_limits<std::int32_t>::min())), 0);
  EXPECT_EQ(quantize_int8(kNaN, static_symmetric_int8(1.0f)), 0);
}

TEST(Int8, KeepsRowsTooSmallForAnInverse) {
  for (const float absmax : {1e-37f, 1e-38f, 3e-41f, 190 * 1.4e-45f, 1.4e-45f}) {
    const Int8Scale scale = dynamic_symmetric_int8(absmax);
    EXPECT_TRUE(std::isfinite(scale.inverse));
    const float back = scale.scale * static_cast<float>(quantize_int8(absmax, scale));
    EXPECT_NEAR(back / absmax, 1.0, 0.01) << absmax;
    const Int8Scale wide = dynamic_asymmetric_int8(-absmax, absmax);
    const float again = wide.scale * static_cast<float>(quantize_int8(absmax, wide) - wide.zero_point);
    EXPECT_LE(std::fabs(again - absmax), 1.01f * wide.scale) << absmax;
  }
}

TEST(Int8, AsymmetricRangesHoldZeroAndNeverOverflow) {
  const Int8Scale constant = dynamic_asymmetric_int8(3.0f, 3.0f);
  EXPECT_EQ(constant.zero_point, -128);
  EXPECT_FLOAT_EQ(constant.scale * static_cast<float>(quantize_int8(3.0f, constant) - constant.zero_point), 3.0f);
  const Int8Scale negative = dynamic_asymmetric_int8(-7.0f, -7.0f);
  EXPECT_EQ(negative.zero_point, 127);
  EXPECT_FLOAT_EQ(negative.scale * static_cast<float>(quantize_int8(-7.0f, negative) - negative.zero_point), -7.0f);
  const Int8Scale huge = dynamic_asymmetric_int8(-3e38f, 3e38f);
  EXPECT_FLOAT_EQ(huge.scale, static_cast<float>(6e38 / 255));
  EXPECT_EQ(quantize_int8(3e38f, huge), 127);
  EXPECT_EQ(quantize_int8(-3e38f, huge), -128);
}

TEST(Int8, MergesStaticRangesOfFusedParts) {
  const float scales[] = {0.5f, 0.5f};
  const std::int32_t zero_points[] = {20, -20}, equal[] = {20, 20};
  EXPECT_EQ(merge_static_int8(scales, equal).zero_point, 20);
  EXPECT_EQ(merge_static_int8(scales, equal).scale, 0.5f);
  const Int8StaticInput merged = merge_static_int8(scales, zero_points);
  EXPECT_FLOAT_EQ(merged.scale, 147.5f / 255);
  EXPECT_EQ(merged.zero_point, 0);
}

TEST(Epilogue, RoundsOnceAfterEachStepAndFusesTheBias) {
  EXPECT_EQ(correct_zero_point(120, 20, 10), -80);
  EXPECT_EQ(correct_zero_point(0, std::numeric_limits<std::int32_t>::max(), 1 << 30),
            -(std::int64_t{1} << 61) + (1 << 30));
  EXPECT_EQ(rescale_int8(446, 0.5f, 0.25f), 55.75f);
  EXPECT_EQ(rescale_int8(1 << 24, 1.0f, 1.0f + 0x1p-23f, -0x1p24f), 2.0f);
  EXPECT_EQ(rescale_int8((1 << 24) + 1, 1.0f, 1.0f), 0x1p24f);
}

// PB-06 for each row length and each input type that holds the value.
TEST(Fp8, ConvertsThePublicTable) {
  const std::pair<float, int> table[] = {
      {0.0f, 0x00},    {-0.0f, 0x80},    {0x1p-9f, 0x01},   {0x1p-10f, 0x00}, {0x3p-10f, 0x02}, {0x1p-6f, 0x08},
      {1.0f, 0x38},    {1.0625f, 0x38},  {1.1875f, 0x3a},   {240.0f, 0x77},   {255.0f, 0x78},   {256.0f, 0x78},
      {272.0f, 0x78},  {300.0f, 0x79},   {304.0f, 0x7a},    {400.0f, 0x7c},   {432.0f, 0x7e},   {447.0f, 0x7e},
      {448.0f, 0x7e},  {463.0f, 0x7e},   {464.0f, 0x7e},    {465.0f, 0x7e},   {500.0f, 0x7e},   {672.0f, 0x7e},
      {1000.0f, 0x7e}, {57344.0f, 0x7e}, {448512.0f, 0x7e}, {kInf, 0x7e},     {-300.0f, 0xf9},  {-1000.0f, 0xfe},
      {-kInf, 0xfe},   {kNaN, 0x7f}};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (std::int64_t length = 1; length <= 65; ++length) {
      std::vector<float> x;
      std::vector<int> expected;
      for (std::size_t i = 0; x.size() < static_cast<std::size_t>(length); ++i) {
        const auto& [value, code] = table[i % std::size(table)];
        float stored = 0.0f;
        store_f32(value, &stored, dtype, 0);
        if (!std::isnan(value) && load_f32(&stored, dtype, 0) != value) continue;
        x.push_back(value);
        expected.push_back(code);
      }
      std::vector<float> storage(x.size());
      for (std::int64_t i = 0; i < length; ++i) store_f32(x[static_cast<std::size_t>(i)], storage.data(), dtype, i);
      std::vector<std::uint8_t> q(x.size());
      scaled_fp8_quant({storage.data(), dtype, {length}}, {.scale = 1.0f}, {q.data(), DType::kE4M3FN, {length}}, {});
      for (std::size_t i = 0; i < q.size(); ++i) EXPECT_EQ(q[i], expected[i]) << x[i];
    }
  }
}

TEST(Fp8, LimitsFnuzTo224) {
  EXPECT_EQ(quantize_fp8(1e9f, static_fp8(1.0f), DType::kE4M3FNUZ), 0x7e);
  EXPECT_EQ(quantize_fp8(-236.0f, static_fp8(1.0f), DType::kE4M3FNUZ), 0xfe);
  EXPECT_EQ(quantize_fp8(kNaN, static_fp8(1.0f), DType::kE4M3FNUZ), 0x80);
  EXPECT_EQ(dynamic_token_fp8(448.0f, DType::kE4M3FNUZ).scale, 2.0f);
}

TEST(Fp8, RoundsGroupScalesUpToPowersOfTwo) {
  EXPECT_EQ(dynamic_group_fp8(672.0f, DType::kE4M3FN, true).scale, 2.0f);
  EXPECT_EQ(dynamic_group_fp8(448.0f, DType::kE4M3FN, true).scale, 1.0f);
  EXPECT_EQ(dynamic_group_fp8(std::nextafter(448.0f, kInf), DType::kE4M3FN, true).scale, 2.0f);
  EXPECT_EQ(dynamic_group_fp8(0.0f, DType::kE4M3FN, true).scale, 0x1p-33f);
}

// PB-03, the quantizers: zeros of either sign give codes of value 0 and finite scales, in each of five forms.
TEST(Quantizers, GiveZeroRowsFiniteScalesAndZeroCodes) {
  constexpr std::int64_t kRows = 4, kWidth = 256;
  for (const bool all_zero : {false, true}) {
    std::vector<float> x(kRows * kWidth, 0.0f);
    std::fill_n(x.begin() + 2 * kWidth, kWidth, -0.0f);
    if (!all_zero) x[kWidth] = x[3 * kWidth + 200] = 1.0f;
    const ConstTensorView view(x.data(), DType::kF32, {kRows, kWidth});
    std::vector<float> back(x.size());
    std::vector<float> scales(kRows * 2);
    for (const bool symmetric : {true, false}) {
      std::vector<std::int8_t> q(x.size());
      std::int32_t zero_points[kRows] = {};
      scaled_int8_quant(view, {.symmetric = symmetric}, {q.data(), DType::kInt8, view.shape},
                        {scales.data(), DType::kF32, {kRows}}, {zero_points, DType::kInt32, {kRows}});
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float scale = scales[i / kWidth];
        ASSERT_TRUE(std::isfinite(scale));
        ASSERT_NEAR(scale * static_cast<float>(q[i] - zero_points[i / kWidth]), x[i],
                    0x1p-20 + (symmetric ? 0 : scale / 2));
      }
    }
    for (const GroupShape group : {GroupShape::per_tensor(), GroupShape::per_token(), GroupShape{1, 128}}) {
      std::vector<std::uint8_t> q(x.size());
      const std::int64_t columns = group.col == 128 ? 2 : 1;
      const std::int64_t rows = group.is_per_tensor() ? 1 : kRows;
      scaled_fp8_quant(view, {.group = group}, {q.data(), DType::kE4M3FN, view.shape},
                       {scales.data(), DType::kF32, {rows, columns}});
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t row = rows == 1 ? 0 : i / kWidth;
        const std::size_t column = columns == 1 ? 0 : i % kWidth / 128;
        const float scale = scales[row * static_cast<std::size_t>(columns) + column];
        ASSERT_TRUE(std::isfinite(scale));
        ASSERT_NEAR(scale * e4m3fn_to_f32(q[i]), x[i], 0x1p-20) << group.text();
      }
    }
  }
}

TEST(Quantizers, KeepNonFiniteRowsToThemselves) {
  std::vector<float> x(3 * 8, 1.0f);
  x[8] = kInf;
  x[16] = kNaN;
  const ConstTensorView view(x.data(), DType::kF32, {3, 8});
  std::vector<std::int8_t> q(x.size());
  std::vector<std::uint8_t> codes(x.size());
  float scales[3] = {};
  std::int32_t zero_points[3] = {};
  for (const bool symmetric : {true, false}) {
    scaled_int8_quant(view, {.symmetric = symmetric}, {q.data(), DType::kInt8, view.shape}, {scales, DType::kF32, {3}},
                      {zero_points, DType::kInt32, {3}});
    EXPECT_TRUE(std::isfinite(scales[0]) && std::isnan(scales[1]) && std::isnan(scales[2]));
  }
  for (const GroupShape group : {GroupShape::per_token(), GroupShape{1, 8}}) {
    scaled_fp8_quant(view, {.group = group}, {codes.data(), DType::kE4M3FN, view.shape}, {scales, DType::kF32, {3}});
    EXPECT_TRUE(std::isfinite(scales[0]) && std::isnan(scales[1]) && std::isnan(scales[2]));
  }
  scaled_fp8_quant(view, {.group = GroupShape::per_tensor()}, {codes.data(), DType::kE4M3FN, view.shape},
                   {scales, DType::kF32, {1}});
  EXPECT_FLOAT_EQ(scales[0], 1.0f / 448);
  EXPECT_EQ(codes[8], 0x7f);
  EXPECT_EQ(codes[16], 0x7f);
  EXPECT_EQ(codes[9], 0x7e);
}

TEST(Quantizers, EqualTheGoldenVectors) {
  for (const nlohmann::json& entry : golden("quantizers")) {
    const std::vector<float> x = golden_floats(entry["x"]);
    const auto k = static_cast<std::int64_t>(x.size());
    const std::string kind = entry["kind"];
    const float scale = golden_float(entry["scale"]);
    float scale_out = scale;
    std::int32_t zero_point = 0;
    std::vector<int> codes;
    const ConstTensorView view(x.data(), DType::kF32, {k});
    const TensorView scale_view(&scale_out, DType::kF32, {1});
    if (kind.starts_with("int8")) {
      Int8QuantOptions options{.symmetric = entry["symmetric"]};
      zero_point = entry["zero_point"];
      if (kind == "int8_static") options.scale = scale;
      if (kind == "int8_static" && !options.symmetric) options.zero_point = zero_point;
      std::vector<std::int8_t> q(x.size());
      scaled_int8_quant(view, options, {q.data(), DType::kInt8, {k}}, scale_view, {&zero_point, DType::kInt32, {1}});
      codes.assign(q.begin(), q.end());
    } else {
      Fp8QuantOptions options;
      if (kind == "fp8_static") options.scale = scale;
      if (kind == "fp8_tensor") options.group = GroupShape::per_tensor();
      if (kind == "fp8_group") options.group = {1, k};
      options.ue8m0 = entry.value("ue8m0", false);
      if (entry.contains("upper_bound")) options.scale_ub = entry["upper_bound"];
      std::vector<std::uint8_t> q(x.size());
      scaled_fp8_quant(view, options, {q.data(), *dtype_from_name(entry["dtype"].get<std::string>()), {k}}, scale_view);
      codes.assign(q.begin(), q.end());
    }
    EXPECT_EQ(bits(scale_out), bits(scale)) << kind;
    EXPECT_EQ(zero_point, entry["zero_point"].get<int>()) << kind;
    EXPECT_EQ(codes, entry["q"].get<std::vector<int>>()) << entry.dump();
  }
}

TEST(Quantizers, HonourRowStrides) {
  std::vector<float> x(2 * 3 * 10, 99.0f);
  for (int row = 0; row < 6; ++row) {
    for (int k = 0; k < 4; ++k) x[static_cast<std::size_t>(row * 10 + k)] = static_cast<float>(row + 1);
  }
  const ConstTensorView view(x.data(), DType::kF32, Shape{2, 3, 4}, Shape{30, 10, 1});
  std::vector<std::int8_t> q(24);
  std::vector<float> scales(6);
  scaled_int8_quant(view, {}, {q.data(), DType::kInt8, {2, 3, 4}}, {scales.data(), DType::kF32, {6}});
  for (std::size_t row = 0; row < 6; ++row) EXPECT_FLOAT_EQ(scales[row], static_cast<float>(row + 1) / 127);
  for (const std::int8_t code : q) EXPECT_EQ(code, 127);
}

TEST(Quantizers, RefuseWrongArguments) {
  float x[8] = {};
  std::int8_t q[8];
  float scale = 0.0f;
  const ConstTensorView view(x, DType::kF32, {2, 4});
  const TensorView codes(q, DType::kInt8, {2, 4});
  EXPECT_THROW(scaled_int8_quant(view, {.scale = 0.0f}, codes, {}), InvalidArgument);
  EXPECT_THROW(scaled_int8_quant(view, {.scale = kNaN}, codes, {}), InvalidArgument);
  EXPECT_THROW(scaled_int8_quant(view, {.scale = 1.0f, .symmetric = false}, codes, {}), InvalidArgument);
  EXPECT_THROW(scaled_int8_quant(view, {}, codes, {&scale, DType::kF32, {1}}), InvalidArgument);
  EXPECT_THROW(scaled_int8_quant(view, {}, {q, DType::kInt8, {8}}, {x, DType::kF32, {2}}), InvalidArgument);
  EXPECT_THROW(scaled_fp8_quant(view, {.scale = -1.0f}, {q, DType::kE4M3FN, {2, 4}}, {}), InvalidArgument);
  EXPECT_THROW(scaled_fp8_quant(view, {.scale = 1.0f}, codes, {}), InvalidArgument);
  EXPECT_THROW(
      scaled_fp8_quant({x, DType::kF32, Shape{2, 2}, Shape{1, 2}}, {.scale = 1.0f}, {q, DType::kE4M3FN, {2, 2}}, {}),
      InvalidArgument);
}

TEST(QuantizeWeight, KeepsTheLargestWeightAndFillsRaggedBlocks) {
  constexpr std::int64_t kN = 5, kK = 7;
  std::vector<float> w;
  for (int i = 0; i < kN * kK; ++i) w.push_back(static_cast<float>(i * 37 % 19 - 9) / 8);
  for (const DType dtype : {DType::kInt8, DType::kE4M3FN, DType::kE4M3FNUZ, DType::kE5M2}) {
    for (const GroupShape group : {GroupShape::per_tensor(), GroupShape::per_channel(), GroupShape{2, 3}}) {
      const QuantizedWeight q = quantize_weight({w.data(), DType::kF32, {kN, kK}}, dtype, group);
      const std::int64_t rows = group.is_per_tensor() ? 1 : group.is_per_channel() ? 5 : 3;
      ASSERT_EQ(q.scale_rows, rows);
      ASSERT_EQ(q.scale_columns, group.col == 3 ? 3 : 1);
      for (std::int64_t i = 0; i < kN * kK; ++i) {
        const std::int64_t row = rows == 1 ? 0 : rows == 5 ? i / kK : i / kK / 2;
        const float scale =
            q.scales[static_cast<std::size_t>(row * q.scale_columns + (group.col == 3 ? i % kK / 3 : 0))];
        const std::uint8_t code = q.bytes[static_cast<std::size_t>(i)];
        const float value = scale * (dtype == DType::kInt8 ? static_cast<float>(static_cast<std::int8_t>(code))
                                                           : fp8_to_f32(code, dtype));
        const float exact = w[static_cast<std::size_t>(i)];
        const float relative = dtype == DType::kInt8 ? 0.0f : dtype == DType::kE5M2 ? 0.125f : 0.0626f;
        EXPECT_NEAR(value, exact, std::fabs(exact) * relative + (dtype == DType::kInt8 ? scale * 0.5001f : 1e-4f));
      }
    }
  }
}

TEST(QuantizeWeight, RefusesWeightsThatAreNotFinite) {
  float w[4] = {1, 2, kNaN, 4};
  try {
    quantize_weight({w, DType::kF32, {2, 2}}, DType::kInt8, GroupShape::per_channel());
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("[1, 0]"), std::string::npos);
  }
}

}  // namespace
}  // namespace scaledmm
