// Quantization configs: where they are found, which modules an entry means, and what each dialect promises.
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "formats/layer_table.hpp"
#include "formats/quant_config.hpp"
#include "formats/target_matcher.hpp"
#include "scaledmm/error.hpp"
#include "scratch_folder.hpp"

namespace scaledmm {
namespace {

using Weight = ModuleScheme::Weight;
using Activation = ModuleScheme::Activation;

QuantConfig parse(std::string_view config_json) {
  return read_quant_config(parse_json(config_json, "config.json"), nullptr);
}

QuantConfig parse_quant(std::string_view quantization_config) {
  return parse(R"({"quantization_config":)" + std::string(quantization_config) + "}");
}

constexpr const char* kInt8Dynamic = R"("weights":{"num_bits":8,"type":"int","symmetric":true,"strategy":"channel",
  "dynamic":false},"input_activations":{"num_bits":8,"type":"int","symmetric":true,"strategy":"token","dynamic":true})";

// compressed-tensors with one group of the given members, and a list of dense modules.
std::string compressed(const std::string& group, const std::string& format = "int-quantized",
                       const std::string& ignore = "") {
  return R"({"quant_method":"compressed-tensors","format":")" + format + R"(","ignore":[)" + ignore +
         R"(],"config_groups":{"group_0":{"targets":["Linear"],)" + group + "}}}";
}
std::string arguments(const std::string& type, const std::string& rest) {
  return R"({"num_bits":8,"type":")" + type + "\"," + rest + "}";
}
std::string group_of(const std::string& weights, const std::string& input) {
  return "\"weights\":" + weights + ",\"input_activations\":" + input;
}

const ModuleScheme& only_scheme(const QuantConfig& config) {
  EXPECT_EQ(config.schemes.size(), 1u);
  return config.schemes.front();
}

// Which of the usual modules of a block the list leaves dense, as short names.
std::vector<std::string> left_out(const QuantConfig& config) {
  std::vector<std::string> names;
  for (const char* name :
       {"model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
        "model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate_up_proj", "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.o_proj",
        "lm_head", "lm_head_extra"}) {
    if (config.scheme_of(name) == nullptr) names.push_back(std::string(name).substr(std::string(name).rfind('.') + 1));
  }
  return names;
}

QuantConfig ignoring(const std::string& entries) {
  return parse_quant(compressed(kInt8Dynamic, "int-quantized", entries));
}
QuantConfig fp8_ignoring(const std::string& entries) {
  return parse_quant(R"({"quant_method":"fp8","activation_scheme":"dynamic","modules_to_not_convert":[)" + entries +
                     "]}");
}
using Names = std::vector<std::string>;

TEST(Ignore, AFullNameMeansThatModuleOnly) {
  EXPECT_EQ(left_out(ignoring("\"model.layers.0.mlp.gate\"")), Names{"gate"});
  EXPECT_EQ(left_out(fp8_ignoring("\"model.layers.0.mlp.gate\"")), Names{"gate"});
}

TEST(Ignore, AFusedNameMeansItsParts) {
  EXPECT_EQ(left_out(ignoring("\"model.layers.0.mlp.gate_up_proj\"")), (Names{"gate_proj", "up_proj", "gate_up_proj"}));
}

TEST(Ignore, ThePartsOfAFusedModuleMustAgree) {
  const QuantConfig config = ignoring("\"model.layers.0.self_attn.q_proj\"");
  const std::string text = message_of<CheckpointError>([&] { config.scheme_of("model.layers.0.self_attn.qkv_proj"); });
  EXPECT_TRUE(contains(text, "q_proj: left out")) << text;
  EXPECT_TRUE(contains(text, "k_proj: quantized")) << text;
  EXPECT_TRUE(contains(text, "v_proj: quantized")) << text;
}

TEST(Ignore, APatternIsAnchoredAtTheStartAndFreeAtTheEnd) {
  const QuantConfig config = ignoring(R"("re:.*self_attn\\.(q|k|v)_proj$")");
  EXPECT_EQ(left_out(config), (Names{"q_proj", "k_proj", "v_proj"}));
  EXPECT_EQ(config.scheme_of("model.layers.0.self_attn.qkv_proj"), nullptr);
  EXPECT_TRUE(left_out(ignoring("\"re:lm\"")) == (Names{"lm_head", "lm_head_extra"}));
  EXPECT_TRUE(left_out(ignoring("\"re:head\"")).empty());
}

TEST(Ignore, WrapperSuffixesAreDropped) {
  EXPECT_EQ(left_out(ignoring(R"("model.layers.0.mlp.gate_proj.linear","model.layers.0.mlp.up_proj.linear")")),
            (Names{"gate_proj", "up_proj", "gate_up_proj"}));
}

TEST(Ignore, TheFp8FormatTakesWholeSegmentsOfAPath) {
  EXPECT_EQ(left_out(fp8_ignoring("\"self_attn.o_proj\"")), Names{"o_proj"});
  EXPECT_TRUE(left_out(fp8_ignoring("\"attn.o_proj\"")).empty());
  EXPECT_EQ(left_out(fp8_ignoring("\"lm_head\"")), Names{"lm_head"});
  EXPECT_EQ(left_out(ignoring("\"lm_head\"")), Names{"lm_head"});
}

TEST(Ignore, WrapperPrefixesAreDropped) {
  EXPECT_EQ(left_out(ignoring("\"model.language_model.layers.0.mlp.gate\"")), Names{"gate"});
  EXPECT_EQ(left_out(ignoring("\"language_model.model.layers.0.mlp.gate\"")), Names{"gate"});
}

TEST(Ignore, ModeloptListsMayHaveWildcards) {
  const QuantConfig config = parse_quant(
      R"({"quant_method":"modelopt","quant_algo":"FP8","ignore":["*.self_attn.[kq]_proj","lm_hea?","*up*_proj"]})");
  EXPECT_EQ(left_out(config), (Names{"up_proj", "gate_up_proj", "q_proj", "k_proj", "lm_head"}));
}

TEST(Matcher, PatternsThatNeedBacktrackingAreRefusedByName) {
  const std::string text = message_of<CheckpointError>([] { ignoring("\"re:(?!lm_head).*\""); });
  EXPECT_TRUE(contains(text, "config.json: quantization_config.ignore")) << text;
  EXPECT_TRUE(contains(text, "(?!lm_head)")) << text;
  EXPECT_TRUE(contains(text, "lookaround")) << text;
  EXPECT_TRUE(contains(message_of<CheckpointError>([] { ignoring("\"re:(\""); }), "cannot be used"));
  EXPECT_TRUE(contains(message_of<CheckpointError>([] { ignoring("\"re:" + std::string(2000, 'a') + "\""); }), "1024"));
  EXPECT_TRUE(contains(message_of<CheckpointError>([] { ignoring("\"\""); }), "empty"));
}

TEST(Matcher, HostilePatternsTakeLinearTime) {
  TargetMatcher matcher({.segments = true, .wildcards = true});
  matcher.add("re:(a*)*(a|aa)*b", "test");
  matcher.add("*a*a*a*a*a*a*a*b", "test");
  EXPECT_FALSE(matcher.find(std::string(4096, 'a')));
  std::string path;
  for (int i = 0; i < 2000; ++i) path += "a.";
  EXPECT_FALSE(matcher.find(path));
}

TEST(Matcher, ShellSetsAndUnclosedBrackets) {
  TargetMatcher matcher({.segments = false, .wildcards = true});
  matcher.add("a[!0-3]*", "test");
  EXPECT_TRUE(matcher.find("a7x"));
  EXPECT_FALSE(matcher.find("a2x"));
  EXPECT_FALSE(matcher.find("a"));
  matcher.add("b[*", "test");
  EXPECT_TRUE(matcher.find("b[c"));
  EXPECT_FALSE(matcher.find("bc"));
}

TEST(Find, LooksInFourPlacesInOrder) {
  const std::string fp8 = R"({"quant_method":"fp8","activation_scheme":"dynamic"})";
  EXPECT_EQ(parse("{}").method, "");
  EXPECT_EQ(parse(R"({"quantization_config":null})").method, "");
  EXPECT_EQ(parse(R"({"quantization_config":)" + fp8 + "}").method, "fp8");
  EXPECT_EQ(parse(R"({"text_config":{"quantization_config":)" + fp8 + "}}").source,
            "config.json: text_config.quantization_config");
  EXPECT_EQ(parse(R"({"compression_config":{"format":"int-quantized","config_groups":{"g":{"targets":["Linear"],)" +
                  std::string(kInt8Dynamic) + "}}}}")
                .method,
            "compressed-tensors");
  const Json old = parse_json(
      R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"fp8","exclude_modules":["lm_head"]}})", "hf");
  const QuantConfig config = read_quant_config(parse_json("{}", "config.json"), &old);
  EXPECT_EQ(config.method, "modelopt");
  EXPECT_EQ(config.scheme_of("lm_head"), nullptr);
  EXPECT_EQ(only_scheme(config).activation, Activation::kStatic);
  EXPECT_EQ(parse(R"({"quantization_config":{"quant_method":"Compressed_Tensors","format":"int-quantized",)"
                  R"("config_groups":{}}})")
                .method,
            "compressed-tensors");
}

TEST(Find, NamesTheMethodsThatAreNotOurs) {
  for (const char* method : {"gptq", "awq_marlin", "bitsandbytes", "torchao", "mxfp4", "gguf", "AWQ"}) {
    const std::string text =
        message_of<Unsupported>([&] { parse_quant("{\"quant_method\":\"" + std::string(method) + "\"}"); });
    EXPECT_TRUE(contains(text, "recognised")) << text;
  }
  EXPECT_TRUE(
      contains(message_of<Unsupported>([] { parse_quant(R"({"quant_method":"new\u001bthing"})"); }), "unknown"));
  EXPECT_TRUE(contains(message_of<CheckpointError>([] { parse_quant("{}"); }), "quant_method is missing"));
  EXPECT_TRUE(contains(message_of<CheckpointError>([] { parse_quant(R"({"quant_method":7})"); }), "not a string"));
  EXPECT_TRUE(contains(message_of<CheckpointError>([] { parse(R"({"quantization_config":[]})"); }), "not an object"));
}

TEST(CompressedTensors, Int8SchemesFollowTheTable) {
  const QuantConfig dynamic = parse_quant(compressed(kInt8Dynamic));
  EXPECT_TRUE(only_scheme(dynamic).int8);
  EXPECT_EQ(only_scheme(dynamic).weight, Weight::kChannel);
  EXPECT_EQ(only_scheme(dynamic).activation, Activation::kDynamic);
  EXPECT_EQ(only_scheme(dynamic).format, "compressed-tensors int-quantized");

  const QuantConfig asymmetric = parse_quant(compressed(group_of(
      arguments("int", R"("strategy":"tensor")"), arguments("int", R"("strategy":"tensor","symmetric":false)"))));
  EXPECT_EQ(only_scheme(asymmetric).weight, Weight::kTensor);
  EXPECT_EQ(only_scheme(asymmetric).activation, Activation::kStatic);
  EXPECT_FALSE(only_scheme(asymmetric).input_symmetric);
}

TEST(CompressedTensors, Fp8SchemesFollowTheTable) {
  const auto scheme = [](const std::string& weights, const std::string& input) {
    return only_scheme(parse_quant(compressed(group_of(weights, input), "float-quantized")));
  };
  const std::string tensor = arguments("float", R"("strategy":"tensor")");
  const std::string channel = arguments("float", R"("strategy":"channel")");
  const std::string block = arguments("float", R"("strategy":"block","block_structure":[64,128])");
  const std::string token = arguments("float", R"("strategy":"token","dynamic":true)");
  EXPECT_EQ(scheme(tensor, tensor).activation, Activation::kStatic);
  EXPECT_EQ(scheme(channel, token).activation, Activation::kDynamic);
  EXPECT_EQ(scheme(channel, token).weight, Weight::kChannel);
  EXPECT_EQ(scheme(channel, "null").activation, Activation::kNone);
  EXPECT_EQ(scheme(tensor, arguments("float", R"("strategy":"tensor","dynamic":true)")).activation,
            Activation::kDynamic);
  EXPECT_EQ(scheme(tensor, arguments("float", R"("strategy":"tensor","symmetric":false)")).activation,
            Activation::kNone);
  const std::string group = arguments("float", R"("strategy":"group","group_size":128,"dynamic":true)");
  EXPECT_EQ(scheme(block, group).block, (GroupShape{64, 128}));
  EXPECT_EQ(scheme(arguments("float", R"("strategy":"block","block_structure":"128x64")"), token).block,
            (GroupShape{128, 64}));
}

TEST(CompressedTensors, RefusesWhatTheTableRefuses) {
  const auto refusal = [](const std::string& weights, const std::string& input,
                          const std::string& format = "int-quantized") {
    try {
      parse_quant(compressed(group_of(weights, input), format));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string channel = arguments("int", R"("strategy":"channel")");
  const std::string token = arguments("int", R"("strategy":"token","dynamic":true)");
  const std::string float_token = arguments("float", R"("strategy":"token","dynamic":true)");
  const std::string block = arguments("float", R"("strategy":"block","block_structure":[128,128])");
  struct Case {
    std::string weights, input, format, part;
  };
  for (const Case& c : std::initializer_list<Case>{
           {channel, arguments("int", R"("strategy":"tensor","dynamic":true)"), "int-quantized", "dynamic per token"},
           {arguments("int", R"("strategy":"channel","symmetric":false)"), token, "int-quantized",
            "asymmetric weights"},
           {channel, "null", "int-quantized", "not W8A8"},
           {channel, float_token, "int-quantized", "int weights with float activations"},
           {arguments("float", R"("strategy":"channel")"), token, "float-quantized", "float weights with int"},
           {block, arguments("float", R"("strategy":"tensor")"), "float-quantized", "block weights"},
           {block, arguments("float", R"("strategy":"group","group_size":64,"dynamic":true)"), "float-quantized", "64"},
           {channel, arguments("int", R"("strategy":"token")"), "int-quantized", "token needs dynamic"},
           {channel, arguments("int", R"("strategy":"channel")"), "int-quantized", "activations cannot"},
           {arguments("int", R"("strategy":"group")"), token, "int-quantized", "group_size"},
           {arguments("int", R"("strategy":"channel","group_size":32)"), token, "int-quantized", "group_size 32"},
           {arguments("int", R"("strategy":"block")"), token, "int-quantized", "block_structure"},
           {arguments("int", R"("strategy":"block","block_structure":[0,1])"), token, "int-quantized", "positive"},
           {arguments("int", R"("strategy":"channel","dynamic":true)"), token, "int-quantized", "cannot be dynamic"},
           {arguments("int", R"("strategy":"group","group_size":128)"), token, "int-quantized", "per tensor, channel"},
           {R"({"num_bits":4,"type":"int","strategy":"channel"})", token, "pack-quantized", "int4"},
           {R"({"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16})", "null",
            "nvfp4-pack-quantized", "float4"},
           {channel, token, "pack-quantized", "pack-quantized"},
           {channel, token, "marlin-24", "marlin-24"},
           {channel, token, "fakequant", "fakequant"},
           {channel, token, "mixed-precision", "mixed-precision"},
       }) {
    const std::string text = refusal(c.weights, c.input, c.format);
    EXPECT_TRUE(contains(text, c.part)) << c.part << ": " << text;
    EXPECT_TRUE(contains(text, "group_0")) << text;
  }
  const std::string fake = R"("output_activations":{"type":"int","strategy":"tensor"},)" +
                           group_of(channel, arguments("int", R"("strategy":"tensor")"));
  EXPECT_TRUE(contains(message_of<Unsupported>([&] { parse_quant(compressed(fake)); }), "fake quantization"));
}

TEST(CompressedTensors, SparsityAndTransformsAreRefused) {
  for (const char* key : {"sparsity_config", "transform_config"}) {
    const std::string head = R"({"quant_method":"compressed-tensors","format":"int-quantized","config_groups":{},")";
    EXPECT_NO_THROW(parse_quant(head + key + R"(":{}})"));
    const std::string text = message_of<Unsupported>([&] { parse_quant(head + key + R"(":{"a":1}})"); });
    EXPECT_TRUE(contains(text, key)) << text;
  }
}

TEST(CompressedTensors, PresetsExpand) {
  const auto preset = [](const std::string& name) {
    return parse_quant(R"({"quant_method":"compressed-tensors","format":"naive-quantized","config_groups":{")" + name +
                       R"(":["Linear"]}})");
  };
  EXPECT_TRUE(only_scheme(preset("W8A8")).int8);
  EXPECT_EQ(only_scheme(preset("FP8")).activation, Activation::kStatic);
  EXPECT_EQ(only_scheme(preset("FP8_DYNAMIC")).weight, Weight::kChannel);
  EXPECT_EQ(only_scheme(preset("FP8_BLOCK")).block, (GroupShape{128, 128}));
  EXPECT_EQ(only_scheme(preset("MXFP8")).block, (GroupShape{1, 32}));
  EXPECT_TRUE(contains(message_of<CheckpointError>([&] { preset("W9A9"); }), "W9A9"));
}

TEST(CompressedTensors, NamesBeatClassesAndTheFirstEntryWins) {
  std::string groups;
  for (const char* name : {"group_10", "group_2", "group_0"}) {
    const bool fp8 = std::string_view(name) == "group_10";
    const std::string type = fp8 ? "float" : "int";
    const std::string targets = fp8                                   ? R"("re:.*down_proj$")"
                                : std::string_view(name) == "group_2" ? R"("model.layers.0.mlp.down_proj")"
                                                                      : R"("Linear")";
    groups +=
        (groups.empty() ? "\"" : ",\"") + std::string(name) + R"(":{"targets":[)" + targets + R"(],"format":")" +
        (fp8 ? "float-quantized" : "int-quantized") + "\"," +
        group_of(arguments(type, R"("strategy":"channel")"), arguments(type, R"("strategy":"token","dynamic":true)")) +
        "}";
  }
  const QuantConfig config = parse_quant(
      R"({"quant_method":"compressed-tensors","format":"mixed-precision","config_groups":{)" + groups + "}}");
  EXPECT_FALSE(config.scheme_of("model.layers.0.mlp.down_proj")->int8);
  EXPECT_TRUE(config.scheme_of("model.layers.0.mlp.up_proj")->int8);
  EXPECT_EQ(config.scheme_of("model.layers.0.mlp.down_proj")->format, "compressed-tensors float-quantized");
}

TEST(CompressedTensors, UnknownMembersAreNoticed) {
  const QuantConfig config = parse_quant(R"({"quant_method":"compressed-tensors","format":"int-quantized","colour":1,
    "config_groups":{}})");
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_TRUE(contains(config.warnings[0], "\"colour\""));
}

TEST(Fp8, ReadsEveryMember) {
  const QuantConfig block = parse_quant(R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic",
    "weight_block_size":[128,64],"scale_fmt":"ue8m0","ignored_layers":[],"modules_to_not_convert":["lm_head"]})");
  EXPECT_EQ(only_scheme(block).block, (GroupShape{128, 64}));
  EXPECT_TRUE(only_scheme(block).ue8m0);
  EXPECT_EQ(block.scheme_of("lm_head"), nullptr);
  const std::string fp8 = R"({"quant_method":"fp8",)";
  for (const auto& [rest, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("fmt":"e5m2","activation_scheme":"dynamic"})", "e5m2"},
           {R"("fmt":"e4m3"})", "activation_scheme is missing"},
           {R"("activation_scheme":"sometimes"})", "sometimes"},
           {R"("activation_scheme":"static","weight_block_size":[128,128]})", "weight_block_size"},
           {R"("activation_scheme":"dynamic","weight_block_size":[128]})", "pair of positive integers"},
           {R"("activation_scheme":"dynamic","weight_block_size":[128,-1]})", "pair of positive integers"},
           {R"("activation_scheme":"dynamic","weight_block_size":[128,1e300]})", "pair of positive integers"},
           {R"("activation_scheme":"dynamic","weight_block_size":[128,9223372036854775807]})",
            "weight_block_size: 9223372036854775807 is larger than 2147483648"},
           {R"("activation_scheme":"dynamic","weight_block_size":[2147483649,128]})", "2147483649 is larger"},
           {R"("activation_scheme":"dynamic","scale_fmt":"e5"})", "scale_fmt"},
           {R"("activation_scheme":"dynamic","ignored_layers":[1]})", "list of strings"},
       }) {
    try {
      parse_quant(fp8 + rest);
      ADD_FAILURE() << rest;
    } catch (const Error& error) {
      EXPECT_TRUE(contains(error.what(), part)) << error.what();
    }
  }
}

TEST(OtherDialects, ReadTheirSchemes) {
  const QuantConfig fbgemm =
      parse_quant(R"({"quant_method":"fbgemm_fp8","activation_scale_ub":1200.0,"modules_to_not_convert":["lm_head"]})");
  EXPECT_EQ(only_scheme(fbgemm).input_scale_ub, 1200.0f);
  EXPECT_THROW(parse_quant(R"({"quant_method":"fbgemm_fp8","modules_to_not_convert":[]})"), CheckpointError);
  EXPECT_THROW(parse_quant(R"({"quant_method":"fbgemm_fp8","activation_scale_ub":1e300,"modules_to_not_convert":[]})"),
               CheckpointError);

  const QuantConfig modelopt = parse_quant(R"({"quant_method":"modelopt","quant_algo":"fp8_pb_wo"})");
  EXPECT_EQ(only_scheme(modelopt).block, (GroupShape{128, 128}));
  EXPECT_EQ(only_scheme(modelopt).format, "modelopt FP8_PB_WO");
  EXPECT_THROW(parse_quant(R"({"quant_method":"modelopt","quant_algo":"NVFP4"})"), Unsupported);

  EXPECT_TRUE(only_scheme(parse_quant(R"({"quant_method":"w8a8_int8"})")).int8);
  EXPECT_FALSE(only_scheme(parse_quant(R"({"quant_method":"w8a8_fp8"})")).int8);
  EXPECT_EQ(only_scheme(parse_quant(R"({"quant_method":"mxfp8"})")).block, (GroupShape{1, 32}));

  const QuantConfig quark = parse_quant(R"({"quant_method":"quark","export":{},"exclude":["re:.*gate$"],
    "global_quant_config":{"weight":{"dtype":"int8","qscheme":"per_channel"},
                           "input_tensors":{"dtype":"int8","qscheme":"per_channel","is_dynamic":true}},
    "layer_quant_config":{"*down_proj":{"weight":{"dtype":"fp8_e4m3","qscheme":"per_tensor"},
                                        "input_tensors":{"dtype":"fp8_e4m3","qscheme":"per_tensor"}}}})");
  EXPECT_TRUE(quark.scheme_of("model.layers.0.mlp.up_proj")->int8);
  EXPECT_FALSE(quark.scheme_of("model.layers.0.mlp.down_proj")->int8);
  EXPECT_EQ(quark.scheme_of("model.layers.0.mlp.gate"), nullptr);
}

TEST(NaturalOrder, ComparesRunsOfDigitsAsNumbers) {
  EXPECT_TRUE(natural_less("layers.2.a", "layers.10.a"));
  EXPECT_FALSE(natural_less("layers.10.a", "layers.2.a"));
  EXPECT_TRUE(natural_less("layers.9", "layers.10"));
  EXPECT_TRUE(natural_less("a", "a.b"));
  EXPECT_FALSE(natural_less("a.01", "a.1"));
}

}  // namespace
}  // namespace scaledmm
