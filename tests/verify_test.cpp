// What `verify` finds: values, and tensors that config.json promises otherwise.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "toy_layers.hpp"

namespace scaledmm {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Verify, FindsCodesAndPromisesThatAreBroken) {
  const Toy toys(with_config(R"({"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[4,4],
                   "scale_fmt":"ue8m0"})"),
                 {toy("m.weight", "F8_E4M3", {4, 8}, [](auto i) { return i == 13 || i == 14 ? NAN : 1; }),
                  toy("m.weight_scale_inv", "F32", {1, 2}, [](auto i) { return i == 0 ? 2 : 3; }),
                  toy("m.bias", "F32", {4}, [](auto i) { return i == 3 ? kInf : 0; })});
  std::size_t calls = 0;
  const std::vector<std::string> problems = toys.open().verify([&](std::size_t done, std::size_t total) {
    ++calls;
    EXPECT_EQ(done, total);
  });
  EXPECT_EQ(calls, 1u);
  ASSERT_EQ(problems.size(), 3u);
  EXPECT_TRUE(contains(problems[0], "\"m.weight\": element [1, 5] is not a number (and 1 more)")) << problems[0];
  EXPECT_TRUE(contains(problems[1], "[0, 1] = 3 is no power of two")) << problems[1];
  EXPECT_TRUE(contains(problems[2], "\"m.bias\": element [3]")) << problems[2];
}

TEST(Verify, DenseTensorsAreReadToo) {
  const Toy toys("{}", {toy("m.weight", "F32", {4, 8}, [](auto i) { return i == 13 ? kInf : 1; }),
                        toy("norm.weight", "BF16", {8}, [](auto i) { return i >= 6 ? NAN : 1; })});
  const Checkpoint checkpoint = toys.open();
  const std::vector<std::string> problems = checkpoint.verify();
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_TRUE(contains(problems[0], "\"m.weight\": element [1, 5] is not finite")) << problems[0];
  EXPECT_TRUE(contains(problems[1], "\"norm.weight\": element [6] is not finite (and 1 more)")) << problems[1];
  EXPECT_EQ(checkpoint.verify(checkpoint.layer("m")), std::vector{problems[0]});
}

TEST(Verify, AScaleMustNotMakeWeightsTooLargeForTheModelsType) {
  const auto problems = [](const char* dtype, double scale, double code) {
    return Toy(with_config(R"({"quant_method":"fp8","activation_scheme":"dynamic"})", dtype),
               {toy("m.weight", "F8_E4M3", {4, 8}, [&](auto i) { return i == 13 || i == 14 ? code : 0.5; }),
                toy("m.weight_scale", "F32", {4}, [&](auto i) { return i == 1 ? scale : 1; })})
        .open()
        .verify();
  };
  // The largest numbers are 3.4028e38, 3.3895e38 and 65504; 448 is e4m3's.
  for (const auto& [dtype, name, fits, overflows] :
       {std::tuple("float32", "f32", 7.59e35, 7.6e35), std::tuple("bfloat16", "bf16", 7.56e35, 7.59e35),
        std::tuple("float16", "f16", 146.0, 147.0)}) {
    EXPECT_TRUE(problems(dtype, fits, 448).empty()) << dtype;
    EXPECT_TRUE(problems(dtype, overflows, -256).empty()) << dtype;  // a scale is as large as its weights make it
    const std::vector<std::string> found = problems(dtype, overflows, -448);
    ASSERT_EQ(found.size(), 1u) << dtype;
    EXPECT_TRUE(contains(found[0], "model.safetensors: tensor \"m.weight_scale\": element [1] = ")) << found[0];
    EXPECT_TRUE(
        contains(found[0], std::string("makes weight [1, 5] too large for ") + name + ": -448 times it (and 1 more)"))
        << found[0];
  }
  const Toy int8(compressed("int-quantized", kChannel, kToken),
                 {toy("m.weight", "I8", {2, 4}, -128), toy("m.weight_scale", "F32", {2, 1}, 2.66e36)});
  ASSERT_EQ(int8.open().verify().size(), 1u);
  EXPECT_TRUE(contains(int8.open().verify()[0], "too large for f32: -128 times it (and 7 more)"));
  const Toy both(kFp8Static, {toy("m.weight", "F8_E4M3", {4, 8}, 1), toy("m.weight_scale", "F32", {1}, 1e20),
                              toy("m.input_scale", "F32", {1}, 1e20)});
  ASSERT_EQ(both.open().verify().size(), 1u);
  EXPECT_TRUE(contains(both.open().verify()[0], "\"m.input_scale\" = 1e+20 times the weight scale 1e+20 is too large"));
}

TEST(Verify, APlainDecoderHasTheLayersThatItsConfigCounts) {
  std::vector<ToyTensor> tensors;
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    tensors.push_back(toy(layer + "input_layernorm.weight", "BF16", {8}, 1));
    tensors.push_back(toy(layer + "mlp.down_proj.weight", "BF16", {8, 16}, 1));
  }
  tensors.insert(tensors.begin(), toy("model.embed_tokens.weight", "BF16", {4, 8}, 1));
  tensors.insert(tensors.begin(), toy("model.norm.weight", "BF16", {8}, 1));
  const auto problems = [&](const std::string& count, const std::string& type = "llama") {
    return Toy(R"({"model_type":")" + type + R"(","num_hidden_layers":)" + count + "}", tensors).open().verify();
  };
  EXPECT_TRUE(problems("2").empty());
  EXPECT_TRUE(problems("null").empty());
  EXPECT_TRUE(problems("3", "toy").empty());  // of a model that is not known, names may mean something else
  for (const auto& [count, part] :
       {std::pair("3", "num_hidden_layers is 3, but there is no tensor \"model.layers.2.input_layernorm.weight\""),
        std::pair("1000000000000", "there is no tensor \"model.layers.2.input_layernorm.weight\""),
        std::pair("1",
                  "\"model.layers.1.input_layernorm.weight\" is of layer 1, but num_hidden_layers in config.json is 1"),
        std::pair("0", "num_hidden_layers = 0 is no size"), std::pair("1e30", "num_hidden_layers is not an integer")}) {
    ASSERT_EQ(problems(count).size(), 1u) << count;
    EXPECT_TRUE(contains(problems(count)[0], part)) << problems(count)[0];
  }
  const std::string causal = R"(2,"architectures":["LlamaForCausalLM"],"tie_word_embeddings":)";
  EXPECT_TRUE(problems(causal + "true").empty());
  EXPECT_TRUE(problems(R"(2,"architectures":["LlamaForSequenceClassification"])").empty());
  ASSERT_EQ(problems(causal + "false").size(), 1u);
  EXPECT_TRUE(contains(problems(causal + "null")[0], "is not true, but there is no tensor \"lm_head.weight\""));
  tensors.pop_back();
  ASSERT_EQ(problems("2").size(), 1u);
  EXPECT_TRUE(contains(problems("2")[0], "there is no tensor \"model.layers.1.mlp.down_proj.weight\""));
  tensors.erase(tensors.begin());
  tensors.pop_back();
  tensors.pop_back();
  ASSERT_EQ(problems("1").size(), 1u);
  EXPECT_TRUE(contains(problems("1")[0], "there is no tensor \"model.norm.weight\"")) << problems("1")[0];
}

TEST(Verify, AQuantizedModelHasAQuantizedLayer) {
  const Toy toys(kFp8Dynamic, {toy("norm.weight", "F32", {8}, 1)});
  const std::vector<std::string> problems = toys.open().verify();
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_TRUE(contains(problems[0], "\"compressed-tensors\", but no layer is quantized") ||
              contains(problems[0], "\"fp8\", but no layer is quantized"))
      << problems[0];
}

}  // namespace
}  // namespace scaledmm
