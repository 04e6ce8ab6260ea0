// Small cases with right answers, from faults that other people's kernels had. Every kernel that takes a case runs it.
#include <gtest/gtest.h>

#include "public_case.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

TEST_P(PublicCase, Pb01_TheZeroPointReachesTheCorrection) {
  const float x_values[2][4] = {{-10, 0, 5, 53.5f}, {1, 2, 3, 4}};
  const int w[3][4] = {{1, 2, 3, 4}, {-5, 6, -7, 8}, {127, -128, 1, 0}};
  const float scales[] = {0.25f, 0.5f, 1}, biases[] = {1, -1, 0.5f};
  const float expected[2][3] = {{55.75f, 220.5f, -1264.5f}, {8.5f, 8, -125.5f}};
  LayerData data = layer_of(
      int8_scheme("azp", true, true, false), 3, 4, [&](auto n, auto k) { return int8(w[n][k]); },
      [&](auto n, auto) { return scales[n]; });
  if (!takes(data)) return;
  data.input_scale = 0.5f;
  data.input_zero_point = 20;
  const Matrix bias = make_matrix(DType::kF32, 1, 3, [&](auto, auto n) { return biases[n]; });
  const Matrix y = run(data, make_matrix(DType::kBF16, 2, 4, [&](auto m, auto k) { return x_values[m][k]; }), &bias);
  for (int m = 0; m < 2; ++m) {
    const Matrix alone =
        run(data, make_matrix(DType::kBF16, 1, 4, [&](auto, auto k) { return x_values[m][k]; }), &bias);
    for (int n = 0; n < 3; ++n) {
      EXPECT_EQ(y.at(m, n), expected[m][n]);
      EXPECT_EQ(alone.at(0, n), expected[m][n]);
    }
  }
}

TEST_P(PublicCase, Pb03_ZeroRowsGiveTheBias) {
  constexpr std::int64_t kK = 256, kN = 8;
  const std::vector<Scheme> schemes = {int8_dynamic(), int8_scheme("azp", false, true, false),
                                       fp8_scheme("token", kChannel, kFp8DynamicTokenSym),
                                       fp8_scheme("tensor", kTensor, kFp8DynamicTensorSym), block_schemes()[0]};
  const Matrix bias = make_matrix(DType::kF32, 1, kN, [](auto, auto n) { return static_cast<float>(n); });
  for (const Scheme& scheme : schemes) {
    const LayerData data = layer_of(scheme, kN, kK, all(scheme.is_int8() ? 1 : kOne), constant(0.5f), DType::kF32);
    if (!takes(data)) continue;
    for (const float one : {1.0f, 0.0f, 1000.0f}) {
      const Matrix y =
          run(data,
              make_matrix(DType::kF32, 4, kK,
                          [&](auto m, auto k) {
                            if (m == 2) return -0.0f;
                            return m == 1 && k == 0 ? one : m == 3 && k == 200 ? std::min(one, 1.0f) : 0.0f;
                          }),
              &bias);
      const double quantum = one / 255 * 0.5;
      const double slack = scheme.is_int8() && !std::get<Int8ScaledMMLinearLayerConfig>(scheme.config).input_symmetric
                               ? quantum / 2 + 1e-5
                               : one * 0x1p-20;
      for (std::int64_t n = 0; n < kN; ++n) {
        EXPECT_EQ(y.at(0, n), static_cast<float>(n)) << scheme.name << " " << one;
        EXPECT_EQ(y.at(2, n), static_cast<float>(n)) << scheme.name << " " << one;
        EXPECT_NEAR(y.at(1, n), one / 2 + static_cast<float>(n), slack + 1e-6 * one) << scheme.name;
        if (one > 1 && scheme.name == "tensor") continue;  // row 1 sets the scale of row 3
        EXPECT_NEAR(y.at(3, n), std::min(one, 1.0f) / 2 + static_cast<float>(n), slack + 1e-6) << scheme.name;
      }
    }
  }
}

TEST_P(PublicCase, Pb04_TheFullSignedRange) {
  const auto value = [](std::int64_t row, std::int64_t k) -> std::int64_t {
    if (row == 0) return 127;
    if (row == 1) return -128;
    return row == 2 ? (k % 2 ? -128 : 127) : 37 * k % 256 - 128;
  };
  const double expected64[4][4] = {{1032256, -1040384, -4064, -52832},
                                   {-1040384, 1048576, 4096, 53248},
                                   {-4064, 4096, 1040416, 12448},
                                   {-52832, 53248, 12448, 360544}};
  const double expected65[4][4] = {{1048385, -1056640, 12065, -60960},
                                   {-1056640, 1064960, -12160, 61440},
                                   {12065, -12160, 1056545, 4320},
                                   {-60960, 61440, 4320, 364640}};
  for (const std::int64_t k : {64, 65}) {
    LayerData data = layer_of(
        int8_scheme("static", true, true, true), 4, k, [&](auto n, auto j) { return int8(value(n, j)); },
        constant(1.0f));
    if (!takes(data)) continue;
    data.input_scale = 1.0f;
    const Matrix y =
        run(data, make_matrix(DType::kBF16, 4, k, [&](auto m, auto j) { return static_cast<float>(value(m, j)); }));
    for (int m = 0; m < 4; ++m) {
      for (int n = 0; n < 4; ++n) EXPECT_EQ(y.at(m, n), (k == 64 ? expected64 : expected65)[m][n]) << k;
    }
  }
}

TEST_P(PublicCase, Pb05_SumsDoNotPassThroughFloat) {
  constexpr std::int64_t kK = 65536;
  const auto w = [](std::int64_t, std::int64_t k) {
    if (k == kK - 1) return int8(-126);
    const std::int64_t base = k % (kK / 2) % 64 == 0 ? 126 : 127;
    return int8(k < kK / 2 ? base : -base);
  };
  for (const std::int64_t n : {1, 16}) {
    LayerData data = layer_of(int8_scheme("static", true, true, true), n, kK, w, constant(1.0f));
    if (!takes(data)) continue;
    data.input_scale = 1.0f;
    for (const std::int64_t m : {1, 17}) {
      const Matrix y = run(data, make_matrix(DType::kBF16, m, kK, constant(127.0f)));
      for (std::int64_t i = 0; i < m * n; ++i) EXPECT_EQ(y.at(i / n, i % n), 127.0f);
    }
  }
}

TEST_P(PublicCase, Pb07_SmallAddendsBesideALargeOne) {
  constexpr std::int64_t kK = 8192, kN = 64;
  const std::vector<Scheme> schemes = {fp8_scheme("static", kTensor, kFp8StaticTensorSym),
                                       fp8_scheme("token", kTensor, kFp8DynamicTokenSym),
                                       fp8_scheme("w8a16", kTensor, std::nullopt), block_schemes()[0]};
  for (const Scheme& scheme : schemes) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      LayerData data = layer_of(scheme, kN, kK, all(kOne), constant(1.0f), DType::kBF16, out);
      if (!takes(data)) continue;
      if (data.input_scale) data.input_scale = 1.0f;
      for (const std::int64_t m : {1, 32}) {
        const Matrix y =
            run(data, make_matrix(DType::kBF16, m, kK, [](auto, auto k) { return k == 0 ? 448.0f : 0x1p-6f; }));
        const double slack = scheme.name == "fp8_w8a8_block" ? 0x1p-18 * 576 : 0.0;
        for (std::int64_t i = 0; i < m * kN; ++i)
          ASSERT_NEAR(y.at(i / kN, i % kN), out == DType::kBF16 ? 576.0 : 575.984375, slack) << scheme.name;
      }
    }
  }
}

TEST_P(PublicCase, Pb08_ScalesAndBiasComeBeforeNarrowing) {
  LayerData fp8 = layer_of(fp8_scheme("static", kTensor, kFp8StaticTensorSym), 3, 128, all(0x7e), constant(0x1p-12f),
                           DType::kF16, DType::kF16);
  if (takes(fp8)) {
    fp8.input_scale = 0x1p-6f;
    EXPECT_EQ(run(fp8, make_matrix(DType::kF16, 2, 128, constant(7.0f))).at(1, 2), 98.0f);
  }
  LayerData w8a16 = layer_of(fp8_scheme("w8a16", kTensor, std::nullopt), 3, 128, all(0x7e), constant(0x1p-12f),
                             DType::kF16, DType::kF16);
  if (takes(w8a16)) {
    EXPECT_EQ(run(w8a16, make_matrix(DType::kF16, 2, 128, constant(7.0f))).at(1, 2), 98.0f);
  }
  LayerData data = layer_of(int8_scheme("static", true, false, true), 3, 512, all(127), constant(0x1p-15f), DType::kF16,
                            DType::kF16);
  if (!takes(data)) return;
  data.input_scale = 0x1p-3f;
  const Matrix x = make_matrix(DType::kF16, 2, 512, constant(127.0f / 8));
  const Matrix bias = make_matrix(DType::kF16, 1, 3, constant(0x1p-7f));
  EXPECT_EQ(run(data, x).at(1, 2), 31.5f);
  EXPECT_EQ(run(data, x, &bias).at(1, 2), 31.515625f);
}

TEST_P(PublicCase, Pb09_EachBandHasItsOwnScaleOnce) {
  const auto w_scale = [](std::int64_t n, std::int64_t k) { return (n ? 3.0f : 1.0f) * (k ? 0.5f : 1.0f); };
  for (const DType out : {DType::kF32, DType::kBF16}) {
    for (const Scheme& scheme : block_schemes()) {
      const LayerData data = layer_of(scheme, 256, 256, all(kOne), w_scale, DType::kBF16, out);
      if (!takes(data)) continue;
      const Matrix y = run(data, make_matrix(DType::kBF16, 256, 256, [](auto m, auto k) {
                             return 448.0f * (m < 128 ? 2.0f : 4.0f) * (k < 128 ? 1.0f : 8.0f);
                           }));
      for (std::int64_t m = 0; m < 256; ++m) {
        for (std::int64_t n = 0; n < 256; ++n)
          ASSERT_EQ(y.at(m, n), 448.0f * 1280.0f * (m < 128 ? 1 : 2) * (n < 128 ? 1 : 3)) << scheme.name;
      }
    }
  }
  for (const Scheme& scheme : block_schemes()) {
    const LayerData rows = layer_of(scheme, 128, 256, all(kOne), constant(1.0f));
    const LayerData grid =
        layer_of(scheme, 256, 256, all(kOne), [](auto n, auto k) { return std::exp2f(static_cast<float>(2 * n + k)); });
    if (!takes(rows) || !takes(grid)) continue;
    const Matrix y = run(rows, make_matrix(DType::kBF16, 2, 256, [](auto m, auto k) {
                           return 448.0f * std::exp2f(static_cast<float>(2 * m + k / 128));
                         }));
    EXPECT_EQ(y.at(0, 127), 448.0f * 384);
    EXPECT_EQ(y.at(1, 0), 448.0f * 1536);
    const Matrix z = run(grid, make_matrix(DType::kBF16, 1, 256, constant(448.0f)));
    EXPECT_EQ(z.at(0, 127), 448.0f * 384);
    EXPECT_EQ(z.at(0, 128), 448.0f * 1536);
  }
}

TEST_P(PublicCase, Pb10_AllSortsOfBatchesAndKBlocks) {
  for (const Scheme& scheme : block_schemes()) {
    for (const std::int64_t k : {384, 128, 640}) {
      const LayerData data = data_f_layer(scheme, 256, k, 1);
      if (!takes(data)) continue;
      const Matrix x = make_matrix(DType::kBF16, 257, k, data_f_x);
      const LinearKernel& reference = native::reference();
      const Matrix expected = apply(reference, data.process(reference, context()), x, nullptr, context());
      for (const std::int64_t m :
           {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 20, 24, 28, 31, 32, 33, 63, 64, 65, 127, 129, 255, 257}) {
        const Matrix y = run(data, make_matrix(DType::kBF16, m, k, data_f_x));
        for (std::int64_t i = 0; i < m; ++i)
          ASSERT_EQ(y.row(i), expected.row(i)) << scheme.name << " K " << k << " M " << m;
        if (k != 384) continue;
        if (m == 1) {
          EXPECT_EQ(sum_of(y), 13.125);
        } else if (m == 17) {
          EXPECT_EQ(sum_of(y), -20.375);
        }
      }
      if (k != 384) continue;
      EXPECT_EQ(sum_of(expected), 28.6875);
      const std::tuple<int, int, float> values[] = {
          {0, 0, 16.625f},  {0, 1, 8.375f},     {0, 128, -12.625f}, {1, 0, 14},        {1, 255, 11.5f},     {2, 77, 49},
          {3, 130, -32.5f}, {16, 200, 5.8125f}, {32, 5, -25.25f},   {256, 0, 11.125f}, {256, 255, -4.4375f}};
      for (const auto& [m, n, value] : values) EXPECT_EQ(expected.at(m, n), value);
    }
  }
}

TEST_P(PublicCase, Pb11_LastBlocksAreNotFull) {
  for (const Scheme& scheme : block_schemes()) {
    const LayerData a = data_f_layer(scheme, 200, 320, 2), b = data_f_layer(scheme, 16, 1024, 1);
    if (takes(a)) {
      const Matrix y = run(a, make_matrix(DType::kBF16, 5, 320, data_f_x));
      const std::tuple<int, int, float> values[] = {{0, 0, 19.5625f},    {0, 127, 5.875f}, {0, 128, -10.6875f},
                                                    {0, 199, -0.03125f}, {3, 150, 79.25f}, {4, 0, 8.71875f},
                                                    {4, 199, -1.734375f}};
      for (const auto& [m, n, value] : values) EXPECT_EQ(y.at(m, n), value);
      EXPECT_EQ(sum_of(y), 0.734375);
      for (const Shape& wrong : {Shape{2, 2}, Shape{200, 3}}) {
        LayerData data = a;
        data.scale = make_matrix(DType::kF32, wrong[0], wrong[1], constant(1.0f));
        try {
          data.process(kernel(), context());
          ADD_FAILURE() << "took scales of shape " << wrong.text();
        } catch (const InvalidArgument& error) {
          const std::string text = error.what();
          EXPECT_NE(text.find(wrong.text()), std::string::npos) << text;
          EXPECT_NE(text.find("[2, 3]"), std::string::npos) << text;
        }
      }
    }
    if (takes(b)) {
      const Matrix y = run(b, make_matrix(DType::kBF16, 5, 1024, data_f_x));
      EXPECT_EQ(y.at(0, 0), 17.38671875f);
      EXPECT_EQ(y.at(0, 15), 7.3515625f);
      EXPECT_EQ(y.at(2, 7), 49.96875f);
    }
  }
}

TEST_P(PublicCase, Pb13_ThreeDimensionsAndGapsBetweenRows) {
  constexpr std::int64_t kK = 320, kN = 96;
  const std::vector<LayerData> layers = {layer_of(int8_dynamic(), kN, kK, data_8_w, data_8_scale),
                                         data_f_layer(block_schemes()[0], kN, kK, 1),
                                         data_f_layer(block_schemes()[1], kN, kK, 1)};
  for (const LayerData& data : layers) {
    if (!takes(data)) continue;
    const bool is_int8 = data.weight.dtype == DType::kInt8;
    const Matrix buffer = make_matrix(DType::kBF16, 16, kK, is_int8 ? data_8_x : data_f_x);
    const Layer layer = data.process(kernel(), context());
    const std::byte* begin = buffer.bytes.data() + 3 * kK * 2;
    const ConstTensorView slice(begin, DType::kBF16, Shape{2, 5, kK}, Shape{8 * kK, kK, 1});
    Matrix y(DType::kF32, 10, kN);
    kernel().apply_weights(layer, slice, {}, TensorView(y.bytes.data(), DType::kF32, {2, 5, kN}), context());
    const auto source = [](std::int64_t row) { return row / 5 * 8 + row % 5 + 3; };
    const Matrix packed = make_matrix(DType::kBF16, 10, kK, [&](auto m, auto k) { return buffer.at(source(m), k); });
    EXPECT_EQ(first_difference(y, apply(kernel(), layer, packed, nullptr, context())), "");
    const ConstTensorView transposed(buffer.bytes.data(), DType::kBF16, Shape{2, kK}, Shape{1, 2});
    try {
      kernel().apply_weights(layer, transposed, {}, TensorView(y.bytes.data(), DType::kF32, {2, kN}), context());
      ADD_FAILURE() << "took a transposed x";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("last dimension must be contiguous"), std::string::npos) << error.what();
    }
  }
}

TEST_P(PublicCase, Pb14_FusedPartsOfUnequalWidth) {
  constexpr std::int64_t kN = 96, kK = 32;
  const std::vector<Scheme> schemes = {int8_scheme("int8", true, false, true),
                                       fp8_scheme("w8a8", kTensor, kFp8StaticTensorSym),
                                       fp8_scheme("w8a16", kTensor, std::nullopt)};
  for (const Scheme& scheme : schemes) {
    LayerData data = layer_of(scheme, kN, kK, all(scheme.is_int8() ? 1 : kOne), constant(1.0f));
    if (!takes(data)) continue;
    const float parts[] = {0.5f, 2.0f, 0.125f};
    if (data.input_scale) data.input_scale = 1.0f;
    data.widths = {64, 16, 16};
    data.scale = make_matrix(DType::kF32, 1, 3, [&](auto, auto part) { return parts[part]; });
    const Matrix x = make_matrix(DType::kBF16, 2, kK, constant(1.0f));
    Matrix y = run(data, x);
    for (std::int64_t n = 0; n < kN; ++n)
      EXPECT_EQ(y.at(1, n), n < 64 ? 16 : n < 80 ? 64 : 4) << scheme.name << " " << n;
    data.scale = make_matrix(DType::kF32, 1, 1, constant(2.0f));
    y = run(data, x);
    for (std::int64_t n = 0; n < kN; ++n) EXPECT_EQ(y.at(1, n), 64) << scheme.name << " " << n;
  }
}

// The kernels' share of a split: a slice that begins inside a block.
TEST_P(PublicCase, Pb15_SlicesBeginInsideABlock) {
  for (Scheme scheme : block_schemes()) {
    for (const std::int64_t size : {96, 48}) {
      for (std::int64_t begin = 0; begin < 192; begin += size) {
        const auto scale_of = [&](std::int64_t block) { return begin / 128 + block == 0 ? 1.0f : 4.0f; };
        scheme.offset_n = begin % 128;
        scheme.offset_k = 0;
        LayerData rows = layer_of(
            scheme, size, 128, all(kOne), [&](auto block, auto) { return scale_of(block); }, DType::kF32);
        scheme.offset_n = 0;
        scheme.offset_k = begin % 128;
        LayerData columns = layer_of(
            scheme, 128, size, all(kOne), [&](auto, auto block) { return scale_of(block); }, DType::kF32);
        if (!takes(rows) || !takes(columns)) continue;
        const Matrix y = run(rows, make_matrix(DType::kF32, 1, 128, constant(1.0f)));
        for (std::int64_t n = 0; n < size; ++n) EXPECT_FLOAT_EQ(y.at(0, n), begin + n < 128 ? 128 : 512);
        double expected = 0.0;
        for (std::int64_t k = begin; k < begin + size; ++k) expected += k < 128 ? 1 : 4;
        const Matrix z = run(columns, make_matrix(DType::kF32, 1, size, constant(1.0f)));
        EXPECT_FLOAT_EQ(z.at(0, 127), static_cast<float>(expected));
      }
    }
  }
}

TEST_P(PublicCase, Pb18_ShapesAndTypesOfScales) {
  constexpr std::int64_t kSize = 64;
  const std::vector<Scheme> channel = {int8_scheme("int8", true, true, true),
                                       fp8_scheme("w8a8", kChannel, kFp8StaticTensorSym),
                                       fp8_scheme("w8a16", kChannel, std::nullopt)};
  const std::vector<Scheme> tensor = {int8_scheme("int8", true, false, true),
                                      fp8_scheme("w8a8", kTensor, kFp8StaticTensorSym),
                                      fp8_scheme("w8a16", kTensor, std::nullopt)};
  for (std::size_t i = 0; i < channel.size(); ++i) {
    LayerData data = make_layer(channel[i], kSize, kSize);
    if (!takes(data)) continue;
    data.weight = make_codes(data.weight.dtype, kSize, kSize, all(channel[i].is_int8() ? 1 : kOne));
    if (data.input_scale) data.input_scale = 1.0f;
    const Matrix x = make_matrix(DType::kBF16, 1, kSize, constant(1.0f));
    const auto run_with = [&](const Matrix& scale, const Shape& shape, const LayerConfig& config) {
      LayerWeights weights = data.weights();
      weights.weight_scale = ConstTensorView(scale.bytes.data(), scale.dtype, shape);
      Layer layer(config, weights, "proj");
      kernel().process_weights_after_loading(layer, context());
      return apply(kernel(), layer, x, nullptr, context());
    };
    for (const DType dtype : kFloats) {
      const Matrix scale =
          make_matrix(dtype, kSize, 1, [](auto n, auto) { return std::exp2f(static_cast<float>(n % 4)); });
      for (const Shape& shape : {Shape{kSize}, Shape{kSize, 1}, Shape{1, kSize}}) {
        const Matrix y = run_with(scale, shape, data.config);
        for (std::int64_t n = 0; n < kSize; ++n) EXPECT_EQ(y.at(0, n), std::ldexp(64.0f, static_cast<int>(n % 4)));
      }
      LayerConfig config = tensor[i].config;
      set_shape(config, kSize, kSize, DType::kBF16, DType::kF32);
      const Matrix two = make_matrix(dtype, 1, 1, constant(2.0f));
      for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}})
        EXPECT_EQ(run_with(two, shape, config).at(0, 63), 128.0f);
    }
    const Matrix large = make_matrix(DType::kF32, kSize, kSize, constant(1.0f));
    for (const Shape& wrong : {Shape{32}, Shape{kSize, kSize}, Shape{2}}) {
      try {
        run_with(large, wrong, data.config);
        ADD_FAILURE() << "took scales of shape " << wrong.text();
      } catch (const InvalidArgument& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("weight_scale"), std::string::npos) << text;
        EXPECT_NE(text.find(std::to_string(wrong.elements())), std::string::npos) << text;
        EXPECT_NE(text.find("64"), std::string::npos) << text;
      }
    }
  }
}

TEST_P(PublicCase, Pb19_ScalesThatAreNotNumbersAreRefused) {
  const std::vector<Scheme> schemes = {int8_scheme("int8", true, true, true),
                                       fp8_scheme("w8a8", kChannel, kFp8StaticTensorSym),
                                       fp8_scheme("w8a16", kChannel, std::nullopt)};
  for (const Scheme& scheme : schemes) {
    LayerData data = make_layer(scheme, 128, 128);
    if (!takes(data)) continue;
    for (const float wrong : {NAN, INFINITY, -3.4028e38f, -1.0f, 0.0f}) {
      LayerData broken = data;
      broken.scale.set(77, 0, wrong);
      EXPECT_THROW(broken.process(kernel(), context()), InvalidArgument) << wrong;
      if (!data.input_scale) continue;
      broken = data;
      broken.input_scale = wrong;
      EXPECT_THROW(broken.process(kernel(), context()), InvalidArgument) << wrong;
    }
    LayerWeights weights = data.weights();
    weights.weight_scale = {};
    Layer layer(data.config, weights);
    EXPECT_THROW(kernel().process_weights_after_loading(layer, context()), InvalidArgument);
  }
}

TEST_P(PublicCase, Pb22_EveryTierGivesTheSameBits) {
  constexpr std::int64_t kK = 320, kN = 96;
  const LayerData data = layer_of(int8_dynamic(), kN, kK, data_8_w, data_8_scale);
  if (!takes(data)) return;
  const Matrix x = make_matrix(DType::kBF16, 257, kK, data_8_x);
  const Matrix y = run(data, x);
  const std::tuple<int, int, float> values[] = {{0, 0, 152935},   {0, 1, 60610},        {1, 0, 148875},
                                                {2, 3, 11822.5f}, {7, 95, -5611.875f},  {16, 17, -3570},
                                                {33, 48, -64640}, {64, 31, -6466.875f}, {256, 95, -7800}};
  for (const auto& [m, n, value] : values) EXPECT_EQ(y.at(m, n), value);
  for (const std::int64_t m : {1, 33}) {
    const Matrix part = run(data, make_matrix(DType::kBF16, m, kK, data_8_x));
    for (std::int64_t i = 0; i < m; ++i) EXPECT_EQ(part.row(i), y.row(i));
  }
}

TEST_P(PublicCase, Pb23_TheBiasKeepsItsOrder) {
  constexpr std::int64_t kN = 192, kK = 128;
  for_each_scheme(kN, kK, [&](const Scheme& scheme) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      LayerData data = make_layer(scheme, kN, kK, DType::kBF16, out);
      data.weight = make_codes(data.weight.dtype, kN, kK, all(0));
      const Matrix bias = make_matrix(DType::kF32, 1, kN, [](auto, auto n) { return static_cast<float>(n); });
      for (const std::int64_t m : {1, 3, 33}) {
        const Matrix y =
            run(data, make_matrix(DType::kBF16, m, kK, [&](auto i, auto k) { return data_r_x(i, k, kK); }), &bias);
        for (std::int64_t i = 0; i < m * kN; ++i) ASSERT_EQ(y.at(i / kN, i % kN), static_cast<float>(i % kN));
      }
    }
  });
}

TEST_P(PublicCase, Pb24_SameRowSameAnswer) {
  constexpr std::int64_t kN = 256, kK = 640;
  const std::vector<Scheme> schemes = {int8_dynamic(), fp8_scheme("w8a8", kChannel, kFp8DynamicTokenSym),
                                       fp8_scheme("w8a16", kChannel, std::nullopt), block_schemes()[0],
                                       block_schemes()[1]};
  const int repeats = GetParam().emulated || kernel().info().isa == Isa::kScalar ? 2 : 50;
  Context one(Threading{.threads = 1}), every;
  for (const Scheme& scheme : schemes) {
    LayerData data = make_layer(scheme, kN, kK, DType::kBF16, DType::kF32);
    data.scale = make_matrix(DType::kF32, data.scale.rows, data.scale.columns, constant(0x1p-8f));
    if (!takes(data)) continue;
    const Layer layer = data.process(kernel(), context());
    const Matrix alone =
        apply(kernel(), layer, make_matrix(DType::kBF16, 1, kK, [](auto, auto k) { return data_r_x(0, k, kK); }),
              nullptr, one);
    for (const std::int64_t m : {1, 2, 5, 16, 17, 32, 33, 64, 128, 129}) {
      const Matrix x =
          make_matrix(DType::kBF16, m, kK, [&](auto i, auto k) { return data_r_x(i == m - 1 ? 0 : i, k, kK); });
      for (int repeat = 0; repeat < repeats; ++repeat) {
        Context& chosen = repeat % 3 == 0 ? one : repeat % 3 == 1 ? context() : every;
        const Matrix y = apply(kernel(), layer, x, nullptr, chosen);
        ASSERT_EQ(y.row(0), alone.row(0)) << scheme.name << " M " << m;
        ASSERT_EQ(y.row(m - 1), alone.row(0)) << scheme.name << " M " << m;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PublicCase, testing::ValuesIn(tested_kernels()), kernel_label);

}  // namespace
}  // namespace scaledmm
