// Layers that run as one: scales of each part, biases side by side, blocks, and parts that do not go together.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "toy_layers.hpp"

namespace scaledmm {
namespace {

// q, k, v of 64 + 16 + 16 rows with per-tensor scales 0.5, 2, 0.125.
std::vector<ToyTensor> unequal_parts(const char* dtype, bool static_input) {
  std::vector<ToyTensor> tensors;
  for (const auto& [name, n, scale] :
       {std::tuple("q_proj", 64, 0.5), std::tuple("k_proj", 16, 2.0), std::tuple("v_proj", 16, 0.125)}) {
    tensors.push_back(toy(std::string(name) + ".weight", dtype, {n, 32}, 1));
    tensors.push_back(toy(std::string(name) + ".weight_scale", "F32", {}, scale));
    if (static_input) tensors.push_back(toy(std::string(name) + ".input_scale", "F32", {}, 1));
  }
  return tensors;
}
const std::vector<std::string> kParts = {"q_proj", "k_proj", "v_proj"};

TEST(Fused, PartsOfUnequalWidthKeepTheirScales) {
  struct Case {
    std::string config;
    const char* dtype;
    bool static_input;
  };
  for (const Case& c : {Case{kFp8Static, "F8_E4M3", true}, Case{kFp8Dynamic, "F8_E4M3", false},
                        Case{compressed("float-quantized", kTensor, "null"), "F8_E4M3", false},
                        Case{compressed("int-quantized", kTensor, kTensor), "I8", true},
                        Case{compressed("int-quantized", kTensor, kToken), "I8", false}}) {
    const Toy toys(c.config, unequal_parts(c.dtype, c.static_input));
    const Linear linear = Linear::load_fused(toys.open(), kParts);
    EXPECT_EQ(weight_shape(linear.config()), (WeightShape{96, 32}));
    EXPECT_TRUE(linear.warnings().empty());
    const std::vector<float> y = run_ones(linear);
    expect_near_all(y, 0, 64, 16);
    expect_near_all(y, 64, 80, 64);
    expect_near_all(y, 80, 96, 4);
  }
}

TEST(Fused, OneScaleOnDiskIsForAllParts) {
  const Toy toys(kFp8Dynamic,
                 {toy("qkv_proj.weight", "F8_E4M3", {96, 32}, 1), toy("qkv_proj.weight_scale", "F32", {1}, 2)});
  expect_near_all(run_ones(Linear::load(toys.open(), "qkv_proj")), 0, 96, 64);
}

TEST(Fused, BiasesLieSideBySide) {
  std::vector<ToyTensor> tensors = unequal_parts("F8_E4M3", false);
  tensors.push_back(toy("k_proj.bias", "BF16", {16}, 3));
  const std::vector<float> y = run_ones(Linear::load_fused(Toy(kFp8Dynamic, tensors).open(), kParts));
  expect_near_all(y, 0, 64, 16);
  expect_near_all(y, 64, 80, 67);
}

TEST(Fused, StaticInputScalesThatDifferAreMergedAndSaid) {
  std::vector<ToyTensor> tensors = unequal_parts("F8_E4M3", true);
  tensors.back() = toy("v_proj.input_scale", "F32", {}, 2);
  const Linear linear = Linear::load_fused(Toy(kFp8Static, tensors).open(), kParts);
  EXPECT_TRUE(any_contains(linear.warnings(), "the largest is taken"));
  expect_near_all(run_ones(linear), 0, 64, 16);
}

TEST(Fused, BlockPartsMustFillTheirBlocks) {
  const auto tensors = [](std::int64_t first) {
    return std::vector<ToyTensor>{toy("gate_proj.weight", "F8_E4M3", {first, 128}, 1),
                                  toy("gate_proj.weight_scale_inv", "F32", {2, 1}, [](auto i) { return i + 1; }),
                                  toy("up_proj.weight", "F8_E4M3", {192, 128}, 1),
                                  toy("up_proj.weight_scale_inv", "F32", {2, 1}, [](auto i) { return i + 3; })};
  };
  const std::vector<float> y =
      run_ones(Linear::load_fused(Toy(kFp8Block, tensors(256)).open(), {"gate_proj", "up_proj"}));
  expect_near_all(y, 0, 128, 128);
  expect_near_all(y, 128, 256, 256);
  expect_near_all(y, 256, 384, 384);
  expect_near_all(y, 384, 448, 512);
  const Toy misaligned(kFp8Block, tensors(192));
  const Checkpoint checkpoint = misaligned.open();
  const std::string text = message_of<InvalidArgument>([&] {
    Linear::load_fused(checkpoint, {"gate_proj", "up_proj"});
  });
  EXPECT_TRUE(contains(text, "192 rows do not fill scale blocks of 128")) << text;
}

TEST(Fused, PartsThatDifferAreListed) {
  std::vector<ToyTensor> tensors = unequal_parts("I8", false);
  tensors[0] = toy("q_proj.weight", "BF16", {64, 32}, 1);
  tensors.erase(tensors.begin() + 1);
  const Toy toys(compressed("int-quantized", kTensor, kToken, "\"q_proj\""), tensors);
  const Checkpoint checkpoint = toys.open();
  const std::string text = message_of<InvalidArgument>([&] { Linear::load_fused(checkpoint, kParts); });
  EXPECT_TRUE(contains(text, "q_proj: dense (left out)") && contains(text, "k_proj: int8")) << text;
  EXPECT_THROW(Linear::load_fused(checkpoint, {}), InvalidArgument);
}

TEST(Fused, GroupsThatAreQuantizedInPartAreNoticed) {
  const auto layers = [](const std::string& quantized) {
    std::vector<ToyTensor> tensors;
    for (const std::string block : {"model.layers.0.", "model.layers.10."}) {
      for (const std::string part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
                                     "mlp.up_proj", "mlp.down_proj"}) {
        const bool is_dense = !contains(quantized, part.substr(part.find('.') + 1));
        tensors.push_back(toy(block + part + ".weight", is_dense ? "BF16" : "F8_E4M3", {8, 8}, 1));
        if (!is_dense) tensors.push_back(toy(block + part + ".weight_scale", "F32", {1}, 1));
      }
    }
    return Toy(kFp8Dynamic, tensors).open().warnings();
  };
  EXPECT_TRUE(layers("q_proj k_proj v_proj gate_proj up_proj").empty());
  EXPECT_TRUE(layers("down_proj").empty());
  const std::vector<std::string> warnings = layers("k_proj v_proj up_proj");
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_EQ(
      warnings[1],
      "q_proj of \"model.layers.0.self_attn\" is dense and k_proj and v_proj are quantized (and 1 group like it): "
      "vLLM runs them as one layer and refuses such a checkpoint");
  EXPECT_TRUE(contains(warnings[0], "gate_proj of \"model.layers.0.mlp\" is dense and up_proj is quantized"));
  EXPECT_TRUE(
      contains(layers("v_proj")[0], "q_proj and k_proj of \"model.layers.0.self_attn\" are dense and v_proj is"));
}

TEST(Fused, ARefusalNamesTheLayers) {
  const Toy toys(kFp8Dynamic, unequal_parts("F8_E4M3", false));
  LinearOptions options;
  options.select.force = "int8_w8a8_avx2";
  for (const std::vector<std::string>& layers : {kParts, std::vector<std::string>{"k_proj"}}) {
    const std::string text = message_of<Unsupported>([&] { Linear::load_fused(toys.open(), layers, options); });
    EXPECT_TRUE(text.starts_with(layers.size() == 1 ? "layer \"k_proj\": kernel" : "layer \"q_proj+k_proj+v_proj\": "))
        << text;
  }
}

}  // namespace
}  // namespace scaledmm
