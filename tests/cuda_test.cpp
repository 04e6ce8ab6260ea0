// The contract of the GPU kernels, on a GPU: against the reference on the host, under graphs and streams, at large
// offsets.
#include <array>

#include "cuda_fixture.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/quantize.hpp"

namespace scaledmm {
namespace {

class GpuContract : public GpuKernelTest {};

TEST_P(GpuContract, MatchesReferenceAtTileEdges) {
  constexpr std::int64_t kEdges[] = {1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257};
  for_each_scheme([&](const Scheme& scheme) {
    for (const std::int64_t edge : kEdges) {
      for (const auto& [m, n, k] :
           {std::array<std::int64_t, 3>{3, edge, 67}, {5, 19, edge}, {17, edge, edge}, {edge, 33, 144}}) {
        const LayerData data = make_layer(scheme, n, k);
        const Matrix bias = make_bias(DType::kF32, n);
        ASSERT_EQ(violation(data, make_activation(DType::kBF16, m, k), &bias), "")
            << "M " << m << " N " << n << " K " << k;
      }
    }
  });
}

// Upstream's sweep of M, and the limits of its tiles.
TEST_P(GpuContract, MatchesReferenceForEveryBatch) {
  for_each_scheme([&](const Scheme& scheme) {
    for (const std::int64_t size : {32, 96}) {
      const LayerData data = make_layer(scheme, size, size, DType::kBF16, DType::kBF16);
      for (std::int64_t m = 1; m < 128; m += size == 96 ? 5 : 1) {
        ASSERT_EQ(violation(data, make_activation(DType::kBF16, m, size), nullptr), "")
            << "M " << m << " N, K " << size;
      }
    }
  });
}

// Upstream's unaligned sizes, and widths of models that break alignments, reduced in the long direction.
TEST_P(GpuContract, MatchesReferenceOnModelShapes) {
  const std::int64_t shapes[][3] = {{16, 100, 200},  {33, 255, 513}, {32, 684, 1280}, {1, 342, 1280},  {64, 256, 496},
                                    {100, 192, 496}, {2, 576, 1376}, {7, 64, 3884},   {257, 131, 448}, {512, 96, 256}};
  for (const auto& [m, n, k] : shapes) {
    for_each_scheme([&, m = m, n = n, k = k](const Scheme& scheme) {
      const LayerData data = make_layer(scheme, n, k, DType::kBF16, DType::kBF16);
      ASSERT_EQ(violation(data, make_activation(DType::kBF16, m, k), nullptr), "")
          << "M " << m << " N " << n << " K " << k;
    });
  }
}

// (q - zx) w summed over the longest K, all of one sign: past 2^32.
TEST_P(GpuContract, KeepsSumsThatLeave32Bits) {
  constexpr std::int64_t kM = 3, kN = 20, kK = 131071;
  for_each_scheme([&](const Scheme& scheme) {
    if (!scheme.is_int8()) return;
    LayerData data = make_layer(scheme, kN, kK);
    data.weight = make_codes(DType::kInt8, kN, kK, [](std::int64_t n, std::int64_t) {
      return static_cast<std::uint8_t>(n % 2 == 0 ? 0x80 : 0x7f);
    });
    const Matrix x =
        make_matrix(DType::kBF16, kM, kK, [](std::int64_t m, std::int64_t) { return m == 1 ? -6.0f : 9.0f; });
    ASSERT_EQ(violation(data, x, nullptr), "");
  });
}

TEST_P(GpuContract, TakesEveryDtype) {
  constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};
  constexpr std::int64_t kM = 5, kN = 48, kK = 83;
  for_each_scheme([&](const Scheme& scheme) {
    for (const DType x : kFloats) {
      for (const DType y : kFloats) {
        const LayerData data = make_layer(scheme, kN, kK, x, y);
        const Matrix activation = make_activation(x, kM, kK);
        ASSERT_EQ(violation(data, activation, nullptr), "") << name(x) << " -> " << name(y);
        for (const DType b : kFloats) {
          const Matrix bias = make_bias(b, kN);
          ASSERT_EQ(violation(data, activation, &bias), "") << name(x) << " -> " << name(y) << " bias " << name(b);
        }
      }
    }
  });
}

TEST_P(GpuContract, HonoursStrides) {
  constexpr std::int64_t kM = 12, kN = 80, kK = 96, kPad = 5;
  for_each_scheme([&](const Scheme& scheme) {
    LayerData data = make_layer(scheme, kN, kK, DType::kBF16, DType::kF16);
    const Matrix x = make_activation(DType::kBF16, kM, kK);
    const Matrix packed = apply_on_gpu(data.process(kernel(), context()), x, nullptr);
    const Matrix tight = data.weight;
    data.weight = make_codes(
        tight.dtype, kN, kK, [&](std::int64_t i, std::int64_t j) { return tight.byte(i, j); }, 32);
    const Layer layer = data.process(kernel(), context());
    const Matrix strided = apply_on_gpu(layer, make_activation(DType::kBF16, kM, kK, 1, kPad), nullptr, kPad);
    EXPECT_EQ(first_difference(strided, packed), "");
    for (std::int64_t m = 0; m < kM; ++m) {
      for (std::int64_t n = kN; n < strided.stride; ++n) {
        const std::size_t at = static_cast<std::size_t>(m * strided.stride + n) * 2;
        ASSERT_TRUE(strided.bytes[at] == std::byte{0x5a} && strided.bytes[at + 1] == std::byte{0x5a})
            << "gap after row " << m;
      }
    }
    // Rows [3, 4] whose strides do not flatten: every other row of each group of eight.
    const Matrix wide = make_matrix(DType::kBF16, 24, kK, [&](std::int64_t i, std::int64_t j) {
      return i % 2 == 0 ? x.at(i / 8 * 4 + i % 8 / 2, j) : 1e9f;
    });
    const GpuMatrix gpu_x(gpu(), wide);
    GpuMatrix y(gpu(), Matrix(DType::kF16, 27, kN));
    kernel().apply_weights(layer, {gpu_x.view().data, DType::kBF16, {3, 4, kK}, {8 * kK, 2 * kK, 1}}, {},
                           {y.view().data, DType::kF16, {3, 4, kN}, {9 * kN, 2 * kN, 1}}, context());
    const Matrix& got = y.download();
    for (std::int64_t m = 0; m < kM; ++m) ASSERT_EQ(got.row(m / 4 * 9 + m % 4 * 2), packed.row(m)) << "row " << m;
  });
}

TEST_P(GpuContract, UnpackGivesTheWeightsBackAlsoFromTheDevicesMemory) {
  for_each_scheme([&](const Scheme& scheme) {
    const LayerData data = make_layer(scheme, 50, 77);
    const GpuMatrix weight(gpu(), data.weight), scale(gpu(), data.scale);
    LayerWeights weights = data.weights();
    weights.weight.data = weight.view().data;
    weights.weight_scale.data = scale.view().data;
    Layer layer(data.config, weights, "on the gpu");
    kernel().process_weights_after_loading(layer, context());
    const std::vector<std::uint8_t> bytes = kernel().unpack(layer);
    ASSERT_EQ(bytes.size(), data.weight.bytes.size());
    EXPECT_EQ(std::memcmp(bytes.data(), data.weight.bytes.data(), bytes.size()), 0);
    EXPECT_GT(layer.packed().size_bytes(), 50 * 77);
  });
}

TEST_P(GpuContract, GivesARowTheSameBitsInAnyBatch) {
  if (!kernel().info().guarantees.batch_invariant) GTEST_SKIP() << "it does not promise to";
  constexpr std::int64_t kM = 300, kN = 200;
  // Up to 16 rows are quantized by the GEMM's own launch, 1 and 2 short ones by each CTA; sums of long rows are those
  // of two runs of K.
  for (const std::int64_t k : {1000, 8300, 20000}) {
    for_each_scheme([&](const Scheme& scheme) {
      if (!scheme.is_int8() && scheme.fp8().activation_quant_key == kFp8DynamicTensorSym)
        return;  // one scale for the batch
      const Layer layer = make_layer(scheme, kN, k).process(kernel(), context());
      const Matrix x = make_activation(DType::kBF16, kM, k);
      const Matrix y = apply_on_gpu(layer, x, nullptr);
      for (const std::int64_t m : {1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257}) {
        const Matrix part =
            make_matrix(DType::kBF16, m, k, [&](std::int64_t i, std::int64_t j) { return x.at(kM - m + i, j); });
        const Matrix got = apply_on_gpu(layer, part, nullptr);
        for (std::int64_t i = 0; i < m; ++i) {
          ASSERT_EQ(got.row(i), y.row(kM - m + i)) << "K " << k << " M " << m << " row " << i;
        }
      }
    });
  }
}

// A caller's zero points need not be codes: 100000 is far from int8, and sums leave 32 bits.
TEST_P(GpuContract, CorrectsForAnyZeroPointsOfACaller) {
  constexpr std::int64_t kM = 7, kN = 70, kK = 352;
  for_each_scheme([&](const Scheme& scheme) {
    if (!scheme.is_int8()) return;
    const LayerData data = make_layer(scheme, kN, kK);
    const std::optional<QuantKey> key = kernel().input_quant_key(data.config);
    if (!key || key->symmetric) return;
    const Layer layer = data.process(kernel(), context());
    const LinearKernel& reference = native::reference();
    const Layer expected_layer = data.process(reference, host());
    const bool one_value = key->scale.group_shape.is_per_tensor();
    Matrix q = make_codes(DType::kInt8, kM, kK,
                          [](std::int64_t i, std::int64_t j) { return static_cast<std::uint8_t>(i * 37 + j * 11); });
    Matrix scale(DType::kF32, one_value ? 1 : kM, 1), zero(DType::kInt32, one_value ? 1 : kM, 1);
    for (std::int64_t i = 0; i < scale.rows; ++i) {
      scale.set(i, 0, 0.01f * static_cast<float>(i + 1));
      const auto value = static_cast<std::int32_t>(i % 2 == 0 ? 100000 + i : -3000000 - i);
      std::memcpy(zero.bytes.data() + i * 4, &value, sizeof value);
    }
    const GpuMatrix gpu_q(gpu(), q), gpu_scale(gpu(), scale), gpu_zero(gpu(), zero);
    GpuMatrix y(gpu(), Matrix(DType::kF32, kM, kN));
    Matrix expected(DType::kF32, kM, kN);
    kernel().apply_weights(layer, QuantizedActivation{gpu_q.view(), gpu_scale.view(), gpu_zero.view(), *key}, {},
                           y.view(), context());
    reference.apply_weights(expected_layer, QuantizedActivation{q.view(), scale.view(), zero.view(), *key}, {},
                            expected.view(), host());
    EXPECT_EQ(first_other_value(y.download(), expected), "");
  });
}

TEST_P(GpuContract, ConfinesNanAndInfToTheirRows) {
  constexpr std::int64_t kM = 6, kN = 32, kK = 160;
  for_each_scheme([&](const Scheme& scheme) {
    const bool is_static = scheme.is_int8()
                               ? std::get<Int8ScaledMMLinearLayerConfig>(scheme.config).is_static_input_scheme
                               : scheme.fp8().activation_quant_key->scale.is_static;
    const Layer layer = make_layer(scheme, kN, kK).process(kernel(), context());
    Matrix x = make_activation(DType::kBF16, kM, kK);
    const Matrix clean = apply_on_gpu(layer, x, nullptr);
    x.set(1, 7, std::numeric_limits<float>::quiet_NaN());
    x.set(4, 150, -std::numeric_limits<float>::infinity());
    const Matrix y = apply_on_gpu(layer, x, nullptr);
    for (std::int64_t m = 0; m < kM; ++m) {
      if (m != 1 && m != 4) {
        const bool same_scale = scheme.is_int8() || scheme.fp8().activation_quant_key != kFp8DynamicTensorSym;
        if (same_scale) {
          ASSERT_EQ(y.row(m), clean.row(m)) << "row " << m;
        }
        ASSERT_TRUE(std::isfinite(y.at(m, 0))) << "row " << m;
      } else if (!is_static) {
        for (std::int64_t n = 0; n < kN; ++n) ASSERT_TRUE(std::isnan(y.at(m, n))) << "row " << m;
      } else if (!scheme.is_int8() && m == 1) {
        for (std::int64_t n = 0; n < kN; ++n) ASSERT_TRUE(std::isnan(y.at(m, n))) << "row " << m;
      }
    }
  });
}

TEST_P(GpuContract, TakesNoRowsAndQuantizedActivations) {
  for_each_scheme([&](const Scheme& scheme) {
    constexpr std::int64_t kM = 9, kN = 64, kK = 100;
    const LayerData data = make_layer(scheme, kN, kK);
    const Layer layer = data.process(kernel(), context());
    EXPECT_NO_THROW(kernel().apply_weights(layer, ConstTensorView(nullptr, DType::kBF16, {0, kK}), {},
                                           TensorView(nullptr, DType::kF32, {0, kN}), context()));
    const std::optional<QuantKey> key = kernel().input_quant_key(data.config);
    if (!key) return;
    const Matrix x = make_activation(DType::kBF16, kM, kK);
    const Matrix expected = apply_on_gpu(layer, x, nullptr);
    const bool one_scale = key->scale.group_shape.is_per_tensor();
    for (const std::int64_t pad : {0, 12, 13}) {
      GpuMatrix gpu_x(gpu(), x), q(gpu(), Matrix(key->dtype, kM, kK, pad)),
          scale(gpu(), Matrix(DType::kF32, one_scale ? 1 : kM, 1)),
          zero(gpu(), Matrix(DType::kInt32, one_scale ? 1 : kM, 1)), y(gpu(), Matrix(DType::kF32, kM, kN));
      if (data.input_scale) {
        Matrix value(DType::kF32, 1, 1);
        value.set(0, 0, *data.input_scale);
        scale.upload(value);
        const std::int32_t zero_point = data.input_zero_point.value_or(0);
        Matrix zero_value(DType::kInt32, 1, 1);
        std::memcpy(zero_value.bytes.data(), &zero_point, sizeof zero_point);
        zero.upload(zero_value);
      }
      if (scheme.is_int8()) {
        scaled_int8_quant(gpu_x.view(), {data.input_scale, data.input_zero_point, key->symmetric}, q.view(),
                          scale.view(), zero.view(), context());
      } else {
        scaled_fp8_quant(gpu_x.view(), {data.input_scale, key->scale.group_shape, data.upper_bound}, q.view(),
                         scale.view(), context());
      }
      const QuantizedActivation activation{q.view(), scale.view(), key->symmetric ? ConstTensorView{} : zero.view(),
                                           *key};
      kernel().apply_weights(layer, activation, {}, y.view(), context());
      if (kernel().info().guarantees.batch_invariant) {
        EXPECT_EQ(first_difference(y.download(), expected), "") << "pad " << pad;
        continue;
      }
      const Matrix& got = y.download();  // the vendor's order of scales differs
      for (std::int64_t i = 0; i < kM * kN; ++i) {
        ASSERT_NEAR(got.at(i / kN, i % kN), expected.at(i / kN, i % kN),
                    1e-4 * (1 + std::fabs(expected.at(i / kN, i % kN))));
      }
    }
  });
}

TEST_P(GpuContract, RefusesWhatItCannotReach) {
  const Layer layer = make_layer(first_scheme(), 32, 64).process(kernel(), context());
  Matrix x = make_activation(DType::kBF16, 2, 64), y(DType::kF32, 2, 32);
  EXPECT_THROW(kernel().apply_weights(layer, x.view(), {}, y.view(), context()), InvalidArgument);
  const GpuMatrix gpu_x(gpu(), x);
  EXPECT_THROW(kernel().apply_weights(layer, gpu_x.view(), {}, y.view(), context()), InvalidArgument);
  GpuMatrix gpu_y(gpu(), y);
  const Matrix bias = make_bias(DType::kF32, 32);
  EXPECT_THROW(kernel().apply_weights(layer, gpu_x.view(), bias_view(&bias), gpu_y.view(), context()), InvalidArgument);
  EXPECT_THROW(kernel().apply_weights(layer, gpu_x.view(), {}, gpu_y.view(), host()), InvalidArgument);
  EXPECT_NO_THROW(kernel().apply_weights(layer, gpu_x.view(), {}, gpu_y.view(), context()));
}

TEST_P(GpuContract, ReplaysAGraphAThousandTimesWithNewInputs) {
  constexpr std::int64_t kN = 512, kK = 640;
  for_each_scheme([&](const Scheme& scheme) {
    const Layer layer = make_layer(scheme, kN, kK, DType::kBF16, DType::kBF16).process(kernel(), context());
    for (const std::int64_t m : {1, 24, 200}) {
      const Matrix inputs[] = {make_activation(DType::kBF16, m, kK, 1), make_activation(DType::kBF16, m, kK, 2)};
      const Matrix bias = make_bias(DType::kBF16, kN);
      const Matrix expected[] = {apply_on_gpu(layer, inputs[0], &bias), apply_on_gpu(layer, inputs[1], &bias)};
      GpuMatrix x(gpu(), inputs[0]), y(gpu(), Matrix(DType::kBF16, m, kN));
      const GpuMatrix gpu_bias(gpu(), bias);
      const DeviceStream stream(gpu());
      Context own(gpu());
      own.set_stream(stream.handle());
      const auto call = [&] { kernel().apply_weights(layer, x.view(), gpu_bias.vector(), y.view(), own); };
      call();
      const DeviceGraph graph(stream, call);
      for (int round = 0; round < 10; ++round) {
        x.upload(inputs[round % 2]);
        for (int i = 0; i < 100; ++i) graph.launch(stream);
        stream.synchronize();
        ASSERT_EQ(first_difference(y.download(), expected[round % 2]), "") << "M " << m << " round " << round;
      }
    }
  });
}

TEST_P(GpuContract, WillNotGrowItsScratchMemoryUnderACapture) {
  const Layer layer = make_layer(first_scheme(), 64, 64).process(kernel(), context());
  const GpuMatrix x(gpu(), make_activation(DType::kBF16, 4, 64));
  GpuMatrix y(gpu(), Matrix(DType::kF32, 4, 64));
  const DeviceStream stream(gpu());
  Context own(gpu());
  own.set_stream(stream.handle());
  const auto call = [&] { kernel().apply_weights(layer, x.view(), {}, y.view(), own); };
  EXPECT_THROW(DeviceGraph(stream, call), DeviceError);
  call();
  EXPECT_NO_THROW(DeviceGraph(stream, call));
  stream.synchronize();
}

TEST_P(GpuContract, ServesTwoStreamsAtOnce) {
  constexpr std::int64_t kM = 48, kN = 1024, kK = 2048;
  for_each_scheme([&](const Scheme& scheme) {
    const Layer layer = make_layer(scheme, kN, kK, DType::kBF16, DType::kBF16).process(kernel(), context());
    const Matrix inputs[] = {make_activation(DType::kBF16, kM, kK, 1), make_activation(DType::kBF16, kM, kK, 2)};
    const Matrix expected[] = {apply_on_gpu(layer, inputs[0], nullptr), apply_on_gpu(layer, inputs[1], nullptr)};
    const DeviceStream streams[] = {DeviceStream(gpu()), DeviceStream(gpu())};
    Context contexts[] = {Context(gpu()), Context(gpu())};
    GpuMatrix x[] = {{gpu(), inputs[0]}, {gpu(), inputs[1]}};
    GpuMatrix y[] = {{gpu(), Matrix(DType::kBF16, kM, kN)}, {gpu(), Matrix(DType::kBF16, kM, kN)}};
    for (int i = 0; i < 2; ++i) contexts[i].set_stream(streams[i].handle());
    for (int i = 0; i < 200; ++i) {
      kernel().apply_weights(layer, x[i % 2].view(), {}, y[i % 2].view(), contexts[i % 2]);
    }
    for (int i = 0; i < 2; ++i) {
      streams[i].synchronize();
      EXPECT_EQ(first_difference(y[i].download(), expected[i]), "") << "stream " << i;
    }
  });
}

// x and y of more than 2^31 elements; all rows but the last are whatever the memory holds.
TEST_P(GpuContract, ReachesOffsetsBeyond32Bits) {
  if (gpu().memory_bytes < std::int64_t{60} << 30) GTEST_SKIP() << gpu().description << " has too little memory";
  constexpr std::int64_t kSmall = 64, kLarge = 65536 - 64, kM = 34000;
  for (const auto& [n, k] : {std::pair{kLarge, kSmall}, std::pair{kSmall, kLarge}}) {
    for_each_scheme([&, n = n, k = k](const Scheme& scheme) {
      if (scheme.name != "int8_dynamic_channel_azp" && scheme.name != "fp8_w8a8_token_channel") return;
      const LayerData data = make_layer(scheme, n, k, DType::kBF16, DType::kBF16);
      const Layer layer = data.process(kernel(), context());
      const Matrix last = make_activation(DType::kBF16, 2, k);
      DeviceBuffer x(gpu(), kM * k * 2), y(gpu(), kM * n * 2);
      x.copy_from_host(last.bytes.data(), 2 * k * 2, (kM - 2) * k * 2);
      kernel().apply_weights(layer, {x.data(), DType::kBF16, {kM, k}}, {}, {y.data(), DType::kBF16, {kM, n}},
                             context());
      Matrix got(DType::kBF16, 2, n);
      y.copy_to_host(got.bytes.data(), 2 * n * 2, (kM - 2) * n * 2);
      EXPECT_EQ(first_difference(got, apply_on_gpu(layer, last, nullptr)), "") << "N " << n << " K " << k;
    });
  }
}

// The module's GEMM on rows that it quantizes itself, and on rows that a launch of its own has quantized.
class GpuFusedRows : public GpuTest {
 protected:
  static constexpr std::int64_t kN = 200, kPitch = 8192;

  struct Case {
    bool is_int8, is_static, symmetric;
  };

  Matrix run(const Case& c, const Matrix& x, const DeviceBuffer& weights, void* prepared, bool fused, bool alone) {
    const std::int64_t copies = alone ? cuda::kFusedCopies : 1;
    const GpuMatrix gpu_x(gpu(), x);
    GpuMatrix y(gpu(), Matrix(DType::kF32, x.rows, kN));
    const DeviceBuffer codes(gpu(), copies * x.rows * kPitch), ones(gpu(), std::vector<float>(kN, 0.5f).data(), kN * 4);
    DeviceBuffer scale(gpu(), copies * x.rows * 4), zero(gpu(), copies * x.rows * 4), sums(gpu(), kN * 4);
    const std::uint32_t zeros[2] = {0, 0};
    const DeviceBuffer counters(gpu(), zeros, sizeof zeros);
    constexpr float kScale = 0.03f;
    constexpr std::int32_t kZeroPoint = 7;
    if (c.is_static) {
      scale.copy_from_host(&kScale, 4);
      zero.copy_from_host(&kZeroPoint, 4);
    }
    const cuda::Place place{gpu().index, nullptr};
    const cuda::ActivationRows rows{gpu_x.view().data, x.dtype, x.rows, x.columns, x.stride};
    check_cuda(
        cuda_api().sum_columns(place, weights.as<std::int8_t>(), kN, x.columns, kPitch, sums.as<std::int32_t>()));
    const cuda::FusedRows inside{rows,       c.is_static, c.symmetric, kScale,
                                 kZeroPoint, 4.0f,        alone,       counters.as<std::uint32_t>()};
    cuda::Gemm gemm{};
    gemm.weights = prepared;
    gemm.x = codes.data();
    gemm.m = x.rows;
    gemm.x_pitch = kPitch;
    gemm.x_scale = scale.as<float>();
    gemm.x_scale_per_token = !c.is_static;
    gemm.w_scale = ones.as<float>();
    gemm.y = y.view().data;
    gemm.y_dtype = DType::kF32;
    gemm.y_stride = kN;
    gemm.x_zero_point = c.symmetric ? nullptr : zero.as<std::int32_t>();
    gemm.x_zero_point_per_token = !c.is_static;
    gemm.w_column_sum = sums.as<std::int32_t>();
    gemm.fused = fused ? &inside : nullptr;
    if (!fused && c.is_int8) {
      const cuda::QuantizeInt8 q{rows,
                                 c.is_static,
                                 c.symmetric,
                                 kScale,
                                 kZeroPoint,
                                 codes.as<std::int8_t>(),
                                 kPitch,
                                 kPitch,
                                 scale.as<float>(),
                                 zero.as<std::int32_t>()};
      check_cuda(cuda_api().quantize_int8(place, &q));
    } else if (!fused) {
      cuda::QuantizeFp8 q{};
      q.x = rows;
      q.scheme = c.is_static ? cuda::Fp8Scheme::kStaticTensor : cuda::Fp8Scheme::kDynamicToken;
      q.dtype = DType::kE4M3FN;
      q.scale = kScale;
      q.upper_bound = 4.0f;
      q.q = codes.as<std::uint8_t>();
      q.q_columns = q.q_stride = kPitch;
      q.scale_out = scale.data();
      q.scale_dtype = DType::kF32;
      check_cuda(cuda_api().quantize_fp8(place, &q));
    }
    check_cuda(cuda_api().gemm(place, &gemm));
    std::uint32_t left[2];
    counters.copy_to_host(left, sizeof left);
    EXPECT_EQ(left[0] + left[1], 0u) << "the counters are left at zero";
    return y.download();
  }
};

TEST_F(GpuFusedRows, HaveTheBitsOfALaunchOfTheirOwn) {
  if (gpu().capability != 90) GTEST_SKIP() << "the GEMMs need compute capability 9.0";
  for (const std::int64_t k : {64, 1000, 4096, 8192}) {
    const Matrix weight = make_codes(DType::kInt8, kN, k, [](std::int64_t i, std::int64_t j) {
      return static_cast<std::uint8_t>((i * 31 + j * 7) % 120);
    });
    Matrix padded(DType::kInt8, kN, kPitch);
    for (std::int64_t i = 0; i < kN; ++i) {
      std::memcpy(padded.bytes.data() + i * kPitch, weight.bytes.data() + i * k, static_cast<std::size_t>(k));
    }
    const DeviceBuffer weights(gpu(), padded.bytes.data(), static_cast<std::int64_t>(padded.bytes.size()));
    for (const Case& c : {Case{false, false, true}, Case{false, true, true}, Case{true, false, true},
                          Case{true, true, true}, Case{true, false, false}, Case{true, true, false}}) {
      void* prepared = nullptr;
      check_cuda(cuda_api().prepare_gemm(gpu().index, c.is_int8, weights.data(), kN, k, kPitch, &prepared));
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        for (const std::int64_t m : {1, 2, 3, 8, 9, 16}) {
          const Matrix x = make_activation(dtype, m, k);
          const Matrix expected = run(c, x, weights, prepared, false, false);
          EXPECT_EQ(first_other_value(run(c, x, weights, prepared, true, false), expected), "")
              << "K " << k << " M " << m;
          if (m > 1) continue;  // a CTA quantizes one row for itself
          EXPECT_EQ(first_other_value(run(c, x, weights, prepared, true, true), expected), "")
              << "K " << k << " M " << m;
        }
      }
      cuda_api().release_gemm(prepared);
    }
  }
}

std::string kernel_name(const testing::TestParamInfo<const LinearKernel*>& info) {
  return std::string(info.param->name());
}
INSTANTIATE_TEST_SUITE_P(Gpu, GpuContract, testing::ValuesIn(gpu_kernels()), kernel_name);

}  // namespace
}  // namespace scaledmm
