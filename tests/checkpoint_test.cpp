// Checkpoint folders of every dialect: the layer table, contradictions, values and loaded layers.
#include "scaledmm/checkpoint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "toy_layers.hpp"

namespace scaledmm {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
using Fp8Config = FP8ScaledMMLinearLayerConfig;
using Int8Config = Int8ScaledMMLinearLayerConfig;

// ------------------------------------------------------------------------------------------ the examples, as written

enum class Grain { kScalar, kOne, kVector, kColumn, kBlocks, kBlocks4 };

Shape scale_shape(Grain grain, std::int64_t n, std::int64_t k) {
  const std::int64_t rows = (n + 127) / 128;
  const std::int64_t columns = (k + 127) / 128;
  switch (grain) {
    case Grain::kScalar:
      return Shape{};
    case Grain::kOne:
      return Shape{1};
    case Grain::kVector:
      return Shape{n};
    case Grain::kColumn:
      return Shape{n, 1};
    case Grain::kBlocks:
      return Shape{rows, columns};
    default:
      return Shape{rows, 1, columns, 1};
  }
}

struct Example {
  const char* letter;
  std::string config;
  const char* method;
  const char* weight_dtype;
  Grain grain;
  const char* scale_name;
  const char* input_scale_name;  // nullptr: none
  bool zero_point;
  const char* scheme;
};

std::vector<Example> examples() {
  const std::string modelopt = R"({"quant_method":"modelopt","ignore":["lm_head"],"quant_algo":)";
  return {
      {"a", compressed("int-quantized", kChannel, kToken), "compressed-tensors", "I8", Grain::kColumn, "weight_scale",
       nullptr, false, "int8"},
      {"b", compressed("int-quantized", kTensor, R"("strategy":"tensor","symmetric":false)"), "compressed-tensors",
       "I8", Grain::kOne, "weight_scale", "input_scale", true, "int8"},
      {"c", compressed("float-quantized", kTensor, kTensor), "compressed-tensors", "F8_E4M3", Grain::kOne,
       "weight_scale", "input_scale", false, "fp8_w8a8"},
      {"d", compressed("float-quantized", kChannel, kToken), "compressed-tensors", "F8_E4M3", Grain::kColumn,
       "weight_scale", nullptr, false, "fp8_w8a8"},
      {"e", compressed("float-quantized", kBlock, R"("strategy":"group","group_size":128,"dynamic":true)"),
       "compressed-tensors", "F8_E4M3", Grain::kBlocks, "weight_scale", nullptr, false, "fp8_w8a8_block"},
      {"g", with_config(R"({"quant_method":"fp8","activation_scheme":"static","ignored_layers":["lm_head"]})"), "fp8",
       "F8_E4M3", Grain::kScalar, "weight_scale", "input_scale", false, "fp8_w8a8"},
      {"h",
       with_config(
           R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128]})"),
       "fp8", "F8_E4M3", Grain::kBlocks, "weight_scale_inv", nullptr, false, "fp8_w8a8_block"},
      {"i",
       with_config(R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128],
           "modules_to_not_convert":["lm_head"]})"),
       "fp8", "F8_E4M3", Grain::kBlocks, "weight_scale_inv", nullptr, false, "fp8_w8a8_block"},
      {"j", with_config(R"({"quant_method":"fp8","activation_scheme":"static","weight_block_size":null})"), "fp8",
       "F8_E4M3", Grain::kScalar, "weight_scale_inv", "activation_scale", false, "fp8_w8a8"},
      {"fbgemm", with_config(R"({"quant_method":"fbgemm_fp8","activation_scale_ub":1200.0,
           "modules_to_not_convert":["lm_head"]})"),
       "fbgemm_fp8", "F8_E4M3", Grain::kColumn, "weight_scale", nullptr, false, "fp8_w8a8"},
      {"k", with_config(modelopt + "\"FP8\"}"), "modelopt", "F8_E4M3", Grain::kScalar, "weight_scale", "input_scale",
       false, "fp8_w8a8"},
      {"k2", with_config(modelopt + "\"FP8_PER_CHANNEL_PER_TOKEN\"}"), "modelopt", "F8_E4M3", Grain::kVector,
       "weight_scale", nullptr, false, "fp8_w8a8"},
      {"l", with_config(modelopt + "\"fp8_pb_wo\"}"), "modelopt", "F8_E4M3", Grain::kBlocks4, "weight_scale", nullptr,
       false, "fp8_w8a8_block"},
      {"w8a8", with_config(R"({"quant_method":"w8a8_int8"})"), "w8a8_int8", "I8", Grain::kColumn, "weight_scale",
       nullptr, false, "int8"},
      {"blockint8", with_config(R"({"quant_method":"blockwise_int8","activation_scheme":"dynamic",
           "weight_block_size":[128,128]})"),
       "blockwise_int8", "I8", Grain::kBlocks, "weight_scale_inv", nullptr, false, "int8_block"},
      {"weightonly", compressed("float-quantized", kChannel, "null"), "compressed-tensors", "F8_E4M3", Grain::kColumn,
       "weight_scale", nullptr, false, "fp8_w8a16"},
  };
}

std::vector<ToyTensor> example_tensors(const Example& example, const char* scale_dtype) {
  std::vector<ToyTensor> tensors;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string block = "model.layers." + std::to_string(layer) + ".";
    tensors.push_back(toy(block + "input_layernorm.weight", "BF16", {256}, 1));
    for (const auto& [module, n, k] : {std::tuple("mlp.up_proj", 512, 256), std::tuple("mlp.down_proj", 256, 512)}) {
      const std::string name = block + module + ".";
      tensors.push_back(toy(name + "weight", example.weight_dtype, {n, k}, 1));
      tensors.push_back(toy(name + example.scale_name, scale_dtype, scale_shape(example.grain, n, k), 0.5));
      if (example.input_scale_name)
        tensors.push_back(toy(name + example.input_scale_name, scale_dtype, Shape{1}, 0.25));
      if (example.zero_point) tensors.push_back(toy(name + "input_zero_point", "I8", {1}, -3));
    }
  }
  tensors.push_back(toy("lm_head.weight", "BF16", {100, 256}, 1));
  tensors.push_back(toy("model.embed_tokens.weight", "BF16", {100, 256}, 1));
  return tensors;
}

class Examples : public testing::TestWithParam<std::tuple<std::size_t, int, const char*>> {};

TEST_P(Examples, OpenAsWrittenAndRun) {
  const auto& [which, shards, scale_dtype] = GetParam();
  const Example example = examples()[which];
  SCOPED_TRACE(example.letter);
  const ScratchFolder folder;
  write_toy_checkpoint(folder.path(), example.config, example_tensors(example, scale_dtype),
                       static_cast<std::size_t>(shards));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.quant_method(), example.method);
  EXPECT_EQ(checkpoint.model_dtype(), DType::kF32);
  ASSERT_EQ(checkpoint.layers().size(), 5u);  // norms and embeddings are no linear layers
  EXPECT_FALSE(checkpoint.layer("lm_head").quantized);
  const LayerRecord& up = checkpoint.layer("model.layers.1.mlp.up_proj");
  EXPECT_TRUE(up.quantized);
  EXPECT_EQ(up.scheme, example.scheme);
  EXPECT_EQ(up.n, 512);
  EXPECT_EQ(up.k, 256);
  EXPECT_EQ(up.weight_scale, up.name + "." + example.scale_name);
  EXPECT_EQ(up.input_scale.empty(), example.input_scale_name == nullptr);
  EXPECT_EQ(up.input_zero_point.empty(), !example.zero_point);
  EXPECT_TRUE(checkpoint.verify().empty());
  expect_near_all(run_ones(Linear::load(checkpoint, "model.layers.0.mlp.down_proj")), 0, 256, 512 * 0.5f);
}

INSTANTIATE_TEST_SUITE_P(All, Examples,
                         testing::Combine(testing::Range(std::size_t{0}, examples().size()), testing::Values(1, 3),
                                          testing::Values("BF16", "F32")),
                         [](const auto& parameters) {
                           return std::string(examples()[std::get<0>(parameters.param)].letter) +
                                  (std::get<1>(parameters.param) == 1 ? "_single_" : "_sharded_") +
                                  std::get<2>(parameters.param);
                         });

TEST(Checkpoint, MapsEachDialectToKeys) {
  const auto config_of = [](const std::string& letter) {
    for (const Example& example : examples()) {
      if (letter != example.letter) continue;
      const ScratchFolder folder;
      write_toy_checkpoint(folder.path(), example.config, example_tensors(example, "F32"));
      CheckpointOptions options;
      options.input_dtype = DType::kBF16;
      return Checkpoint::open(folder.path(), options).layer("model.layers.0.mlp.up_proj").config;
    }
    throw std::logic_error("no such example");
  };
  const auto fp8 = [&](const std::string& letter) { return std::get<Fp8Config>(config_of(letter)); };
  const auto int8 = [&](const std::string& letter) { return std::get<Int8Config>(config_of(letter)); };
  EXPECT_EQ(int8("a"), (Int8Config{false, true, true, {512, 256}, DType::kBF16, DType::kBF16, std::nullopt}));
  EXPECT_EQ(int8("b"), (Int8Config{true, false, false, {512, 256}, DType::kBF16, DType::kBF16, std::nullopt}));
  EXPECT_EQ(int8("blockint8").weight_block, (GroupShape{128, 128}));
  EXPECT_EQ(fp8("c").weight_quant_key, kFp8StaticTensorSym);
  EXPECT_EQ(fp8("c").activation_quant_key, kFp8StaticTensorSym);
  EXPECT_EQ(fp8("d").weight_quant_key, kFp8StaticChannelSym);
  EXPECT_EQ(fp8("d").activation_quant_key, kFp8DynamicTokenSym);
  EXPECT_EQ(fp8("h").weight_quant_key, kFp8Static128BlockSym);
  EXPECT_EQ(fp8("l").activation_quant_key, kFp8Dynamic128Sym);
  EXPECT_EQ(fp8("weightonly").activation_quant_key, std::nullopt);
}

TEST(Checkpoint, MixedGroupsGiveEachLayerItsOwn) {
  const auto group = [](const char* target, const char* type, const char* format) {
    return std::string(R"({"targets":[")") + target + R"("],"format":")" + format + R"(","weights":{"type":")" + type +
           R"(","strategy":"channel"},"input_activations":{"type":")" + type +
           R"(","strategy":"token","dynamic":true}})";
  };
  const ScratchFolder folder;
  write_toy_checkpoint(
      folder.path(),
      with_config(R"({"quant_method":"compressed-tensors","format":"mixed-precision","config_groups":{
                         "group_0":)" +
                  group("re:.*down_proj$", "int", "int-quantized") + R"(,"group_1":)" +
                  group("re:.*up_proj$", "float", "float-quantized") + "}}"),
      {toy("a.down_proj.weight", "I8", {8, 16}, 1), toy("a.down_proj.weight_scale", "BF16", {8, 1}, 1),
       toy("a.up_proj.weight", "F8_E4M3", {8, 16}, 1), toy("a.up_proj.weight_scale", "BF16", {8, 1}, 1)});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.layer("a.down_proj").scheme, "int8");
  EXPECT_EQ(checkpoint.layer("a.up_proj").scheme, "fp8_w8a8");
}

// ------------------------------------------------------------------------------------------------- one layer at a time

TEST(Scales, BytesAreExponents) {
  for (const char* dtype : {"F8_E8M0", "U8"}) {
    const Toy toys(kFp8Block, {toy("m.weight", "F8_E4M3", {128, 256}, 1),
                               toy("m.weight_scale_inv", dtype, {1, 2}, [](auto i) { return i == 0 ? 130 : 125; })});
    expect_near_all(run_ones(Linear::load(toys.open(), "m")), 0, 128, 1056);

    const Toy smallest(kFp8Block,
                       {toy("m.weight", "F8_E4M3", {128, 128}, 1), toy("m.weight_scale_inv", dtype, {1, 1}, 0)});
    EXPECT_GT(run_ones(Linear::load(smallest.open(), "m"))[0], 0.0f);

    const Toy nan(kFp8Block, {toy("m.weight", "F8_E4M3", {128, 256}, 1),
                              toy("m.weight_scale_inv", dtype, {1, 2}, [](auto i) { return i == 0 ? 130 : 255; })});
    const std::string text = nan.load_refusal();
    EXPECT_TRUE(contains(text, "model.safetensors") && contains(text, "\"m.weight_scale_inv\"")) << text;
    EXPECT_TRUE(contains(text, "[0, 1]") && contains(text, "not finite")) << text;
  }
  const Toy plain(kFp8Dynamic, {toy("m.weight", "F8_E4M3", {4, 4}, 1), toy("m.weight_scale", "U8", {1}, 127)});
  EXPECT_TRUE(contains(plain.refusal(), "\"m.weight_scale\" is U8"));
}

TEST(Scales, ChannelAndTensorFormsAreTaken) {
  struct Kind {
    std::string config;
    const char* weight_dtype;
  };
  const Kind channel[] = {{compressed("int-quantized", kChannel, kToken), "I8"},
                          {compressed("float-quantized", kChannel, kToken), "F8_E4M3"},
                          {compressed("float-quantized", kChannel, "null"), "F8_E4M3"}};
  for (const Kind& kind : channel) {
    for (const char* dtype : {"F32", "BF16", "F16"}) {
      for (const Shape& shape : {Shape{64}, Shape{64, 1}, Shape{1, 64}}) {
        const Toy toys(kind.config, {toy("m.weight", kind.weight_dtype, {64, 64}, 1),
                                     toy("m.weight_scale", dtype, shape, [](auto i) { return std::exp2(i % 4); })});
        const std::vector<float> y = run_ones(Linear::load(toys.open(), "m"));
        for (std::size_t n = 0; n < y.size(); ++n) {
          const auto expected = static_cast<float>(64 << n % 4);
          ASSERT_NEAR(y[n], expected, expected * 1e-5f) << dtype << shape.text() << n;
        }
      }
    }
    for (const Shape& shape : {Shape{32}, Shape{64, 64}, Shape{2}, Shape{}, Shape{8, 8}}) {
      const Toy toys(kind.config,
                     {toy("m.weight", kind.weight_dtype, {64, 64}, 1), toy("m.weight_scale", "F32", shape, 1)});
      const std::string text = toys.refusal();
      EXPECT_TRUE(contains(text, "\"m.weight_scale\" has " + std::to_string(shape.elements()) + " elements")) << text;
      EXPECT_TRUE(contains(text, "expected 64")) << text;
    }
  }
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}}) {
    const Toy toys(kFp8Dynamic, {toy("m.weight", "F8_E4M3", {64, 64}, 1), toy("m.weight_scale", "BF16", shape, 2)});
    expect_near_all(run_ones(Linear::load(toys.open(), "m")), 0, 64, 128);
  }
  const Toy tensor(compressed("float-quantized", kTensor, kTensor),
                   {toy("m.weight", "F8_E4M3", {64, 64}, 1), toy("m.weight_scale", "F32", {2}, 1),
                    toy("m.input_scale", "F32", {1}, 1)});
  EXPECT_TRUE(contains(tensor.refusal(), "has 2 elements [2], expected 1"));
  const Toy block(kFp8Block, {toy("m.weight", "F8_E4M3", {192, 320}, 1), toy("m.weight_scale_inv", "F32", {2, 2}, 1)});
  EXPECT_TRUE(contains(block.refusal(), "expected 6 [2, 3]"));
}

TEST(Scales, MissingOnesAreErrorsThatNameThem) {
  const ToyTensor weight = toy("m.weight", "F8_E4M3", {128, 128}, 1);
  const ToyTensor scale = toy("m.weight_scale", "F32", {1}, 1);
  const std::string no_scale = Toy(kFp8Dynamic, {weight}).refusal();
  EXPECT_TRUE(contains(no_scale, "model.safetensors") && contains(no_scale, "\"m.weight_scale\" is missing"))
      << no_scale;
  const std::string no_input = Toy(kFp8Static, {weight, scale}).refusal();
  EXPECT_TRUE(contains(no_input, "static") && contains(no_input, "\"m.input_scale\" is missing")) << no_input;
  const std::string no_zero = Toy(compressed("int-quantized", kTensor, R"("strategy":"tensor","symmetric":false)"),
                                  {toy("m.weight", "I8", {4, 4}, 1), scale, toy("m.input_scale", "F32", {1}, 1)})
                                  .refusal();
  EXPECT_TRUE(contains(no_zero, "\"m.input_zero_point\" is missing")) << no_zero;
}

TEST(Scales, UnsetOnesAndThoseThatAreNoNumbersAreErrors) {
  const ToyTensor weight = toy("m.weight", "F8_E4M3", {128, 128}, 1);
  for (const auto& [value, part] :
       {std::pair(0.0f, "is 0"), std::pair(NAN, "not finite"), std::pair(-1.0f, "negative")}) {
    const Toy toys(kFp8Static, {weight, toy("m.weight_scale", "F32", {1}, 1), toy("m.input_scale", "F32", {1}, value)});
    const std::string text = toys.load_refusal();
    EXPECT_TRUE(contains(text, "\"m.input_scale\"") && contains(text, part)) << text;
    EXPECT_EQ(toys.open().verify(), std::vector{text});
  }
  for (const auto& [value, part] :
       {std::pair(NAN, "not finite"), std::pair(kInf, "not finite"), std::pair(-3.4028235e38f, "never set"),
        std::pair(-1.0f, "negative"), std::pair(0.0f, "is 0")}) {
    const Toy toys(kFp8Dynamic,
                   {weight, toy("m.weight_scale", "F32", {128}, [v = value](auto i) { return i == 7 ? v : 1; })});
    const std::string text = toys.load_refusal();
    EXPECT_TRUE(contains(text, "\"m.weight_scale\"") && contains(text, "[7]") && contains(text, part)) << text;
  }
}

TEST(Scales, AChannelOfZerosMayHaveTheScaleZero) {
  const Toy toys(kFp8Dynamic, {toy("m.weight", "F8_E4M3", {4, 8}, [](auto i) { return i / 8 == 2 ? 0 : 1; }),
                               toy("m.weight_scale", "F32", {4}, [](auto i) { return i == 2 ? 0 : 1; })});
  const std::vector<float> y = run_ones(Linear::load(toys.open(), "m"));
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_NEAR(y[1], 8.0f, 1e-4f);
}

TEST(Scales, TwoNamesMustHoldTheSame) {
  const ToyTensor weight = toy("m.weight", "F8_E4M3", {4, 4}, 1);
  const ToyTensor scale = toy("m.weight_scale", "F32", {1}, 2);
  EXPECT_NO_THROW(Toy(kFp8Dynamic, {weight, scale, toy("m.weight_scale_inv", "BF16", {}, 2)}).open());
  const std::string text = Toy(kFp8Dynamic, {weight, scale, toy("m.weight_scale_inv", "F32", {1}, 0.5)}).refusal();
  EXPECT_TRUE(contains(text, "\"m.weight_scale_inv\" and \"m.weight_scale\" are both there and differ")) << text;
}

TEST(Scales, ZeroPointsOfSymmetricSchemesMustBeZero) {
  const std::vector<ToyTensor> tensors = {toy("m.weight", "I8", {4, 4}, 1), toy("m.weight_scale", "F32", {4, 1}, 1)};
  for (const int value : {0, 1}) {
    std::vector<ToyTensor> more = tensors;
    more.push_back(toy("m.weight_zero_point", "I8", {4, 1}, value));
    const Toy toys(compressed("int-quantized", kChannel, kToken), more);
    if (value == 0) {
      EXPECT_NO_THROW(Linear::load(toys.open(), "m"));
    } else {
      EXPECT_TRUE(contains(toys.load_refusal(), "\"m.weight_zero_point\""));
    }
  }
}

TEST(LayerTable, ContradictionsStopUnlessLenient) {
  const std::string int8 = compressed("int-quantized", kChannel, kToken);
  const ToyTensor codes = toy("m.weight", "I8", {4, 4}, 1);
  const ToyTensor scale = toy("m.weight_scale", "F32", {4, 1}, 1);
  struct Case {
    std::string config;
    std::vector<ToyTensor> tensors;
    const char* part;
  };
  for (const Case& c : std::vector<Case>{
           {int8, {toy("m.weight", "BF16", {4, 4}, 1)}, "is BF16, but config.json: quantization_config says"},
           {compressed("int-quantized", kChannel, kToken, "\"m\""), {codes, scale}, "leaves its module dense"},
           {"{}", {codes, scale}, "there is no quantization config"},
           {int8, {toy("m.weight", "F8_E4M3", {4, 4}, 1), scale}, "promises int8"},
           {kFp8Dynamic, {codes, scale}, "promises FP8"},
           {kFp8Dynamic, {toy("m.weight", "BF16", {4, 4}, 1), scale}, "and there is \"m.weight_scale\""},
           {int8, {toy("m.weight", "U8", {4, 4}, 1)}, "is U8"},
           {int8, {toy("m.weight", "I8", {0, 4}, 1), scale}, "is empty"},
           {int8, {codes, toy("m.weight_scale", "F64", {4, 1}, 1)}, "is F64"},
           {int8, {codes, scale, toy("m.bias", "BF16", {5}, 1)}, "\"m.bias\" is [5], expected [4]"},
       }) {
    const Toy toys(c.config, c.tensors);
    const std::string text = toys.refusal();
    EXPECT_TRUE(contains(text, "model.safetensors: tensor \"m.") && contains(text, c.part)) << text;
    const Checkpoint lenient = toys.open(true);
    EXPECT_TRUE(lenient.layers().empty());
    EXPECT_TRUE(any_contains(lenient.warnings(), c.part)) << c.part;
  }
}

TEST(LayerTable, TheFp8DialectLetsTheStoredTypeDecide) {
  const Toy toys(kFp8Dynamic, {toy("m.weight", "BF16", {4, 4}, 1)});
  const Checkpoint checkpoint = toys.open();
  EXPECT_FALSE(checkpoint.layer("m").quantized);
  EXPECT_TRUE(any_contains(checkpoint.layer("m").warnings, "dense weight"));
}

TEST(LayerTable, NoticesTensorsAndEntriesThatNothingUses) {
  const Toy toys(compressed("int-quantized", kChannel, kToken, R"("d","re:.*visual","lm_head")"),
                 {toy("d.weight", "BF16", {4, 4}, 1), toy("d.weight_scale", "F32", {4, 1}, 1),
                  toy("k_proj.weight", "I8", {4, 4}, 1), toy("k_proj.weight_scale", "F32", {4, 1}, 1),
                  toy("k_proj.k_scale", "F32", {1}, 1), toy("k_proj.input_scale", "F32", {1}, 1)});
  const Checkpoint checkpoint = toys.open();
  EXPECT_FALSE(checkpoint.layer("d").quantized);
  EXPECT_TRUE(any_contains(checkpoint.warnings(), "\"d.weight_scale\" is not used"));
  EXPECT_TRUE(any_contains(checkpoint.warnings(), "\"k_proj.input_scale\" is not used"));
  EXPECT_TRUE(any_contains(checkpoint.warnings(), "attention cache"));
  EXPECT_TRUE(any_contains(checkpoint.warnings(), "\"re:.*visual\" matches no module"));
  EXPECT_EQ(checkpoint.warnings().size(), 4u);
}

TEST(LayerTable, NoticesTensorsOfAQuantizedLayerThatItDoesNotTake) {
  for (const char* name : {"m.weight_scale_2", "m.pre_quant_scale", "m.g_idx", "m.input_quantizer._amax"}) {
    const Toy toys(kFp8Dynamic, {toy("m.weight", "F8_E4M3", {4, 16}, 1), toy("m.weight_scale", "F32", {1}, 1),
                                 toy("m.bias", "F32", {4}, 1), toy("m.weight_zero_point", "I8", {1}, 0),
                                 toy(name, "F32", {1}, 3), toy("norm.weight", "F32", {16}, 1)});
    const Checkpoint checkpoint = toys.open();
    ASSERT_EQ(checkpoint.warnings().size(), 1u) << name;
    EXPECT_TRUE(contains(checkpoint.warnings()[0], name)) << checkpoint.warnings()[0];
    EXPECT_TRUE(contains(checkpoint.warnings()[0], "not used")) << checkpoint.warnings()[0];
  }
}

TEST(LayerTable, NoticesCodesAndScalesOfExpertsInOneTensor) {
  const std::string down = "l.0.experts.down_proj";
  for (const auto& [dtype, scale] : {std::pair("F8_E4M3", "_scale_inv"), std::pair("F8_E4M3", "_other"),
                                     std::pair("BF16", "_scale"), std::pair("U8", "_scale")}) {
    const Toy toys(kFp8Dynamic,
                   {toy("l.0.q_proj.weight", "F8_E4M3", {4, 16}, 1), toy("l.0.q_proj.weight_scale", "F32", {1}, 1),
                    toy(down, dtype, {2, 4, 16}, 1), toy(down + scale, "F32", {2, 1, 1}, 1),
                    toy("l.0.experts.up_proj", "BF16", {2, 4, 16}, 1)});
    const Checkpoint checkpoint = toys.open();
    ASSERT_EQ(checkpoint.warnings().size(), 1u) << dtype << scale;
    EXPECT_TRUE(contains(checkpoint.warnings()[0], "\"" + down + "\"")) << checkpoint.warnings()[0];
  }
}

TEST(LayerTable, NamesFormatsThatAreNotOurs) {
  const std::string config = compressed("int-quantized", kChannel, kToken);
  EXPECT_TRUE(contains(Toy(config, {toy("m.weight_packed", "I32", {4, 4}, 1)}).refusal<Unsupported>(), "packed"));
  EXPECT_TRUE(contains(Toy(config, {toy("m.weight", "I8", {4, 4}, 1), toy("m.a", "F32", {}, 1)}).refusal<Unsupported>(),
                       "SmoothQuant"));
}

TEST(LayerTable, LayersComeInNaturalOrderAndMissesNameTheNearest) {
  const Toy toys("{}", {toy("l.10.q_proj.weight", "BF16", {4, 4}, 1), toy("l.2.q_proj.weight", "BF16", {4, 4}, 1),
                        toy("l.2.norm.weight", "BF16", {4}, 1)});
  const Checkpoint checkpoint = toys.open();
  ASSERT_EQ(checkpoint.layers().size(), 2u);
  EXPECT_EQ(checkpoint.layers()[0].name, "l.2.q_proj");
  EXPECT_EQ(checkpoint.model_dtype(), DType::kBF16);
  const std::string text = message_of<CheckpointError>([&] { checkpoint.layer("l.3.q_proj"); });
  EXPECT_TRUE(contains(text, "\"l.2.q_proj\"")) << text;
  EXPECT_TRUE(contains(message_of<Unsupported>([&] { Linear::load(checkpoint, "l.2.q_proj"); }), "dense"));
  EXPECT_THROW(checkpoint.tensor("none"), CheckpointError);
  EXPECT_THROW(Checkpoint::open(toys.folder / "absent"), IoError);
}

TEST(LayerTable, ReadsAmdAndE5m2WeightsByTheirType) {
  for (const auto& [stored, dtype] : {std::pair("F8_E4M3FNUZ", DType::kE4M3FNUZ), std::pair("F8_E5M2", DType::kE5M2)}) {
    const Toy toys(kFp8Dynamic, {toy("m.weight", stored, {4, 16}, 1), toy("m.weight_scale", "F32", {1}, 1)});
    const Checkpoint checkpoint = toys.open();
    const auto& config = std::get<Fp8Config>(checkpoint.layer("m").config);
    EXPECT_EQ(config.weight_quant_key.dtype, dtype);
    EXPECT_EQ(config.activation_quant_key->dtype, dtype == DType::kE4M3FNUZ ? dtype : DType::kE4M3FN);
    EXPECT_EQ(any_contains(checkpoint.layer("m").warnings, "F8_E5M2"), dtype == DType::kE5M2);
  }
}

TEST(LayerTable, E5m2WeightsContradictAConfigThatSaysE4m3) {
  for (const char* config : {R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic"})",
                             R"({"quant_method":"quark","export":{},"global_quant_config":{
                                 "weight":{"dtype":"fp8_e4m3","qscheme":"per_tensor"}}})"}) {
    const auto tensors = [](const char* dtype) {
      return std::vector{toy("m.weight", dtype, {4, 16}, 1), toy("m.weight_scale", "F32", {1}, 1)};
    };
    const std::string text = Toy(with_config(config), tensors("F8_E5M2")).refusal();
    EXPECT_TRUE(contains(text, "\"m.weight\" is F8_E5M2") && contains(text, "says e4m3")) << text;
    EXPECT_TRUE(Toy(with_config(config), tensors("F8_E4M3FNUZ")).open().layer("m").quantized);
  }
}

}  // namespace
}  // namespace scaledmm
