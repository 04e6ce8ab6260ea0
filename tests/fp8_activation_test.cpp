// What the fp8_w8a8 kernels have of their own: the vector quantizer against the scalar one, e5m2 activations, and the
// bytes of the AMX-FP8 products.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "exact.hpp"
#include "kernel_fixture.hpp"
#include "kernels/cpu/amx_fp8.hpp"
#include "kernels/cpu/fp8_activation.hpp"
#include "numerics/rows.hpp"

namespace scaledmm {
namespace {

constexpr DType kFp8Types[] = {DType::kE4M3FN, DType::kE4M3FNUZ, DType::kE5M2};

// Scales of every kind: dividing and multiplying, with and without NaN for Inf, some that drive values out of range.
std::vector<Fp8Scale> scales_for(DType dtype) {
  std::vector<Fp8Scale> scales = {dynamic_token_fp8(NAN, dtype), dynamic_tensor_fp8(0.0f, dtype)};
  for (const float value : {1.0f, 0.019f, 3.7f, 1e-30f, 0x1p-140f, 2e30f}) {
    scales.push_back(static_fp8(value));
    scales.push_back(dynamic_tensor_fp8(value, dtype));
    scales.push_back(dynamic_token_fp8(value, dtype));
    scales.push_back(dynamic_group_fp8(value, dtype));
    scales.push_back(dynamic_group_fp8(value, dtype, true));
  }
  return scales;
}

// Empty, or the first value whose code differs. A row with an Inf has a scale of NaN where it divides.
std::string first_wrong_code(const Matrix& x, const Fp8Scale& scale, DType dtype) {
  const std::int64_t count = x.columns;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
  fp8::quantize_values(x.bytes.data(), x.dtype, 0, count, scale, dtype, fp8::CodeForm::kBF16,
                       reinterpret_cast<std::byte*>(values.data()));
  const bool has_bytes = dtype != DType::kE4M3FNUZ;
  if (has_bytes) {
    fp8::quantize_values(x.bytes.data(), x.dtype, 0, count, scale, dtype, fp8::CodeForm::kByte,
                         reinterpret_cast<std::byte*>(codes.data()));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const float value = x.at(0, i);
    if (scale.divides && scale.inf_is_nan && !is_finite(value)) continue;
    const std::uint8_t code = quantize_fp8(value, scale, dtype);
    const float expected = fp8_to_f32(code, dtype), got = bf16_to_f32(values[at]);
    if (!(expected == got || (expected != expected && got != got)) || (has_bytes && codes[at] != code)) {
      return std::to_string(value) + " by " + std::to_string(scale.scale) + " gives " + std::to_string(got) + " (" +
             std::to_string(codes[at]) + "), expected " + std::to_string(expected) + " (" + std::to_string(code) + ")";
    }
  }
  return {};
}

TEST(Fp8Activation, HasTheCodesOfTheScalarQuantizerForEverySixteenBitValue) {
  for (const DType x_dtype : {DType::kBF16, DType::kF16}) {
    Matrix x(x_dtype, 1, 0x10000);
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      std::memcpy(x.bytes.data() + std::size_t{2} * bits, &bits, 2);
    }
    for (const DType dtype : kFp8Types) {
      for (const Fp8Scale& scale : scales_for(dtype)) ASSERT_EQ(first_wrong_code(x, scale, dtype), "") << name(dtype);
    }
  }
}

// Between two codes, and one step of f32 beside that, where rounding is decided.
TEST(Fp8Activation, HasTheCodesOfTheScalarQuantizerAroundTies) {
  for (const DType dtype : kFp8Types) {
    std::vector<float> values;
    for (int code = 0; code < 0x7f; ++code) {
      const float low = fp8_to_f32(static_cast<std::uint8_t>(code), dtype);
      const float high = fp8_to_f32(static_cast<std::uint8_t>(code + 1), dtype);
      if (!is_finite(high)) break;
      const float tie = low + (high - low) / 2;
      for (const float v : {low, std::nextafter(tie, low), tie, std::nextafter(tie, high)}) {
        values.push_back(v);
        values.push_back(-v);
      }
    }
    const auto count = static_cast<std::int64_t>(values.size());
    for (const std::int64_t size : {count, count - 1, count - 5}) {
      const Matrix x = make_matrix(DType::kF32, 1, size,
                                   [&](std::int64_t, std::int64_t k) { return values[static_cast<std::size_t>(k)]; });
      ASSERT_EQ(first_wrong_code(x, static_fp8(1.0f), dtype), "") << name(dtype);
      ASSERT_EQ(first_wrong_code(x, dynamic_group_fp8(fp8_quantized_max(dtype), dtype), dtype), "") << name(dtype);
    }
  }
}

TEST(Fp8Activation, TheLargestFiniteMagnitudeLeavesNanAndInfOut) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t k : {1, 7, 31, 64, 67, 129}) {
      Matrix x = make_activation(dtype, 3, k, 1, 5);
      x.set(0, k / 2, NAN);
      x.set(1, k - 1, -INFINITY);
      ApplyArguments arguments;
      arguments.x = x.bytes.data();
      arguments.x_dtype = dtype;
      arguments.x_stride = x.stride;
      float expected = 0.0f;
      for (std::int64_t m = 0; m < 3; ++m) {
        expected = std::max(expected, row_finite_absmax({x.bytes.data(), dtype, m * x.stride, k}));
      }
      EXPECT_EQ(fp8::finite_absmax(arguments, k, 0, 3), expected) << name(dtype) << " " << k;
    }
  }
}

class Fp8Kernels : public KernelTest {};

// Activations are e5m2 in no named key, but a configuration may ask for them.
TEST_P(Fp8Kernels, TakeE5M2Activations) {
  const QuantKey key = fp8_key(false, GroupShape::per_token(), true, DType::kF32, DType::kE5M2);
  for (const DType weight : {DType::kE4M3FN, DType::kE5M2}) {
    const Scheme scheme = fp8_scheme("fp8_w8a8_e5m2_activation", GroupShape::per_channel(), key, weight);
    if (!accepts(scheme, 35, 150)) continue;
    const LayerData data = make_layer(scheme, 35, 150);
    for (const std::int64_t m : {1, 17, 40}) {
      ASSERT_EQ(contract_violation(kernel(), data, make_activation(DType::kBF16, m, 150), nullptr, context()), "")
          << name(weight) << " M " << m;
    }
  }
}

// Long enough for several chunks of K and row blocks, with K blocks that no chunk boundary cuts evenly.
TEST_P(Fp8Kernels, MatchReferenceOverManyChunks) {
  for (const Scheme& scheme : all_schemes()) {
    if (scheme.is_int8() || !scheme.fp8().activation_quant_key || !accepts(scheme, 50, 1300)) continue;
    SCOPED_TRACE(scheme.name);
    const LayerData data = make_layer(scheme, 50, 1300, DType::kBF16, DType::kBF16);
    const Matrix bias = make_bias(DType::kBF16, 50);
    ASSERT_EQ(contract_violation(kernel(), data, make_activation(DType::kBF16, 70, 1300), &bias, context()), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Fp8Kernels, testing::ValuesIn(tested_kernels()), kernel_label);

// What an instruction says, by VEX and ModRM (Intel SDM vol. 2, 2.3).
struct Decoded {
  bool is_fp8_product = false;
  int pp = 0, dst = 0, a = 0, b = 0;
};

Decoded decode(const std::uint8_t* code) {
  Decoded d;
  const int byte1 = code[1], byte2 = code[2], modrm = code[4];
  const bool plain_registers = (byte1 & 0xe0) == 0xe0;  // R, X and B are stored inverted: no register above 7
  const bool is_128_w0 = (byte2 & 0x84) == 0;
  const bool is_map5 = (byte1 & 0x1f) == 5;
  d.is_fp8_product = code[0] == 0xc4 && plain_registers && is_map5 && is_128_w0 && code[3] == 0xfd && modrm >= 0xc0;
  d.pp = byte2 & 3;
  d.b = ~(byte2 >> 3) & 15;
  d.dst = modrm >> 3 & 7;
  d.a = modrm & 7;
  return d;
}

// The first instruction of map 5 in the machine code of a function, which ends with a return.
template <native::Fp8Product kProduct, int kDst, int kA, int kB>
const std::uint8_t* emitted() {
  const auto* code = reinterpret_cast<const std::uint8_t*>(&native::tile_fp8_product<kProduct, kDst, kA, kB>);
  for (int i = 0; i < 64; ++i) {
    if (code[i] == 0xc4 && code[i + 3] == 0xfd) return code + i;
  }
  return nullptr;
}

template <native::Fp8Product kProduct, int kDst, int kA, int kB>
void expect_decodes() {
  const std::uint8_t* code = emitted<kProduct, kDst, kA, kB>();
  ASSERT_NE(code, nullptr);
  const Decoded d = decode(code);
  EXPECT_TRUE(d.is_fp8_product);
  EXPECT_EQ(d.pp, static_cast<int>(kProduct));
  EXPECT_EQ(d.dst, kDst);
  EXPECT_EQ(d.a, kA);
  EXPECT_EQ(d.b, kB);
}

// tmm1, tmm2, tmm3 as LLVM 22 assembles them.
TEST(AmxFp8, EmitsTheDocumentedBytes) {
  const auto bytes = [](const std::uint8_t* code) { return std::vector<std::uint8_t>(code, code + 5); };
  using enum native::Fp8Product;
  EXPECT_EQ(bytes(emitted<kE5M2E5M2, 1, 2, 3>()), (std::vector<std::uint8_t>{0xc4, 0xe5, 0x60, 0xfd, 0xca}));
  EXPECT_EQ(bytes(emitted<kE4M3E4M3, 1, 2, 3>()), (std::vector<std::uint8_t>{0xc4, 0xe5, 0x61, 0xfd, 0xca}));
  EXPECT_EQ(bytes(emitted<kE4M3E5M2, 1, 2, 3>()), (std::vector<std::uint8_t>{0xc4, 0xe5, 0x62, 0xfd, 0xca}));
  EXPECT_EQ(bytes(emitted<kE5M2E4M3, 1, 2, 3>()), (std::vector<std::uint8_t>{0xc4, 0xe5, 0x63, 0xfd, 0xca}));
}

TEST(AmxFp8, EncodesEveryOperandInItsField) {
  using enum native::Fp8Product;
  expect_decodes<kE4M3E4M3, 0, 4, 6>();
  expect_decodes<kE4M3E4M3, 1, 4, 7>();
  expect_decodes<kE4M3E4M3, 2, 5, 6>();
  expect_decodes<kE4M3E4M3, 3, 5, 7>();
  expect_decodes<kE4M3E5M2, 7, 0, 1>();
  expect_decodes<kE5M2E4M3, 5, 3, 0>();
  expect_decodes<kE5M2E5M2, 6, 7, 2>();
}

}  // namespace
}  // namespace scaledmm
