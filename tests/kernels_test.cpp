// One contract for all kernels: native ones that this machine runs, and the emulated copy of every AVX-512 and AMX
// kernel.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdio>

#include "exact.hpp"
#include "guarded_memory.hpp"
#include "kernel_fixture.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/quantize.hpp"

namespace scaledmm {
namespace {

constexpr std::int64_t kEdges[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
constexpr std::int64_t kBatches[] = {1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 31, 33, 64, 65, 129, 257};

class Contract : public KernelTest {};

void expect_reason(const Support& support, const std::string& what) {
  if (support) return;
  const std::string& reason = support.reason();
  ASSERT_FALSE(reason.empty()) << what;
  EXPECT_FALSE(std::isupper(static_cast<unsigned char>(reason[0])) &&
               std::islower(static_cast<unsigned char>(reason[1])))
      << what << ": " << reason;
  EXPECT_NE(reason.back(), '.') << what << ": " << reason;
}

TEST_P(Contract, RefusesWithAReason) {
  int accepted = 0;
  for (const Scheme& scheme : all_schemes()) {
    for (const std::int64_t n : {1, 17, 128}) {
      LayerConfig config = scheme.config;
      set_shape(config, n, 2 * n, DType::kBF16, DType::kF16);
      const Support support = kernel().can_implement(config);
      accepted += support.ok();
      expect_reason(support, scheme.name);
    }
  }
  EXPECT_GT(accepted, 0) << "no scheme at all is taken";
  Scheme packed = fp8_scheme("nvfp4", GroupShape::per_channel(), std::nullopt);
  std::get<FP8ScaledMMLinearLayerConfig>(packed.config).weight_quant_key = kNvfp4Static;
  set_shape(packed.config, 16, 16, DType::kBF16, DType::kBF16);
  EXPECT_FALSE(kernel().can_implement(packed.config));
  expect_reason(kernel().can_implement(packed.config), "nvfp4");
  for (const Scheme& scheme : all_schemes()) {
    LayerConfig config = scheme.config;
    set_shape(config, 16, 16, DType::kInt32, DType::kBF16);
    EXPECT_FALSE(kernel().can_implement(config)) << "int32 activations";
    set_shape(config, 16, 16, DType::kBF16, DType::kE4M3FN);
    EXPECT_FALSE(kernel().can_implement(config)) << "fp8 outputs";
    set_shape(config, 16, 0, DType::kBF16, DType::kBF16);
    EXPECT_FALSE(kernel().can_implement(config)) << "K = 0";
    expect_reason(kernel().can_implement(config), "K = 0");
  }
  Device gpu;
  gpu.kind = DeviceKind::kCuda;
  EXPECT_FALSE(kernel().is_supported(gpu));
  // No tier has AMX-FP8: a kernel that needs it says so on every one, and runs where it is.
  Device best = cpu_device(Isa::kAmx);
  const bool needs_fp8 = !kernel().is_supported(best);
  if (needs_fp8) {
    EXPECT_NE(kernel().is_supported(best).reason().find("amx_fp8"), std::string::npos);
  }
  best.cpu.amx_fp8 = true;
  EXPECT_TRUE(kernel().is_supported(best));
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx}) {
    const Support support = kernel().is_supported(cpu_device(isa));
    EXPECT_EQ(support.ok(), isa >= kernel().info().isa && !needs_fp8) << name(isa);
    expect_reason(support, std::string(name(isa)));
  }
}

TEST_P(Contract, MatchesReferenceAtTileEdges) {
  for (const Scheme& scheme : all_schemes()) {
    bool ran = false;
    for (const std::int64_t edge : kEdges) {
      for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{edge, 67}, {19, edge}, {edge, edge}}) {
        if (!accepts(scheme, n, k)) continue;
        const LayerData data = make_layer(scheme, n, k);
        const Matrix bias = make_bias(DType::kF32, n);
        ASSERT_EQ(contract_violation(kernel(), data, make_activation(DType::kBF16, 3, k), &bias, context()), "")
            << scheme.name << " N " << n << " K " << k;
        ran = true;
      }
    }
    compared_schemes()[GetParam().label()] += ran;
  }
}

TEST_P(Contract, MatchesReferenceForEveryBatch) {
  for_each_scheme(35, 70, [&](const Scheme& scheme) {
    const LayerData data = make_layer(scheme, 35, 70);
    for (const std::int64_t m : kBatches) {
      ASSERT_EQ(contract_violation(kernel(), data, make_activation(DType::kBF16, m, 70), nullptr, context()), "")
          << "M " << m;
    }
  });
}

// Widths that real models have, upstream's odd shapes, and blocks cut by N and K; reduced in the long direction. The
// last K is too long for any kernel to take in one go.
TEST_P(Contract, MatchesReferenceOnModelShapes) {
  const std::int64_t shapes[][3] = {{5, 200, 320},  {1, 16, 1024}, {7, 576, 256}, {33, 255, 513}, {16, 100, 200},
                                    {4, 344, 176},  {2, 128, 496}, {8, 96, 3884}, {17, 171, 342}, {6, 64, 1376},
                                    {83, 128, 256}, {3, 512, 64},  {35, 20, 4200}};
  for (const auto& [m, n, k] : shapes) {
    for_each_scheme(n, k, [&, m = m, n = n, k = k](const Scheme& scheme) {
      const LayerData data = make_layer(scheme, n, k, DType::kBF16, DType::kBF16);
      ASSERT_EQ(contract_violation(kernel(), data, make_activation(DType::kBF16, m, k), nullptr, context()), "")
          << "M " << m << " N " << n << " K " << k;
    });
  }
}

TEST_P(Contract, TakesEveryDtype) {
  constexpr std::int64_t kM = 5, kN = 37, kK = 83;
  for_each_scheme(kN, kK, [&](const Scheme& scheme) {
    for (const DType x : kFloats) {
      for (const DType y : kFloats) {
        if (!accepts(scheme, kN, kK, x, y)) continue;
        const LayerData data = make_layer(scheme, kN, kK, x, y);
        const Matrix activation = make_activation(x, kM, kK);
        ASSERT_EQ(contract_violation(kernel(), data, activation, nullptr, context()), "")
            << name(x) << " -> " << name(y);
        for (const DType b : kFloats) {
          const Matrix bias = make_bias(b, kN);
          ASSERT_EQ(contract_violation(kernel(), data, activation, &bias, context()), "")
              << name(x) << " -> " << name(y) << " bias " << name(b);
        }
      }
    }
  });
}

TEST_P(Contract, HonoursRowStrides) {
  constexpr std::int64_t kM = 9, kN = 41, kK = 77, kPad = 5;
  for_each_scheme(kN, kK, [&](const Scheme& scheme) {
    LayerData data = make_layer(scheme, kN, kK, DType::kBF16, DType::kF16);
    const Matrix packed =
        apply(kernel(), data.process(kernel(), context()), make_activation(DType::kBF16, kM, kK), nullptr, context());
    const Matrix tight = data.weight;
    data.weight = make_codes(
        tight.dtype, kN, kK, [&](std::int64_t i, std::int64_t j) { return tight.byte(i, j); }, 32);
    const Layer layer = data.process(kernel(), context());
    const Matrix strided =
        apply(kernel(), layer, make_activation(DType::kBF16, kM, kK, 1, kPad), nullptr, context(), kPad);
    EXPECT_EQ(first_difference(strided, packed), "");
    for (std::int64_t m = 0; m < kM; ++m) {
      for (std::int64_t n = kN; n < strided.stride; ++n) {
        const std::size_t at = static_cast<std::size_t>(m * strided.stride + n) * 2;
        ASSERT_TRUE(strided.bytes[at] == std::byte{0x5a} && strided.bytes[at + 1] == std::byte{0x5a})
            << "gap after row " << m;
      }
    }
    EXPECT_EQ(kernel().unpack(layer).size(), static_cast<std::size_t>(kN * kK));
  });
}

TEST_P(Contract, StaysInsideItsOperands) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{3, 17, 65}, {1, 33, 31}, {17, 5, 130}, {7, 48, 96}}) {
    for_each_scheme(n, k, [&, m = m, n = n, k = k](const Scheme& scheme) {
      for (const DType x_dtype : kFloats) {
        if (!accepts(scheme, n, k, x_dtype, x_dtype)) continue;
        const LayerData data = make_layer(scheme, n, k, x_dtype, x_dtype);
        const Matrix x = make_activation(x_dtype, m, k);
        const Matrix bias = make_bias(DType::kF32, n);
        const GuardedMemory x_memory(x.bytes), bias_memory(bias.bytes), weight_memory(data.weight.bytes),
            scale_memory(data.scale.bytes);
        const GuardedMemory y_memory(static_cast<std::size_t>(m * n * size_bytes(x_dtype)));
        LayerWeights weights = data.weights();
        weights.weight.data = weight_memory.data();
        weights.weight_scale.data = scale_memory.data();
        Layer layer(data.config, weights);
        kernel().process_weights_after_loading(layer, context());
        kernel().apply_weights(layer, ConstTensorView(x_memory.data(), x_dtype, {m, k}),
                               ConstTensorView(bias_memory.data(), DType::kF32, {n}),
                               TensorView(y_memory.data(), x_dtype, {m, n}), context());
        const Matrix expected = apply(kernel(), data.process(kernel(), context()), x, &bias, context());
        EXPECT_EQ(std::memcmp(y_memory.data(), expected.bytes.data(), expected.bytes.size()), 0);
      }
    });
  }
}

TEST_P(Contract, UnpackGivesTheWeightsBack) {
  for (const std::int64_t n : {1, 15, 16, 33, 50, 129}) {
    for (const std::int64_t k : {1, 4, 31, 64, 65, 130}) {
      for_each_scheme(n, k, [&](const Scheme& scheme) {
        const LayerData data = make_layer(scheme, n, k);
        const Layer layer = data.process(kernel(), context());
        EXPECT_GT(layer.packed().size_bytes(), 0);
        const std::vector<std::uint8_t> bytes = kernel().unpack(layer);
        ASSERT_EQ(bytes.size(), data.weight.bytes.size());
        EXPECT_EQ(std::memcmp(bytes.data(), data.weight.bytes.data(), bytes.size()), 0) << "N " << n << " K " << k;
      });
    }
  }
}

TEST_P(Contract, GivesARowTheSameBitsInAnyBatchOnAnyThreads) {
  constexpr std::int64_t kM = 129, kN = 83, kK = 150;
  ASSERT_TRUE(kernel().info().guarantees.deterministic);
  ASSERT_TRUE(kernel().info().guarantees.batch_invariant);
  ASSERT_TRUE(kernel().info().guarantees.thread_invariant);
  Context one(Threading{.threads = 1}), all;
  for_each_scheme_and_input(kN, kK, [&](const Scheme& scheme, DType x_dtype) {
    const Layer layer = make_layer(scheme, kN, kK, x_dtype).process(kernel(), context());
    const Matrix x = make_activation(x_dtype, kM, kK);
    const Matrix y = apply(kernel(), layer, x, nullptr, one);
    EXPECT_EQ(first_difference(apply(kernel(), layer, x, nullptr, context()), y), "");
    EXPECT_EQ(first_difference(apply(kernel(), layer, x, nullptr, all), y), "");
    if (!scheme.is_int8() && scheme.fp8().activation_quant_key == kFp8DynamicTensorSym)
      return;  // one scale for the batch
    for (const std::int64_t m : {1, 2, 5, 6, 10, 11, 16, 17, 32, 33, 64, 128}) {
      const Matrix part =
          make_matrix(x_dtype, m, kK, [&](std::int64_t i, std::int64_t j) { return x.at(kM - m + i, j); });
      const Matrix got = apply(kernel(), layer, part, nullptr, context());
      for (std::int64_t i = 0; i < m; ++i) ASSERT_EQ(got.row(i), y.row(kM - m + i)) << "M " << m << " row " << i;
    }
  });
}

TEST_P(Contract, TakesNoRows) {
  for_each_scheme(64, 256, [&](const Scheme& scheme) {
    const LayerData data = make_layer(scheme, 64, 256);
    const Layer layer = data.process(kernel(), context());
    const Matrix bias = make_bias(DType::kF32, 64);
    float unused = 0.0f;
    for (const Shape& leading : {Shape{0, 256}, Shape{0, 3, 256}}) {
      Shape out = leading;
      out[out.rank() - 1] = 64;
      for (const Matrix* b : {static_cast<const Matrix*>(nullptr), &bias}) {
        EXPECT_NO_THROW(kernel().apply_weights(layer, ConstTensorView(&unused, DType::kBF16, leading), bias_view(b),
                                               TensorView(&unused, DType::kF32, out), context()));
      }
    }
    EXPECT_EQ(contract_violation(kernel(), data, make_activation(DType::kBF16, 1, 256), &bias, context()), "");
  });
}

// A kernel's key for this layer, and the activation in codes with their scales, as the public quantizers give them.
struct Prequantized {
  Matrix codes, scale;
  std::vector<std::int32_t> zero_points;
  QuantizedActivation activation;
};

Prequantized quantize(const LayerData& data, const QuantKey& key, const Matrix& x) {
  Prequantized result;
  const GroupShape& group = key.scale.group_shape;
  const std::int64_t groups = group.is_per_group() ? (x.columns + group.col - 1) / group.col : 1;
  result.codes = Matrix(key.dtype, x.rows, x.columns);
  result.scale = Matrix(DType::kF32, group.is_per_tensor() ? 1 : x.rows, groups);
  result.zero_points.assign(static_cast<std::size_t>(result.scale.rows), data.input_zero_point.value_or(0));
  const TensorView zero_points(result.zero_points.data(), DType::kInt32, {result.scale.rows});
  if (data.input_scale) result.scale.set(0, 0, *data.input_scale);
  if (key.dtype == DType::kInt8) {
    scaled_int8_quant(x.view(), {data.input_scale, data.input_zero_point, key.symmetric}, result.codes.view(),
                      result.scale.view(), zero_points);
  } else {
    scaled_fp8_quant(x.view(), {data.input_scale, group, data.upper_bound, data.ue8m0}, result.codes.view(),
                     result.scale.view());
  }
  result.activation = {result.codes.view(), result.scale.view(),
                       key.symmetric ? ConstTensorView{} : ConstTensorView(zero_points), key};
  return result;
}

TEST_P(Contract, TakesPrequantizedActivations) {
  constexpr std::int64_t kM = 11, kN = 37, kK = 150;
  for_each_scheme(kN, kK, [&](const Scheme& scheme) {
    const LayerData data = make_layer(scheme, kN, kK);
    const std::optional<QuantKey> key = kernel().input_quant_key(data.config);
    if (!key || scheme.offset_k != 0) return;  // the public quantizer's groups begin at column 0
    const Layer layer = data.process(kernel(), context());
    const Matrix x = make_activation(DType::kBF16, kM, kK);
    const Matrix bias = make_bias(DType::kF16, kN);
    Prequantized q = quantize(data, *key, x);
    Matrix y(DType::kF32, kM, kN);
    kernel().apply_weights(layer, q.activation, bias_view(&bias), y.view(), context());
    EXPECT_EQ(first_difference(y, apply(kernel(), layer, x, &bias, context())), "");
    q.activation.quant_key.scale.is_static = !key->scale.is_static;
    EXPECT_THROW(kernel().apply_weights(layer, q.activation, {}, y.view(), context()), InvalidArgument);
  });
}

TEST_P(Contract, SurvivesExtremes) {
  constexpr std::int64_t kM = 7, kN = 20, kK = 129;
  const float values[] = {3e38f, -3e38f, 1e-30f, -0.0f, 1.0f, 448.0f, 1e-36f};
  for_each_scheme(kN, kK, [&](const Scheme& scheme) {
    for (const DType x_dtype : kFloats) {
      if (!accepts(scheme, kN, kK, x_dtype)) continue;
      LayerData data = make_layer(scheme, kN, kK, x_dtype);
      const DType dtype = data.weight.dtype;
      const std::uint8_t extremes[] = {0x80, 0x7f, 0x01, 0xff, 0x00};  // -128, 127, 1, -1, 0
      const std::uint8_t fp8_extremes[] = {f32_to_e4m3fn(448.0f), 0xfe, 0x01, 0x81, 0x00};
      for (std::int64_t n = 0; n < kN; ++n) {
        for (std::int64_t k = 0; k < kK; ++k) {
          const std::size_t at = static_cast<std::size_t>(n % 6 == 5 ? (n + k) % 5 : n % 6);
          std::uint8_t code = scheme.is_int8() ? extremes[at] : fp8_extremes[at];
          if (!scheme.is_int8() && !std::isfinite(fp8_to_f32(code, dtype))) code = 0x7b;
          data.weight.byte(n, k) = code;
        }
      }
      const float limit = x_dtype == DType::kF16 ? 65504.0f : 1e30f;
      const Matrix x = make_matrix(x_dtype, kM, kK, [&](std::int64_t m, std::int64_t k) {
        const float value = m == 5 ? values[k % 7] : values[m] * (k % 2 ? 1.0f : 0.5f);
        return std::clamp(value, -limit, limit);
      });
      ASSERT_EQ(contract_violation(kernel(), data, x, nullptr, context()), "") << name(x_dtype);
    }
  });
}

TEST_P(Contract, OverflowsToInf) {
  for_each_scheme(3, 64, [&](const Scheme& scheme) {
    if (!accepts(scheme, 3, 64, DType::kBF16, DType::kF16)) return;
    const LayerData data = make_layer(scheme, 3, 64, DType::kBF16, DType::kF16);
    const Layer layer = data.process(kernel(), context());
    const Matrix bias =
        make_matrix(DType::kF32, 1, 3, [](std::int64_t, std::int64_t n) { return n == 1 ? -1e6f : 1e6f; });
    const Matrix y = apply(kernel(), layer, make_activation(DType::kBF16, 2, 64), &bias, context());
    for (std::int64_t m = 0; m < 2; ++m) {
      for (std::int64_t n = 0; n < 3; ++n) EXPECT_EQ(y.at(m, n), n == 1 ? -INFINITY : INFINITY);
    }
  });
}

TEST_P(Contract, KeepsNonFiniteRowsToThemselves) {
  constexpr std::int64_t kM = 8, kN = 21, kK = 140;
  for_each_scheme_and_input(kN, kK, [&](const Scheme& scheme, DType x_dtype) {
    const LayerData data = make_layer(scheme, kN, kK, x_dtype);
    const Layer layer = data.process(kernel(), context());
    const bool weight_only =
        !scheme.is_int8() && (!scheme.fp8().activation_quant_key || kernel().info().computes == "w8a16");
    const bool is_static = data.input_scale && !weight_only;
    const auto run = [&](float in_row_1, float in_row_6) {
      Matrix x = make_activation(x_dtype, kM, kK);
      x.set(1, 135, in_row_1);
      x.set(6, 3, in_row_6);
      return apply(kernel(), layer, x, nullptr, context());
    };
    const Matrix y = run(NAN, -INFINITY), clean = run(0.0f, is_static ? -1e30f : 0.0f);
    for (std::int64_t m = 0; m < kM; ++m) {
      if (m != 1 && m != 6) {
        ASSERT_EQ(y.row(m), clean.row(m)) << "row " << m;
      } else if (is_static && (m == 6 || scheme.is_int8())) {
        ASSERT_EQ(y.row(m), clean.row(m)) << "a static scale saturates Inf, and int8 makes NaN the code of 0";
      } else {
        for (std::int64_t n = 0; n < kN; ++n) {
          ASSERT_TRUE(weight_only && m == 6 ? !std::isfinite(y.at(m, n)) : std::isnan(y.at(m, n))) << m << " " << n;
        }
      }
    }
  });
}

TEST_P(Contract, IsProcessedOnceAndRefilled) {
  constexpr std::int64_t kN = 37, kK = 66;
  for_each_scheme(kN, kK, [&](const Scheme& scheme) {
    const LayerData first = make_layer(scheme, kN, kK),
                    second = make_layer(scheme, kN, kK, DType::kBF16, DType::kF32, 9);
    const Matrix x = make_activation(DType::kBF16, 4, kK);
    Layer layer(first.config, first.weights(), "test");
    EXPECT_THROW(kernel().apply_weights(layer, x.view(), {}, {}, context()), InvalidArgument);
    kernel().process_weights_after_loading(layer, context());
    EXPECT_THROW(kernel().process_weights_after_loading(layer, context()), InvalidArgument);
    layer.refill(second.weights(), context());
    EXPECT_EQ(first_difference(apply(kernel(), layer, x, nullptr, context()),
                               apply(kernel(), second.process(kernel(), context()), x, nullptr, context())),
              "");
    LayerWeights wrong = first.weights();
    wrong.weight.shape[0] = kN - 1;
    EXPECT_THROW(layer.refill(wrong, context()), InvalidArgument);
    EXPECT_EQ(std::memcmp(kernel().unpack(layer).data(), second.weight.bytes.data(), second.weight.bytes.size()), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Kernels, Contract, testing::ValuesIn(tested_kernels()), kernel_label);

// Says at the end which kernels were tested and which were not, and fails where one that runs here was left out.
class Coverage : public testing::Environment {
 public:
  void TearDown() override {
    if (testing::GTEST_FLAG(filter) != "*") return;
    const std::vector<const LinearKernel*> emulated = emulated_kernels();
    std::printf("\nisa of this machine: %s\n", std::string(name(this_cpu().isa)).c_str());
    for (const LinearKernel* kernel : native_kernels()) {
      const std::string label(kernel->name());
      const Support support = kernel->is_supported(this_cpu());
      const auto count = [](const std::string& key) {
        return compared_schemes().contains(key) ? compared_schemes()[key] : 0;
      };
      const bool is_twin =
          std::ranges::any_of(emulated, [&](const LinearKernel* twin) { return twin->name() == kernel->name(); });
      std::string line = "kernel " + label + ": native ";
      line += support ? "yes, " + std::to_string(count(label)) + " schemes" : "no (" + support.reason() + ")";
      line += ", emulated ";
      line +=
          is_twin ? "yes, " + std::to_string(count(label + "_emulated")) + " schemes" : "no (it has no emulated copy)";
      std::printf("%s\n", line.c_str());
      if (support && count(label) == 0) ADD_FAILURE() << label << " runs on this machine and was not compared";
      if (is_twin && count(label + "_emulated") == 0) ADD_FAILURE() << label << "'s emulated copy was not compared";
    }
  }
};

}  // namespace
}  // namespace scaledmm

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::AddGlobalTestEnvironment(new scaledmm::Coverage);
  return RUN_ALL_TESTS();
}
