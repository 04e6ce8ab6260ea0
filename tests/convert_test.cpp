// The converter: what it writes reads back as the scheme it was asked for, close to the dense weights, and whole or not
// at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "child_process.hpp"
#include "numerics/formats.hpp"
#include "scaledmm/scaledmm.hpp"
#include "scratch_folder.hpp"
#include "toy_dense_model.hpp"

namespace scaledmm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json config_of(const fs::path& directory) { return Json::parse(read_bytes(directory / "config.json")); }

// The largest |dense - dequantized| of a layer, read back through the public interface.
double largest_error(const fs::path& directory, const std::string& layer, const DenseTensor& dense) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const LayerRecord& record = checkpoint.layer(layer);
  const CheckedWeights weights = check_weights(record.config, checkpoint.weights(record), record.name);
  double largest = 0;
  for (std::int64_t n = 0; n < weights.n; ++n) {
    for (std::int64_t k = 0; k < weights.k; ++k) {
      const std::uint8_t code = weights.bytes[n * weights.row_pitch + k];
      const float value = weights.dtype == DType::kInt8 ? static_cast<float>(static_cast<std::int8_t>(code))
                                                        : fp8_to_f32(code, weights.dtype);
      const double difference =
          static_cast<double>(value) * weights.scale(n, k) - dense.values[static_cast<std::size_t>(n * weights.k + k)];
      largest = std::max(largest, std::abs(difference));
    }
  }
  return largest;
}

struct Case {
  ConvertScheme scheme;
  const char* label;
  const char* method;
  const char* layer_scheme;
  const char* scale;
  const char* weight_dtype;
};

class EveryScheme : public ::testing::TestWithParam<Case> {};

TEST_P(EveryScheme, ReadsBackAsWhatItIs) {
  const ScratchFolder folder;
  const DenseModel model = toy_model();
  write_model(folder / "dense", model);
  ConvertOptions options;
  options.scheme = GetParam().scheme;
  const std::vector<ConvertedLayer> reports = convert(folder / "dense", folder / "out", options);
  ASSERT_EQ(reports.size(), 4U);

  const Checkpoint checkpoint = Checkpoint::open(folder / "out");
  EXPECT_EQ(checkpoint.quant_method(), GetParam().method);
  EXPECT_TRUE(checkpoint.verify().empty());
  for (const ConvertedLayer& report : reports) {
    const LayerRecord& record = checkpoint.layer(report.name);
    EXPECT_TRUE(record.quantized);
    EXPECT_EQ(record.scheme, GetParam().layer_scheme) << report.name;
    EXPECT_EQ(record.weight_scale, report.name + "." + GetParam().scale);
    EXPECT_NEAR(largest_error(folder / "out", report.name, model.at(report.name + ".weight")), report.max_abs_error,
                1e-6)
        << report.name;
    EXPECT_GT(report.cosine, 0.999);
    EXPECT_EQ(report.saturated, 0) << report.name;
  }
  for (const std::string dense : {"lm_head", "model.layers.0.mlp.gate"}) {
    EXPECT_FALSE(checkpoint.layer(dense).quantized) << dense;
  }
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (tensor.name == "model.layers.0.mlp.up_proj.weight") {
      EXPECT_EQ(tensor.stored_dtype, GetParam().weight_dtype);
    }
    if (tensor.name == "model.embed_tokens.weight") {
      EXPECT_EQ(tensor.stored_dtype, "BF16");
    }
  }
}

TEST_P(EveryScheme, RunsLikeTheDenseLayer) {
  const ScratchFolder folder;
  const DenseModel model = toy_model();
  write_model(folder / "dense", model);
  ConvertOptions options;
  options.scheme = GetParam().scheme;
  convert(folder / "dense", folder / "out", options);
  CheckpointOptions as_f32;
  as_f32.input_dtype = DType::kF32;
  const Checkpoint checkpoint = Checkpoint::open(folder / "out", as_f32);
  const std::string name = "model.layers.0.mlp.up_proj";
  const Linear linear = Linear::load(checkpoint, name);
  std::vector<float> x(kHidden);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = scattered(static_cast<std::int64_t>(i) + 1000003) / 16;
  std::vector<float> y(kInner);
  Context context;
  linear.apply({x.data(), DType::kF32, {1, kHidden}}, {y.data(), DType::kF32, {1, kInner}}, context);
  const std::vector<float>& w = model.at(name + ".weight").values;
  double error = 0;
  double square = 0;  // of what independent x and w would give: outputs themselves may cancel
  for (std::size_t n = 0; n < y.size(); ++n) {
    double sum = 0.5;  // the bias
    for (std::size_t k = 0; k < x.size(); ++k) {
      const double product = static_cast<double>(x[k]) * w[n * kHidden + k];
      sum += product;
      square += product * product;
    }
    error += (y[n] - sum) * (y[n] - sum);
  }
  EXPECT_LT(std::sqrt(error / square), 0.06);
  EXPECT_GT(std::sqrt(error / square), 1e-6);  // and it was quantized
}

std::string case_name(const ::testing::TestParamInfo<Case>& tested) { return tested.param.label; }

INSTANTIATE_TEST_SUITE_P(
    Convert, EveryScheme,
    ::testing::Values(
        Case{ConvertScheme::kInt8Channel, "Int8Channel", "compressed-tensors", "int8", "weight_scale", "I8"},
        Case{ConvertScheme::kFp8Channel, "Fp8Channel", "compressed-tensors", "fp8_w8a8", "weight_scale", "F8_E4M3"},
        Case{ConvertScheme::kFp8Tensor, "Fp8Tensor", "fp8", "fp8_w8a8", "weight_scale", "F8_E4M3"},
        Case{ConvertScheme::kFp8Block, "Fp8Block", "fp8", "fp8_w8a8_block", "weight_scale_inv", "F8_E4M3"}),
    case_name);

TEST(Convert, ScalesHaveTheShapesThatVllmAsserts) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  const std::map<ConvertScheme, Shape> expected = {{ConvertScheme::kInt8Channel, {kInner, 1}},
                                                   {ConvertScheme::kFp8Channel, {kInner, 1}},
                                                   {ConvertScheme::kFp8Tensor, {1}},
                                                   {ConvertScheme::kFp8Block, {2, 2}}};
  for (const auto& [scheme, shape] : expected) {
    const fs::path out = folder / ("out" + std::to_string(static_cast<int>(scheme)));
    ConvertOptions options;
    options.scheme = scheme;
    convert(folder / "dense", out, options);
    const Checkpoint checkpoint = Checkpoint::open(out);
    const std::string name = checkpoint.layer("model.layers.1.mlp.up_proj").weight_scale;
    EXPECT_EQ(checkpoint.tensor(name).shape, shape) << name << " " << checkpoint.tensor(name).shape.text();
    EXPECT_EQ(checkpoint.tensor(name).dtype, DType::kF32);
  }
}

TEST(Convert, CompressedTensorsConfigHasNothingBeyondTheSchema) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  convert(folder / "dense", folder / "out", {});
  const Json config = config_of(folder / "out");
  EXPECT_EQ(config.at("architectures"), Json({"LlamaForCausalLM"}));
  const Json expected = {
      {"quant_method", "compressed-tensors"},
      {"format", "int-quantized"},
      {"quantization_status", "compressed"},
      {"kv_cache_scheme", nullptr},
      {"ignore", {"lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"}},
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear"}},
          {"weights",
           {{"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}, {"dynamic", false}}},
          {"input_activations",
           {{"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "token"}, {"dynamic", true}}}}}}}};
  EXPECT_EQ(config.at("quantization_config"), expected);
}

TEST(Convert, AsymmetricInputsAreForInt8AndReadBack) {
  const ScratchFolder scratch;
  write_model(scratch / "model", toy_model());
  ConvertOptions options;
  options.asymmetric_inputs = true;
  convert(scratch / "model", scratch / "int8", options);
  EXPECT_EQ(
      config_of(scratch / "int8")["quantization_config"]["config_groups"]["group_0"]["input_activations"]["symmetric"],
      false);
  const Checkpoint checkpoint = Checkpoint::open(scratch / "int8");
  const LayerRecord& record = checkpoint.layer("model.layers.1.mlp.down_proj");
  EXPECT_FALSE(std::get<Int8ScaledMMLinearLayerConfig>(record.config).input_symmetric);
  options.scheme = ConvertScheme::kFp8Channel;
  EXPECT_THROW(convert(scratch / "model", scratch / "fp8", options), InvalidArgument);
  EXPECT_FALSE(fs::exists(scratch / "fp8"));
}

TEST(Convert, Fp8ConfigNamesTheDenseLayersForBothReaders) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  ConvertOptions options;
  options.scheme = ConvertScheme::kFp8Block;
  convert(folder / "dense", folder / "out", options);
  const Json config = config_of(folder / "out").at("quantization_config");
  EXPECT_EQ(config.at("quant_method"), "fp8");
  EXPECT_EQ(config.at("activation_scheme"), "dynamic");
  EXPECT_EQ(config.at("weight_block_size"), Json({128, 128}));
  EXPECT_EQ(config.at("ignored_layers"), config.at("modules_to_not_convert"));
  EXPECT_EQ(config.at("ignored_layers").front(), "lm_head");
}

TEST(Convert, CopiesOtherFilesButNoPickle) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  convert(folder / "dense", folder / "out", {});
  EXPECT_TRUE(fs::exists(folder / "out/tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder / "out/pytorch_model.bin"));
}

TEST(Convert, SplitsIntoShardsThatReadTheSame) {
  const ScratchFolder folder;
  const DenseModel model = toy_model();
  write_model(folder / "dense", model);
  ConvertOptions options;
  options.shard_bytes = 60'000;
  convert(folder / "dense", folder / "out", options);
  EXPECT_TRUE(fs::exists(folder / "out/model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(folder / "out/model-00001-of-00003.safetensors"));
  EXPECT_FALSE(fs::exists(folder / "out/model.safetensors"));
  const Checkpoint checkpoint = Checkpoint::open(folder / "out");
  EXPECT_TRUE(checkpoint.warnings().empty()) << checkpoint.warnings().front();
  convert(folder / "dense", folder / "whole", {});
  const Checkpoint whole = Checkpoint::open(folder / "whole");
  ASSERT_EQ(checkpoint.tensors().size(), whole.tensors().size());
  for (std::size_t i = 0; i < whole.tensors().size(); ++i) {
    const std::string& name = whole.tensors()[i].name;
    ASSERT_EQ(checkpoint.tensors()[i].name, name);
    const ConstTensorView a = checkpoint.tensor(name);
    const ConstTensorView b = whole.tensor(name);
    ASSERT_EQ(a.shape, b.shape);
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(a.shape.elements() * size_bytes(a.dtype))), 0);
  }
}

TEST(Convert, TakesF16AndF32Models) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    const ScratchFolder folder;
    const DenseModel model = toy_model(dtype);
    write_model(folder / "dense", model);
    const std::vector<ConvertedLayer> reports = convert(folder / "dense", folder / "out", {});
    const std::string layer = "model.layers.0.mlp.down_proj";
    // Half a step of the row with the largest weights: absmax below 1, 127 steps.
    EXPECT_LE(largest_error(folder / "out", layer, model.at(layer + ".weight")), 0.5 / 127);
  }
}

TEST(Convert, Bf16ScalesAreTheOnesThatQuantized) {
  const ScratchFolder folder;
  const DenseModel model = toy_model();
  write_model(folder / "dense", model);
  ConvertOptions options;
  options.bf16_scales = true;
  convert(folder / "dense", folder / "out", options);
  const Checkpoint checkpoint = Checkpoint::open(folder / "out");
  const std::string layer = "model.layers.0.mlp.up_proj";
  EXPECT_EQ(checkpoint.tensor(layer + ".weight_scale").dtype, DType::kBF16);
  const LayerRecord& record = checkpoint.layer(layer);
  const CheckedWeights weights = check_weights(record.config, checkpoint.weights(record), layer);
  const std::vector<float>& dense = model.at(layer + ".weight").values;
  for (std::int64_t n = 0; n < weights.n; ++n) {
    for (std::int64_t k = 0; k < weights.k; ++k) {
      const auto code = static_cast<std::int8_t>(weights.bytes[n * weights.row_pitch + k]);
      if (code == 127 || code == -128) continue;  // a scale that was rounded down clips the largest weight
      const double steps =
          static_cast<double>(dense[static_cast<std::size_t>(n * weights.k + k)]) / weights.scale(n, k);
      ASSERT_NEAR(steps, code, 0.5 + 1e-4) << n << ", " << k;
    }
  }
}

TEST(Convert, KeepsARowOfZeros) {
  const ScratchFolder folder;
  DenseModel model = toy_model();
  DenseTensor& tensor = model.at("model.layers.0.mlp.up_proj.weight");
  std::fill_n(tensor.values.begin() + 3 * kHidden, kHidden, 0.0f);
  write_model(folder / "dense", model);
  for (const bool bf16 : {false, true}) {
    const fs::path out = folder / (bf16 ? "bf16" : "f32");
    ConvertOptions options;
    options.bf16_scales = bf16;
    convert(folder / "dense", out, options);
    const Checkpoint checkpoint = Checkpoint::open(out);
    const auto* codes = static_cast<const std::int8_t*>(checkpoint.tensor("model.layers.0.mlp.up_proj.weight").data);
    for (std::int64_t k = 0; k < kHidden; ++k) ASSERT_EQ(codes[3 * kHidden + k], 0);
  }
}

TEST(Convert, LeavesIgnoredLayersDense) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  ConvertOptions options;
  options.ignore = {"re:.*layers\\.0\\..*down_proj$", "model.layers.1.mlp.up_proj"};
  EXPECT_EQ(convert(folder / "dense", folder / "out", options).size(), 2U);
  const Checkpoint checkpoint = Checkpoint::open(folder / "out");
  EXPECT_FALSE(checkpoint.layer("model.layers.0.mlp.down_proj").quantized);
  EXPECT_FALSE(checkpoint.layer("model.layers.1.mlp.up_proj").quantized);
  EXPECT_TRUE(checkpoint.layer("model.layers.1.mlp.down_proj").quantized);
}

TEST(Convert, RefusesAnIgnoreEntryThatMatchesNothing) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  ConvertOptions options;
  options.ignore = {"model.layers.7.mlp.up_proj"};
  const auto text = message_of<InvalidArgument>([&] { convert(folder / "dense", folder / "out", options); });
  EXPECT_TRUE(contains(text, "model.layers.7.mlp.up_proj")) << text;
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(Convert, NamesTheFileTensorAndPlaceOfAWeightThatIsNotFinite) {
  const ScratchFolder folder;
  DenseModel model = toy_model();
  model.at("model.layers.1.mlp.up_proj.weight").values[5 * kHidden + 7] = std::numeric_limits<float>::quiet_NaN();
  write_model(folder / "dense", model);
  const auto text = message_of<CheckpointError>([&] { convert(folder / "dense", folder / "out", {}); });
  EXPECT_TRUE(contains(text, "model.safetensors")) << text;
  EXPECT_TRUE(contains(text, "model.layers.1.mlp.up_proj.weight")) << text;
  EXPECT_TRUE(contains(text, "5") && contains(text, "7")) << text;
  EXPECT_EQ(folder.entries(), 1U);  // nothing half-written
}

TEST(Convert, RefusesAWeightOfAnotherSizeThanConfigJsonSays) {
  const ScratchFolder scratch;
  DenseModel model = toy_model();
  model["model.layers.1.self_attn.k_proj.weight"] = matrix(16, kHidden);
  write_model(scratch / "dense", model);
  const Json right = {{"model_type", "llama"},     {"hidden_size", kHidden}, {"intermediate_size", kInner},
                      {"num_attention_heads", 17}, {"vocab_size", 32},       {"num_key_value_heads", 2}};
  const auto refusal = [&](const char* member, const Json& value) {
    Json config = right;
    config[member] = value;
    std::ofstream(scratch / "dense" / "config.json") << config;
    return message_of<CheckpointError>([&] { convert(scratch / "dense", scratch / "out", ConvertOptions()); });
  };
  std::string text = refusal("intermediate_size", kInner + 1);
  EXPECT_TRUE(contains(text,
                       "model.safetensors: tensor \"model.layers.0.mlp.down_proj.weight\" is [136, 200], but "
                       "intermediate_size in config.json is 201"))
      << text;
  text = refusal("num_key_value_heads", 3);
  EXPECT_TRUE(contains(text,
                       "k_proj.weight\" is [16, 136], but num_key_value_heads * hidden_size / num_attention_heads "
                       "in config.json is 24"))
      << text;
  text = refusal("vocab_size", 33);
  EXPECT_TRUE(contains(text, "\"lm_head.weight\" is [32, 136], but vocab_size in config.json is 33")) << text;
  text = refusal("hidden_size", 0);
  EXPECT_TRUE(contains(text, "config.json: hidden_size = 0 is no size")) << text;
  EXPECT_FALSE(fs::exists(scratch / "out"));
  std::ofstream(scratch / "dense" / "config.json") << right;
  EXPECT_NO_THROW(convert(scratch / "dense", scratch / "out", ConvertOptions()));
  Json other = right;  // of a model that is not known, sizes may mean something else
  other["model_type"] = "toy";
  other["hidden_size"] = 1;
  std::ofstream(scratch / "dense" / "config.json") << other;
  EXPECT_NO_THROW(convert(scratch / "dense", scratch / "other", ConvertOptions()));
}

TEST(Convert, RefusesADestinationThatExists) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  fs::create_directory(folder / "out");
  EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { convert(folder / "dense", folder / "out", {}); }), "out"));
}

TEST(Convert, RefusesAModelThatIsQuantizedAlready) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  convert(folder / "dense", folder / "out", {});
  const auto text = message_of<Unsupported>([&] { convert(folder / "out", folder / "again", {}); });
  EXPECT_TRUE(contains(text, "compressed-tensors")) << text;
}

TEST(Convert, LeavesNothingBehindOnAFullDisk) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  const std::string complaint = run_in_child([&]() -> std::string {
    limit_file_size(20'000);
    try {
      convert(folder / "dense", folder / "out", {});
      return "nothing was thrown";
    } catch (const IoError& error) {
      return contains(error.what(), "model.safetensors") ? "" : error.what();
    }
  });
  EXPECT_EQ(complaint, "");
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(Convert, ReportsProgressToTheEnd) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  std::vector<std::size_t> seen;
  ConvertOptions options;
  options.progress = [&](std::size_t done, std::size_t total, std::string_view) {
    EXPECT_EQ(total, 4U);
    seen.push_back(done);
  };
  convert(folder / "dense", folder / "out", options);
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back(), 4U);
}

TEST(Convert, CopiesWhatIsNoWeightsAndNamesTheRest) {
  const ScratchFolder folder;
  const fs::path dense = folder / "dense";
  write_model(dense, toy_model());
  for (const char* name : {"1_Pooling", "assets/deep", "original", ".cache", "empty"})
    fs::create_directories(dense / name);
  for (const char* name :
       {"1_Pooling/config.json", "assets/deep/a.txt", "original/params.json", "original/consolidated.00.pth",
        ".cache/x", ".gitattributes", "merges.txt", "consolidated.safetensors", "pytorch_model.bin.index.json"}) {
    std::ofstream(dense / name) << name;
  }
  fs::create_directory_symlink(dense, dense / "loop");
  fs::create_symlink(dense / "merges.txt", dense / "link.txt");
  std::vector<std::string> warnings;
  ConvertOptions options;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  convert(dense, dense / "int8", options);  // inside the source
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(
      warnings[0].ends_with("dense: not copied: .cache/, consolidated.safetensors, loop/, original/, "
                            "pytorch_model.bin, pytorch_model.bin.index.json"))
      << warnings[0];
  std::vector<std::string> copied;
  for (const auto& entry : fs::recursive_directory_iterator(dense / "int8")) {
    copied.push_back(entry.path().lexically_relative(dense / "int8").string());
  }
  std::ranges::sort(copied);
  EXPECT_EQ(copied, (std::vector<std::string>{".gitattributes", "1_Pooling", "1_Pooling/config.json", "assets",
                                              "assets/deep", "assets/deep/a.txt", "config.json", "empty", "link.txt",
                                              "merges.txt", "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(read_bytes(dense / "int8" / "link.txt"), "merges.txt");
  EXPECT_FALSE(fs::is_symlink(dense / "int8" / "link.txt"));
}

TEST(Convert, AFileThatCannotBeCopiedIsFoundBeforeTheWork) {
  const ScratchFolder folder;
  write_model(folder / "dense", toy_model());
  fs::create_symlink("nowhere", folder / "dense" / "vocab.txt");
  ConvertOptions options;
  options.progress = [](std::size_t, std::size_t, std::string_view) { ADD_FAILURE() << "it has begun"; };
  const auto text = message_of<IoError>([&] { convert(folder / "dense", folder / "out", options); });
  EXPECT_TRUE(contains(text, "vocab.txt: cannot be copied")) << text;
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(Convert, WarnsOfAGroupThatIsLeftDenseInPart) {
  const ScratchFolder folder;
  DenseModel model = toy_model();
  for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
    model[std::string("model.layers.0.self_attn.") + part + ".weight"] = matrix(16, kHidden);
  }
  write_model(folder / "dense", model);
  fs::remove(folder / "dense" / "pytorch_model.bin");
  const auto warnings = [&](const std::vector<std::string>& ignore, const char* name) {
    std::vector<std::string> lines;
    ConvertOptions options;
    options.ignore = ignore;
    options.warn = [&](const std::string& text) { lines.push_back(text); };
    convert(folder / "dense", folder / name, options);
    return lines;
  };
  EXPECT_TRUE(warnings({}, "a").empty());
  EXPECT_TRUE(warnings({"re:.*self_attn.*"}, "b").empty());
  const std::vector<std::string> lines = warnings({"re:.*q_proj$"}, "c");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(lines[0].starts_with("q_proj of \"model.layers.0.self_attn\" is dense and k_proj and v_proj are"))
      << lines[0];
}

}  // namespace
}  // namespace scaledmm
