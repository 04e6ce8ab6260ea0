// Calibrated conversion: second moments of the inputs, codes whose errors cancel in the output, and the file between.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/converted_weight.hpp"
#include "scaledmm/scaledmm.hpp"
#include "scratch_folder.hpp"
#include "toy_dense_model.hpp"

namespace scaledmm {
namespace {

namespace fs = std::filesystem;

// Rows whose columns go along with each other, as those of a real layer do.
std::vector<float> correlated_rows(std::int64_t rows, std::int64_t k) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (std::int64_t i = 0; i < rows; ++i) {
    float common = normal(random);
    for (std::int64_t j = 0; j < k; ++j) {
      if (j % 8 == 0) common = normal(random);
      x.push_back((j % 3 == 0 ? 4.0f : 1.0f) * (common + 0.25f * normal(random)));
    }
  }
  return x;
}

ConstTensorView view(const std::vector<float>& values, std::int64_t rows, std::int64_t k) {
  return {values.data(), DType::kF32, {rows, k}};
}

std::vector<float> gram_of(const std::vector<float>& x, std::int64_t rows, std::int64_t k) {
  Calibration calibration;
  Context context;
  calibration.add({"layer"}, view(x, rows, k), context);
  return calibration.gram("layer");
}

// Mean over outputs of E G E^T, E = dense - dequantized.
double output_error(const DenseTensor& dense, const QuantizedWeight& weight, GroupShape group,
                    const std::vector<float>& gram) {
  const auto values = code_values(weight.dtype);
  const std::int64_t n = weight.n, k = weight.k;
  double total = 0;
  std::vector<double> error(static_cast<std::size_t>(k));
  for (std::int64_t i = 0; i < n; ++i) {
    const ScaleRow scales = scale_row(weight, group, i);
    for (std::int64_t j = 0; j < k; ++j) {
      const auto at = static_cast<std::size_t>(i * k + j);
      error[static_cast<std::size_t>(j)] =
          dense.values[at] - static_cast<double>(values[weight.bytes[at]]) * scales.scales[j / scales.columns];
    }
    for (std::int64_t a = 0; a < k; ++a) {
      for (std::int64_t b = 0; b < k; ++b) {
        total += error[static_cast<std::size_t>(a)] * gram[static_cast<std::size_t>(a * k + b)] *
                 error[static_cast<std::size_t>(b)];
      }
    }
  }
  return total / static_cast<double>(n);
}

ConstTensorView view(const DenseTensor& tensor) { return {tensor.values.data(), DType::kF32, tensor.shape}; }

TEST(Calibration, GramIsTheMeanOfRowsScaledToOne) {
  const std::vector<float> x = {3, 4, 0, 0, -1, 1};  // root mean squares 5 / sqrt 2, none, 1
  const std::vector<float> gram = gram_of(x, 3, 2);
  EXPECT_NEAR(gram[0], (2 * 9.0 / 25 + 1) / 3, 1e-6);
  EXPECT_NEAR(gram[1], (2 * 12.0 / 25 - 1) / 3, 1e-6);
  EXPECT_EQ(gram[1], gram[2]);
  EXPECT_NEAR(gram[3], (2 * 16.0 / 25 + 1) / 3, 1e-6);
}

TEST(Calibration, TwoCallsAreOneTextAndThreadsDoNotMatter) {
  constexpr std::int64_t kRows = 24, kK = 300;
  const std::vector<float> x = correlated_rows(kRows, kK);
  const std::vector<float> whole = gram_of(x, kRows, kK);
  Calibration calibration;
  Context context(Threading{3, nullptr, nullptr});
  calibration.add({"q", "k"}, {x.data(), DType::kF32, {10, kK}}, context);
  calibration.add({"q", "k"}, {x.data() + 10 * kK, DType::kF32, {kRows - 10, kK}}, context);
  const std::vector<float> parts = calibration.gram(calibration.input_of("k"));
  ASSERT_EQ(parts.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(parts[i], whole[i], 1e-5) << i;
}

TEST(Calibration, RefusesInputsThatContradict) {
  Calibration calibration;
  Context context;
  const std::vector<float> x(12, 1.0f);
  calibration.add({"q", "k"}, view(x, 3, 4), context);
  EXPECT_THROW(calibration.add({}, view(x, 3, 4), context), InvalidArgument);
  EXPECT_THROW(calibration.add({"q", "k"}, view(x, 4, 3), context), InvalidArgument);
  EXPECT_THROW(calibration.add({"q"}, view(x, 3, 4), context), InvalidArgument);
  EXPECT_THROW(calibration.add({"v", "k"}, view(x, 3, 4), context), InvalidArgument);
  std::vector<float> bad = x;
  bad[5] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(calibration.add({"q", "k"}, view(bad, 3, 4), context), InvalidArgument);
  EXPECT_EQ(calibration.input_of("v"), "");
  EXPECT_THROW(calibration.gram("v"), InvalidArgument);
}

TEST(Calibration, FileGivesBackWhatWasSaved) {
  const ScratchFolder scratch;
  constexpr std::int64_t kK = 20;
  const std::vector<float> x = correlated_rows(50, kK);
  Calibration calibration;
  Context context;
  calibration.add({"a.q", "a.k"}, view(x, 50, kK), context);
  calibration.add({"a.o"}, view(x, 100, kK / 2), context);
  calibration.save(scratch / "calibration.safetensors");
  const Calibration read = Calibration::load(scratch / "calibration.safetensors");
  EXPECT_EQ(read.input_of("a.k"), "a.q");
  EXPECT_EQ(read.input_of("a.o"), "a.o");
  EXPECT_EQ(read.size("a.o"), kK / 2);
  EXPECT_EQ(read.gram("a.q"), calibration.gram("a.q"));
}

TEST(Calibration, IsOfOneModelWhichItsFileNames) {
  const ScratchFolder scratch;
  DenseModel model = toy_model();
  write_model(scratch / "model", model);
  write_model(scratch / "copy", model);
  model["model.layers.1.mlp.down_proj.weight"].values.back() += 1;
  write_model(scratch / "trained", model);
  const Checkpoint own = Checkpoint::open(scratch / "model"), other = Checkpoint::open(scratch / "trained");
  EXPECT_EQ(own.fingerprint(), Checkpoint::open(scratch / "copy").fingerprint());
  EXPECT_NE(own.fingerprint(), other.fingerprint());
  Calibration calibration;
  Context context;
  calibration.add({"q", "k"}, view(correlated_rows(4, 6), 4, 6), context);
  EXPECT_NO_THROW(calibration.check_model(other));  // not known
  calibration.set_model(own.fingerprint());
  calibration.save(scratch / "calibration.safetensors");
  const Calibration read = Calibration::load(scratch / "calibration.safetensors");
  EXPECT_EQ(read.model(), own.fingerprint());
  EXPECT_EQ(read.input_of("k"), "q");
  EXPECT_NO_THROW(read.check_model(own));
  const std::string text = message_of<InvalidArgument>([&] { read.check_model(other); });
  EXPECT_TRUE(contains(text, own.fingerprint()) && contains(text, other.fingerprint()) && contains(text, "trained"))
      << text;
  ConvertOptions options;
  options.calibration = &read;
  const auto convert_other = [&] { convert(scratch / "trained", scratch / "out", options); };
  EXPECT_EQ(message_of<InvalidArgument>(convert_other), text);
  EXPECT_FALSE(fs::exists(scratch / "out"));
}

TEST(Calibration, FileOfAnotherKindIsRefusedWithTheTensor) {
  const ScratchFolder scratch;
  write_model(scratch / "model", toy_model());
  try {
    Calibration::load(scratch / "model" / "model.safetensors");
    FAIL() << "accepted";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("lm_head.weight"), std::string::npos) << error.what();
  }
  EXPECT_THROW(Calibration::load(scratch / "nothing"), IoError);
}

TEST(Calibration, MatrixThatIsNotSymmetricIsRefused) {
  const ScratchFolder scratch;
  write_model(scratch / "file", {{"layer.gram", {{2, 2}, {1, 0.5f, 0.25f, 1}, DType::kF32}}});
  try {
    Calibration::load(scratch / "file" / "model.safetensors");
    FAIL() << "accepted";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("\"layer.gram\" is not symmetric at [1, 0]"), std::string::npos)
        << error.what();
  }
}

TEST(Calibration, NegativeMeanSquareIsRefused) {
  const ScratchFolder scratch;
  write_model(scratch / "file", {{"layer.gram", {{2, 2}, {1, 0.5f, 0.5f, -5}, DType::kF32}}});
  try {
    Calibration::load(scratch / "file" / "model.safetensors");
    FAIL() << "accepted";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("\"layer.gram\" has a negative mean square at [1, 1]"), std::string::npos)
        << error.what();
  }
}

TEST(ErrorCompensation, WithoutCorrelationEveryCodeIsTheNearest) {
  const DenseTensor w = matrix(kInner, kHidden);
  std::vector<float> identity(static_cast<std::size_t>(kHidden * kHidden));
  for (std::int64_t i = 0; i < kHidden; ++i) identity[static_cast<std::size_t>(i * kHidden + i)] = 1;
  const ErrorCompensation inputs = prepare_compensation(identity, kHidden);
  for (const ConvertScheme scheme : {ConvertScheme::kInt8Channel, ConvertScheme::kFp8Channel}) {
    const ConvertedStorage storage = converted_storage(scheme);
    EXPECT_EQ(convert_weight(view(w), storage, false, &inputs).bytes,
              convert_weight(view(w), storage, false, nullptr).bytes);
  }
}

TEST(ErrorCompensation, OutputErrorIsMuchSmallerThanOfTheNearestCodes) {
  const DenseTensor w = matrix(kInner, kHidden);
  const std::vector<float> gram = gram_of(correlated_rows(400, kHidden), 400, kHidden);
  const ErrorCompensation inputs = prepare_compensation(gram, kHidden);
  for (const ConvertScheme scheme :
       {ConvertScheme::kInt8Channel, ConvertScheme::kFp8Tensor, ConvertScheme::kFp8Channel, ConvertScheme::kFp8Block}) {
    const ConvertedStorage storage = converted_storage(scheme);
    const double nearest = output_error(w, convert_weight(view(w), storage, false, nullptr), storage.group, gram);
    const double compensated = output_error(w, convert_weight(view(w), storage, false, &inputs), storage.group, gram);
    EXPECT_LT(compensated, 0.5 * nearest) << static_cast<int>(scheme);
  }
}

// Codes of three columns by hand: G = [[4, 2, 0], [2, 2, 0], [0, 0, 1]], scale 1, w = [0.4, 0.4, 0.6].
TEST(ErrorCompensation, SecondColumnTakesOverWhatTheFirstGotWrong) {
  const std::vector<float> gram = {4, 2, 0, 2, 2, 0, 0, 0, 1};
  const ErrorCompensation inputs = prepare_compensation(gram, 3);
  EXPECT_EQ(inputs.order, (std::vector<std::int64_t>{0, 1, 2}));
  const std::vector<float> w = {0.4f, 0.4f, 0.6f};
  QuantizedWeight weight{DType::kInt8, 1, 3, {0, 0, 0}, {1}, 1, 1};
  round_with_compensation({w.data(), DType::kF32, {1, 3}}, GroupShape::per_channel(), inputs, weight);
  // 0.4 becomes 0; the second column adds 0.4 * 2 / 2 and becomes 1 instead of 0; the third is on its own.
  EXPECT_EQ(weight.bytes, (std::vector<std::uint8_t>{0, 1, 1}));
}

TEST(ErrorCompensation, BlockScalesAreTheLargestTimesPowersOfTwoAndNothingSaturates) {
  const DenseTensor w = matrix(kInner, kHidden);
  const ErrorCompensation inputs = prepare_compensation(gram_of(correlated_rows(400, kHidden), 400, kHidden), kHidden);
  const ConvertedStorage storage = converted_storage(ConvertScheme::kFp8Block);
  const QuantizedWeight own = convert_weight(view(w), storage, false, nullptr);
  const QuantizedWeight shared = convert_weight(view(w), storage, false, &inputs);
  const float largest = *std::ranges::max_element(own.scales);
  for (std::size_t i = 0; i < own.scales.size(); ++i) {
    int exponent = 0;
    EXPECT_EQ(std::frexp(shared.scales[i] / largest, &exponent), 0.5f) << i;
    EXPECT_GE(shared.scales[i], own.scales[i]);
    EXPECT_LT(shared.scales[i], 2 * own.scales[i]);
  }
}

TEST(ErrorCompensation, RefusesAMatrixThatIsNoGramMatrix) {
  EXPECT_THROW(prepare_compensation(std::vector<float>{1, 2, 2, 1}, 2), InvalidArgument);
}

TEST(CalibratedConvert, WritesOtherCodesUnderTheSameScales) {
  const ScratchFolder scratch;
  const DenseModel model = toy_model();
  write_model(scratch / "model", model);
  Calibration calibration;
  Context context;
  const std::vector<float> wide = correlated_rows(300, kHidden), narrow = correlated_rows(300, kInner);
  for (const std::string layer : {"model.layers.0.mlp.", "model.layers.1.mlp."}) {
    calibration.add({layer + "up_proj"}, view(wide, 300, kHidden), context);
    calibration.add({layer + "down_proj"}, view(narrow, 300, kInner), context);
  }
  ConvertOptions options;
  options.scheme = ConvertScheme::kFp8Channel;
  convert(scratch / "model", scratch / "nearest", options);
  options.calibration = &calibration;
  std::size_t last = 0;
  options.progress = [&](std::size_t done, std::size_t total, std::string_view) {
    EXPECT_EQ(total, 4u);
    last = done;
  };
  convert(scratch / "model", scratch / "calibrated", options);
  EXPECT_EQ(last, 4u);
  const Checkpoint nearest = Checkpoint::open(scratch / "nearest"),
                   calibrated = Checkpoint::open(scratch / "calibrated");
  const auto bytes = [](const Checkpoint& checkpoint, const std::string& name) {
    const ConstTensorView tensor = checkpoint.tensor(name);
    const auto* data = static_cast<const std::uint8_t*>(tensor.data);
    return std::vector<std::uint8_t>(data, data + tensor.shape.elements() * size_bytes(tensor.dtype));
  };
  const std::string layer = "model.layers.1.mlp.down_proj";
  EXPECT_NE(bytes(nearest, layer + ".weight"), bytes(calibrated, layer + ".weight"));
  EXPECT_EQ(bytes(nearest, layer + ".weight_scale"), bytes(calibrated, layer + ".weight_scale"));
}

TEST(CalibratedConvert, NamesTheLayerThatIsNotCalibrated) {
  const ScratchFolder scratch;
  write_model(scratch / "model", toy_model());
  Calibration calibration;
  Context context;
  ConvertOptions options;
  options.calibration = &calibration;
  const auto message = [&] {
    try {
      convert(scratch / "model", scratch / "out", options);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message().find("model.layers.0.mlp.down_proj"), std::string::npos) << message();
  const std::vector<float> x = correlated_rows(4, kHidden);
  calibration.add({"model.layers.0.mlp.down_proj"}, view(x, 4, kHidden), context);
  EXPECT_NE(message().find("K = 136, its weight 200"), std::string::npos) << message();
  EXPECT_FALSE(fs::exists(scratch / "out"));
}

}  // namespace
}  // namespace scaledmm
