// rotate(): an orthogonal matrix, and a model whose products with the residual stream are what they were.
#include "scaledmm/rotate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/rotation.hpp"
#include "scaledmm/scaledmm.hpp"
#include "scratch_folder.hpp"
#include "toy_dense_model.hpp"

namespace scaledmm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int64_t kWidth = 48, kHead = 12, kHeads = 4, kKvHeads = 2, kMlp = 40, kWords = 21;  // 48 = 16 * 3

Json tiny_config() {
  return {{"model_type", "llama"},           {"hidden_size", kWidth},       {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads}, {"tie_word_embeddings", true}, {"torch_dtype", "float32"}};
}

DenseModel tiny_model() {
  DenseModel model;
  const auto gain = [](std::int64_t seed) {
    DenseTensor tensor{{kWidth}, {}, DType::kF32};
    for (std::int64_t i = 0; i < kWidth; ++i) tensor.values.push_back(1 + scattered(i + seed) / 200);
    return tensor;
  };
  const std::string layer = "model.layers.0.";
  model["model.embed_tokens.weight"] = matrix(kWords, kWidth, DType::kF32);
  model["model.norm.weight"] = gain(1000);
  model[layer + "input_layernorm.weight"] = gain(2000);
  model[layer + "post_attention_layernorm.weight"] = gain(3000);
  model[layer + "self_attn.q_proj.weight"] = matrix(kHeads * kHead, kWidth, DType::kF32);
  model[layer + "self_attn.k_proj.weight"] = matrix(kKvHeads * kHead, kWidth, DType::kF32);
  model[layer + "self_attn.v_proj.weight"] = matrix(kKvHeads * kHead, kWidth, DType::kF32);
  model[layer + "self_attn.o_proj.weight"] = matrix(kWidth, kHeads * kHead, DType::kF32);
  model[layer + "mlp.gate_proj.weight"] = matrix(kMlp, kWidth, DType::kF32);
  model[layer + "mlp.up_proj.weight"] = matrix(kMlp, kWidth, DType::kF32);
  model[layer + "mlp.down_proj.weight"] = matrix(kWidth, kMlp, DType::kF32);
  return model;
}

void write(const fs::path& folder, const DenseModel& model, const Json& config = tiny_config()) {
  write_model(folder, model);
  std::ofstream(folder / "config.json") << config;
}

RowMatrix tensor(const Checkpoint& checkpoint, const std::string& name) {
  const ConstTensorView view = checkpoint.tensor(name);
  const std::int64_t rows = view.shape.rank() == 1 ? 1 : view.shape[0];
  return Eigen::Map<const RowMatrix>(static_cast<const float*>(view.data), rows, view.shape.back());
}

// The weight of a layer behind a norm with that gain.
RowMatrix behind(const RowMatrix& w, const RowMatrix& gain) { return w * gain.asDiagonal(); }

void expect_near(const RowMatrix& a, const RowMatrix& b, const std::string& what) {
  ASSERT_EQ(a.rows(), b.rows()) << what;
  ASSERT_EQ(a.cols(), b.cols()) << what;
  EXPECT_LT((a - b).cwiseAbs().maxCoeff(), 1e-4f * (1 + b.cwiseAbs().maxCoeff())) << what;
}

std::string error_of(const fs::path& source, const fs::path& destination, const RotateOptions& options = {}) {
  try {
    rotate(source, destination, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Rotation, IsOrthogonalAndSpreadsOneChannelOverAll) {
  for (const std::int64_t n : {1, 3, 8, 48, 576}) {
    const RowMatrix q = rotation_matrix(n, 5);
    EXPECT_LT((product(q, RowMatrix(q.transpose())) - RowMatrix::Identity(n, n)).cwiseAbs().maxCoeff(), 2e-5f) << n;
    EXPECT_LT(q.cwiseAbs().maxCoeff(), 1.5f / std::sqrt(static_cast<float>(n))) << n;
  }
}

TEST(Rotation, SeedsDifferInSignsOnly) {
  const RowMatrix a = rotation_matrix(48, 0), b = rotation_matrix(48, 1);
  EXPECT_NE(a, b);
  EXPECT_EQ(a.cwiseAbs(), b.cwiseAbs());
  EXPECT_EQ(a, rotation_matrix(48, 0));
}

// Two layers in a row through the stream give what they gave: reader times state, reader times writer, head times
// state, and output times value with the head's rotation between.
TEST(Rotate, ProductsThroughTheResidualStreamStay) {
  const ScratchFolder scratch;
  write(scratch / "dense", tiny_model());
  RotateOptions options;
  options.seed = 3;
  rotate(scratch / "dense", scratch / "rotated", options);
  const Checkpoint before = Checkpoint::open(scratch / "dense"), after = Checkpoint::open(scratch / "rotated");
  const std::string layer = "model.layers.0.";
  const RowMatrix input_gain = tensor(before, layer + "input_layernorm.weight");
  const RowMatrix mlp_gain = tensor(before, layer + "post_attention_layernorm.weight");
  const RowMatrix last_gain = tensor(before, "model.norm.weight");
  const RowMatrix states = tensor(before, "model.embed_tokens.weight").transpose();
  const RowMatrix rotated_states = tensor(after, "model.embed_tokens.weight").transpose();
  const auto reads = [&](const std::string& name, const RowMatrix& gain, const RowMatrix& source_name_weight) {
    expect_near(product(tensor(after, name), rotated_states), product(behind(source_name_weight, gain), states), name);
  };
  for (const char* name : {"self_attn.q_proj.weight", "self_attn.k_proj.weight"}) {
    reads(layer + name, input_gain, tensor(before, layer + name));
  }
  for (const char* name : {"mlp.gate_proj.weight", "mlp.up_proj.weight"}) {
    reads(layer + name, mlp_gain, tensor(before, layer + name));
  }
  reads("lm_head.weight", last_gain, tensor(before, "model.embed_tokens.weight"));
  const std::string gate = layer + "mlp.gate_proj.weight", down = layer + "mlp.down_proj.weight";
  const RowMatrix gate_before = behind(tensor(before, gate), mlp_gain);
  expect_near(product(tensor(after, gate), tensor(after, down)), product(gate_before, tensor(before, down)), down);

  // Query head h reads the values of head h / 2.
  const std::string value = layer + "self_attn.v_proj.weight";
  const RowMatrix values = product(behind(tensor(before, value), input_gain), states);
  const RowMatrix rotated_values = product(tensor(after, value), rotated_states);
  const auto attend = [&](const RowMatrix& v) {
    RowMatrix heads(kHeads * kHead, v.cols());
    for (std::int64_t h = 0; h < kHeads; ++h) heads.middleRows(h * kHead, kHead) = v.middleRows(h / 2 * kHead, kHead);
    return heads;
  };
  const std::string output = layer + "self_attn.o_proj.weight";
  expect_near(product(product(tensor(after, gate), tensor(after, output)), attend(rotated_values)),
              product(product(gate_before, tensor(before, output)), attend(values)), output);

  expect_near(tensor(after, layer + "input_layernorm.weight"), RowMatrix::Ones(1, kWidth), "norm");
  const Json config = Json::parse(after.config_json());
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(config["hidden_size"], kWidth);
  EXPECT_TRUE(fs::exists(scratch / "rotated" / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(scratch / "rotated" / "pytorch_model.bin"));
}

Calibration calibrated(const std::string& layer, std::int64_t k) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < 30 * k; ++i) x.push_back(scattered(i) * (i % k == 5 ? 16.0f : 1.0f));
  Calibration calibration;
  Context context;
  calibration.add({layer}, {x.data(), DType::kF32, {30, k}}, context);
  return calibration;
}

// Every channel between up and down is scaled by what the formula says, and their product stays.
TEST(Rotate, SmoothsWhatDownReadsAndKeepsTheProduct) {
  const ScratchFolder scratch;
  DenseModel model = tiny_model();
  const std::string mlp = "model.layers.0.mlp.";
  model[mlp + "up_proj.bias"] = {{kMlp}, std::vector<float>(kMlp, 2), DType::kF32};
  for (std::int64_t i = 0; i < kWidth; ++i) model[mlp + "down_proj.weight"].values[i * kMlp + 7] = 0;  // read by nobody
  write(scratch / "dense", model);
  const Calibration calibration = calibrated(mlp + "down_proj", kMlp);
  RotateOptions options;
  rotate(scratch / "dense", scratch / "plain", options);
  options.calibration = &calibration;
  rotate(scratch / "dense", scratch / "smooth", options);
  const Checkpoint plain = Checkpoint::open(scratch / "plain"), smooth = Checkpoint::open(scratch / "smooth");
  const RowMatrix down = tensor(plain, mlp + "down_proj.weight"), up = tensor(plain, mlp + "up_proj.weight");
  const RowMatrix smooth_down = tensor(smooth, mlp + "down_proj.weight"),
                  smooth_up = tensor(smooth, mlp + "up_proj.weight");
  expect_near(product(smooth_down, smooth_up), product(down, up), "product");
  const std::vector<float> gram = calibration.gram(mlp + "down_proj");
  std::vector<double> logarithms;
  double mean = 0;
  for (std::int64_t j = 0; j < kMlp; ++j) {
    const double weights = down.col(j).squaredNorm();
    logarithms.push_back(j == 7 ? 0 : std::log(gram[static_cast<std::size_t>(j * kMlp + j)] / weights) / 4);
    mean += logarithms.back() / kMlp;
  }
  for (std::int64_t j = 0; j < kMlp; ++j) {
    const double scale = std::exp(logarithms[static_cast<std::size_t>(j)] - mean);
    EXPECT_NEAR(smooth_down.col(j).norm(), down.col(j).norm() * scale, 1e-4 * (1 + smooth_down.col(j).norm())) << j;
    EXPECT_NEAR(tensor(smooth, mlp + "up_proj.bias")(0, j), 2 / scale, 1e-4) << j;
  }
  EXPECT_GT(std::exp(logarithms[5] - logarithms[6]), 2);  // the channel that is 16 times as large
  EXPECT_EQ(tensor(smooth, mlp + "gate_proj.weight"), tensor(plain, mlp + "gate_proj.weight"));
}

TEST(Rotate, RefusesACalibrationOfAnotherModel) {
  const ScratchFolder scratch;
  write(scratch / "dense", tiny_model());
  Calibration calibration = calibrated("model.layers.9.mlp.down_proj", kMlp);
  RotateOptions options;
  options.calibration = &calibration;
  EXPECT_NE(error_of(scratch / "dense", scratch / "out", options).find("no input of layer \"model.layers.0.mlp.down"),
            std::string::npos);
  calibration = calibrated("model.layers.0.mlp.down_proj", kMlp + 1);
  EXPECT_NE(error_of(scratch / "dense", scratch / "out", options).find("K = 41, its weight 40"), std::string::npos);
  EXPECT_FALSE(fs::exists(scratch / "out"));
}

TEST(Rotate, RefusesResultsThatTheirTypeCannotHold) {
  const ScratchFolder scratch;
  DenseModel model = tiny_model();
  DenseTensor& weight = model["model.layers.0.self_attn.q_proj.weight"];
  weight.dtype = DType::kF16;
  for (float& value : weight.values) value *= 60000;
  write(scratch / "dense", model);
  EXPECT_NE(error_of(scratch / "dense", scratch / "out").find("q_proj.weight\" becomes too large for f16"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(scratch / "out"));
}

// The head is the one that the model uses: a tensor that config.json passes over is not.
TEST(Rotate, TakesTheHeadThatTheConfigurationNames) {
  const ScratchFolder scratch;
  DenseModel model = tiny_model();
  write(scratch / "tied", model);
  model["lm_head.weight"] = matrix(kWords, kWidth, DType::kF32);
  for (float& value : model["lm_head.weight"].values) value = -value;
  write(scratch / "both", model);
  Json config = tiny_config();
  config["tie_word_embeddings"] = false;
  write(scratch / "own", model, config);
  write(scratch / "none", tiny_model(), config);
  std::map<std::string, RowMatrix> heads;
  for (const char* name : {"tied", "both", "own"}) {
    const fs::path out = scratch / (std::string(name) + "-out");
    rotate(scratch / name, out, {});
    heads[name] = tensor(Checkpoint::open(out), "lm_head.weight");
  }
  EXPECT_EQ(heads["both"], heads["tied"]);
  expect_near(heads["own"], -heads["tied"], "a head of its own");
  EXPECT_NE(error_of(scratch / "none", scratch / "out").find("has no tensor \"lm_head.weight\""), std::string::npos);
}

TEST(Rotate, RefusesWhatItWouldBreakAndLeavesNothing) {
  const ScratchFolder scratch;
  Json config = tiny_config();
  config["model_type"] = "gemma";
  write(scratch / "gemma", tiny_model(), config);
  EXPECT_NE(error_of(scratch / "gemma", scratch / "out").find("gemma"), std::string::npos);

  DenseModel model = tiny_model();
  model["model.layers.0.self_attn.v_proj.bias"] = {
      {kKvHeads * kHead}, std::vector<float>(kKvHeads * kHead), DType::kF32};
  write(scratch / "bias", model);
  EXPECT_NE(error_of(scratch / "bias", scratch / "out").find("self_attn.v_proj.bias"), std::string::npos);

  model = tiny_model();
  model.erase("model.layers.0.input_layernorm.weight");
  write(scratch / "norm", model);
  EXPECT_NE(error_of(scratch / "norm", scratch / "out").find("input_layernorm"), std::string::npos);

  model = {{"model.embed_tokens.weight", tiny_model()["model.embed_tokens.weight"]},
           {"model.norm.weight", tiny_model()["model.norm.weight"]}};
  write(scratch / "empty", model);
  EXPECT_NE(error_of(scratch / "empty", scratch / "out").find("no layer"), std::string::npos);

  model = tiny_model();
  model["model.layers.0.mlp.up_proj.weight"].values[7] = std::numeric_limits<float>::quiet_NaN();
  write(scratch / "nan", model);
  EXPECT_NE(error_of(scratch / "nan", scratch / "out").find("up_proj.weight\" is not finite at element 7"),
            std::string::npos);

  config = tiny_config();
  config["hidden_size"] = kWidth + 1;
  write(scratch / "width", tiny_model(), config);
  EXPECT_NE(error_of(scratch / "width", scratch / "out").find("but hidden_size in config.json is 49"),
            std::string::npos);

  config = tiny_config();
  config["head_dim"] = 7;
  config.erase("num_attention_heads");
  config.erase("num_key_value_heads");
  write(scratch / "head", tiny_model(), config);
  EXPECT_NE(error_of(scratch / "head", scratch / "out").find("head_dim 7"), std::string::npos);

  write(scratch / "dense", tiny_model());
  ConvertOptions options;
  convert(scratch / "dense", scratch / "int8", options);
  EXPECT_NE(error_of(scratch / "int8", scratch / "out").find("quantized"), std::string::npos);
  fs::create_directory(scratch / "taken");
  EXPECT_NE(error_of(scratch / "dense", scratch / "taken").find("taken"), std::string::npos);
  EXPECT_FALSE(fs::exists(scratch / "out"));
}

}  // namespace
}  // namespace scaledmm
