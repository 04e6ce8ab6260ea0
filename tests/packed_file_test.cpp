// Packed files: written, mapped, the same bits; stale and hostile ones are refused with a reason.
#include "scaledmm/packed.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "formats/content_hash.hpp"
#include "formats/safetensors.hpp"
#include "scaledmm/scaledmm.hpp"
#include "toy_checkpoint.hpp"

namespace scaledmm {
namespace {

const std::string kInt8Config =
    R"({"torch_dtype":"float32","quantization_config":{"quant_method":"compressed-tensors","format":"int-quantized",)"
    R"("ignore":["lm_head"],"config_groups":{"group_0":{"targets":["Linear"],)"
    R"("weights":{"num_bits":8,"type":"int","strategy":"channel"},)"
    R"("input_activations":{"num_bits":8,"type":"int","strategy":"token","dynamic":true}}}}})";
const std::string kFp8BlockConfig =
    R"({"torch_dtype":"float32","quantization_config":)"
    R"({"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128,128]}})";

constexpr std::int64_t kK = 160;
const std::vector<std::string> kLayers = {"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"};

std::vector<ToyTensor> int8_tensors(std::int64_t n = 48) {
  std::vector<ToyTensor> tensors;
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    const auto seed = static_cast<std::int64_t>(i);
    tensors.push_back(toy(kLayers[i] + ".weight", "I8", Shape{n, kK},
                          [=](std::int64_t j) { return static_cast<double>((j * 37 + seed * 11) % 255 - 127); }));
    tensors.push_back(toy(kLayers[i] + ".weight_scale", "F32", Shape{n, 1},
                          [](std::int64_t j) { return 0.01 + 0.001 * static_cast<double>(j % 7); }));
    tensors.push_back(
        toy(kLayers[i] + ".bias", "F32", Shape{n}, [](std::int64_t j) { return 0.5 * static_cast<double>(j); }));
  }
  return tensors;
}

std::vector<ToyTensor> fp8_block_tensors() {
  std::vector<ToyTensor> tensors;
  for (const std::string& layer : kLayers) {
    tensors.push_back(toy(layer + ".weight", "F8_E4M3", Shape{256, kK},
                          [](std::int64_t j) { return static_cast<double>(j * 29 % 97 - 48) / 8; }));
    tensors.push_back(toy(layer + ".weight_scale_inv", "F32", Shape{2, 2},
                          [](std::int64_t j) { return 0.02 + 0.01 * static_cast<double>(j); }));
  }
  return tensors;
}

std::vector<float> outputs(const Linear& linear) {
  const WeightShape shape = weight_shape(linear.config());
  constexpr std::int64_t kM = 3;
  std::vector<float> x, y(static_cast<std::size_t>(kM * shape.n));
  for (std::int64_t i = 0; i < kM * shape.k; ++i) x.push_back(static_cast<float>(i * 31 % 113 - 56) / 16);
  Context context;
  linear.apply({x.data(), DType::kF32, {kM, shape.k}}, {y.data(), DType::kF32, {kM, shape.n}}, context);
  return y;
}

// A checkpoint folder with two layers, and a packed file of them.
class PackedFiles : public testing::Test {
 protected:
  void SetUp() override { write_toy_checkpoint(folder_ / "model", kInt8Config, int8_tensors(), 3); }

  Checkpoint open() const { return Checkpoint::open(folder_ / "model"); }
  std::filesystem::path file() const { return folder_ / "packed.safetensors"; }

  PackedFileReport pack(const LinearOptions& options = {}) const {
    const Checkpoint checkpoint = open();
    const Linear gate = Linear::load(checkpoint, kLayers[0], options),
                 up = Linear::load(checkpoint, kLayers[1], options),
                 both = Linear::load_fused(checkpoint, kLayers, options);
    const Linear* const layers[] = {&gate, &up, &both};
    return write_packed(file(), checkpoint, layers);
  }
  std::shared_ptr<const PackedFile> map(const Checkpoint& checkpoint, const PackedFileOptions& options = {}) const {
    return std::make_shared<const PackedFile>(PackedFile::open(file(), checkpoint, options));
  }
  std::string stale_reason(const PackedFileOptions& options = {}) const {
    return message_of<StalePackedFile>([&] { PackedFile::open(file(), open(), options); });
  }
  // The file's header changed as JSON text; its data stays.
  void edit_header(const std::function<void(nlohmann::ordered_json&)>& edit) const {
    const std::string bytes = read_bytes(file());
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    auto header = nlohmann::ordered_json::parse(bytes.substr(8, length));
    edit(header);
    std::string text = header.dump();
    text.resize((text.size() + 8 + 63) / 64 * 64 - 8, ' ');
    folder_.write("packed.safetensors", framed(text.size(), text, bytes.substr(8 + length)));
  }
  // The same for the list of layers inside it.
  void edit_layers(const std::function<void(nlohmann::ordered_json&)>& edit) const {
    edit_header([&](nlohmann::ordered_json& header) {
      auto& text = header["__metadata__"]["layers"];
      auto layers = nlohmann::ordered_json::parse(text.get<std::string>());
      edit(layers["layers"]);
      text = layers.dump();
    });
  }

  ScratchFolder folder_;
};

TEST_F(PackedFiles, GiveLayersTheSameBits) {
  const PackedFileReport report = pack();
  EXPECT_EQ(report.layers.size(), 3U);
  EXPECT_TRUE(report.left_out.empty());
  EXPECT_EQ(report.file_bytes, std::filesystem::file_size(file()));
  const Checkpoint checkpoint = open();
  LinearOptions mapped;
  mapped.packed = map(checkpoint, {SourceCheck::kContent, true});
  ASSERT_EQ(mapped.packed->layers().size(), 3U);
  EXPECT_EQ(mapped.packed->layers()[0].name, kLayers[0]);
  EXPECT_EQ(mapped.packed->layers()[1].name, kLayers[0] + "+" + kLayers[1]);
  for (const std::string& name : kLayers) {
    const Linear linear = Linear::load(checkpoint, name, mapped);
    EXPECT_TRUE(linear.is_mapped());
    EXPECT_TRUE(linear.warnings().empty());
    const Linear packed = Linear::load(checkpoint, name);
    EXPECT_FALSE(packed.is_mapped());
    EXPECT_EQ(outputs(linear), outputs(packed));
  }
  const Linear fused = Linear::load_fused(checkpoint, kLayers, mapped);
  EXPECT_TRUE(fused.is_mapped());
  EXPECT_EQ(outputs(fused), outputs(Linear::load_fused(checkpoint, kLayers)));
}

TEST_F(PackedFiles, HoldBlockScales) {
  write_toy_checkpoint(folder_ / "model", kFp8BlockConfig, fp8_block_tensors());
  std::filesystem::remove(folder_ / "model" / kIndexFileName);
  LinearOptions options;
  options.select.backend = "w8a16";
  EXPECT_EQ(pack(options).layers.size(), 3U);
  const Checkpoint checkpoint = open();
  LinearOptions mapped = options;
  mapped.packed = map(checkpoint);
  const Linear fused = Linear::load_fused(checkpoint, kLayers, mapped);
  EXPECT_TRUE(fused.is_mapped());
  EXPECT_EQ(outputs(fused), outputs(Linear::load_fused(checkpoint, kLayers, options)));
}

TEST_F(PackedFiles, OutliveTheirHandleInALayer) {
  pack();
  std::optional<Linear> linear;
  {
    const Checkpoint checkpoint = open();
    LinearOptions options;
    options.packed = map(checkpoint);
    linear = Linear::load(checkpoint, kLayers[0], options);
  }
  std::filesystem::remove(file());
  EXPECT_EQ(outputs(*linear), outputs(Linear::load(open(), kLayers[0])));
}

TEST_F(PackedFiles, AlignEverySectionTo64Bytes) {
  pack();
  const SafetensorsFile container = SafetensorsFile::open(file());
  ASSERT_GE(container.tensors().size(), 6U);
  for (const TensorEntry& entry : container.tensors()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(container.bytes(entry).data()) % 64, 0U) << entry.name;
  }
}

TEST_F(PackedFiles, AreReplacedAsAWhole) {
  folder_.write("packed.safetensors", "something else");
  pack();
  EXPECT_EQ(map(open())->layers().size(), 3U);
  EXPECT_EQ(folder_.entries(), 2U) << "nothing but the model and the packed file";
  std::filesystem::create_directory(folder_ / "there");
  const Checkpoint checkpoint = open();
  const Linear linear = Linear::load(checkpoint, kLayers[0]);
  const Linear* const layers[] = {&linear};
  EXPECT_THROW(write_packed(folder_ / "missing" / "packed", checkpoint, layers), IoError);
  EXPECT_THROW(write_packed(folder_ / "there", checkpoint, layers), IoError);
}

TEST_F(PackedFiles, LeaveOutKernelsThatKeepNone) {
  LinearOptions options;
  options.select.force = "reference";
  const PackedFileReport report = pack(options);
  EXPECT_TRUE(report.layers.empty());
  ASSERT_EQ(report.left_out.size(), 3U);
  EXPECT_EQ(report.left_out[0], kLayers[0] + ": reference keeps no packed weights in files");
  const Checkpoint checkpoint = open();
  options.packed = map(checkpoint);
  const Linear linear = Linear::load(checkpoint, kLayers[0], options);
  EXPECT_FALSE(linear.is_mapped());
  ASSERT_EQ(linear.warnings().size(), 1U);
  EXPECT_TRUE(contains(linear.warnings()[0], "does not hold it, it was packed"));
}

TEST_F(PackedFiles, RefuseLayersOfAnotherCheckpoint) {
  pack();
  write_toy_checkpoint(folder_ / "other", kInt8Config, int8_tensors());
  const Checkpoint checkpoint = open(), other = Checkpoint::open(folder_ / "other");
  LinearOptions options;
  options.packed = map(checkpoint);
  EXPECT_TRUE(
      contains(message_of<InvalidArgument>([&] { Linear::load(other, kLayers[0], options); }), "was opened for"));
  const Linear linear = Linear::load(checkpoint, kLayers[0]);
  const Linear* const twice[] = {&linear, &linear};
  EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { write_packed(file(), checkpoint, twice); }), "comes twice"));
  const ToyTensor weight = int8_tensors()[0], scale = int8_tensors()[1];
  LayerWeights weights;
  weights.weight = {weight.bytes.data(), DType::kInt8, {48, kK}};
  weights.weight_scale = {scale.bytes.data(), DType::kF32, {48, 1}};
  const Linear unnamed = Linear::create(linear.config(), weights);
  const Linear* const foreign[] = {&unnamed};
  EXPECT_TRUE(
      contains(message_of<InvalidArgument>([&] { write_packed(file(), checkpoint, foreign); }), "without a name"));
}

// ---------------------------------------------------------------------------------------------------------- staleness

TEST_F(PackedFiles, AreStaleWhenTheLibraryIsAnother) {
  pack();
  edit_header([](auto& header) { header["__metadata__"]["library"] = "0.0.1"; });
  EXPECT_TRUE(contains(stale_reason(), "stale: it was written by version 0.0.1 of the library, this is version "));
}

TEST_F(PackedFiles, AreStaleWhenTheFormatIsAnother) {
  pack();
  edit_header([](auto& header) {
    header["__metadata__"]["scaledmm_packed"] = "99";
    header["__metadata__"].erase("layers");
  });
  EXPECT_TRUE(contains(stale_reason(), "stale: its format is version 99, this library has version 1"));
}

TEST_F(PackedFiles, AreStaleWhenTheConfigChanged) {
  pack();
  std::ofstream(folder_ / "model" / "config.json", std::ios::app) << "\n";
  EXPECT_TRUE(contains(stale_reason(), "stale: config.json: the hash of its content is "));
}

TEST_F(PackedFiles, AreStaleWhenAConfigCameOrWent) {
  std::ofstream(folder_ / "model" / "hf_quant_config.json") << "{}";
  pack();
  std::filesystem::remove(folder_ / "model" / "hf_quant_config.json");
  EXPECT_TRUE(contains(stale_reason(), "stale: hf_quant_config.json is not there any more"));
  pack();
  std::ofstream(folder_ / "model" / "hf_quant_config.json") << "{}";
  EXPECT_TRUE(contains(stale_reason(), "stale: hf_quant_config.json was not there when it was packed"));
}

TEST_F(PackedFiles, AreStaleWhenAWeightFileHasAnotherSize) {
  pack();
  write_toy_checkpoint(folder_ / "model", kInt8Config, int8_tensors(64), 3);
  EXPECT_TRUE(contains(stale_reason(), "stale: model-00001-of-00003.safetensors: its size is "));
}

TEST_F(PackedFiles, AreStaleWhenAWeightFileHasAnotherHeader) {
  pack();
  std::vector<ToyTensor> tensors = int8_tensors();
  tensors[1].shape = Shape{1, 48};  // scales of the same bytes, written as long: the file keeps its size
  write_toy_checkpoint(folder_ / "model", kInt8Config, tensors, 3);
  EXPECT_TRUE(contains(stale_reason(), ": the hash of its header is "));
}

TEST_F(PackedFiles, AreStaleWhenTheNumberOfWeightFilesIsAnother) {
  pack();
  write_toy_checkpoint(folder_ / "model", kInt8Config, int8_tensors(), 2);
  EXPECT_TRUE(contains(stale_reason(), "stale: the number of weight files is 2, it was 3 when it was packed"));
}

TEST_F(PackedFiles, AreStaleByTimeOrByContentAsAsked) {
  pack();
  const std::filesystem::path weights = folder_ / "model" / "model-00001-of-00003.safetensors";
  const auto before = std::filesystem::last_write_time(weights);
  std::filesystem::last_write_time(weights, before + std::chrono::seconds(5));
  EXPECT_TRUE(contains(stale_reason(), "model-00001-of-00003.safetensors: the time of its last change is "));
  EXPECT_NO_THROW(PackedFile::open(file(), open(), {SourceCheck::kContent, false}));
  // A changed byte with the old time is what only the content shows.
  std::string bytes = read_bytes(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(weights, std::ios::binary) << bytes;
  std::filesystem::last_write_time(weights, before);
  EXPECT_NO_THROW(PackedFile::open(file(), open()));
  EXPECT_TRUE(contains(stale_reason({SourceCheck::kContent, false}), "the hash of its content is "));
}

TEST_F(PackedFiles, AreStaleForAnotherKernel) {
  pack();
  edit_layers([](auto& layers) { layers[0]["kernel"] = "int8_w8a8_other"; });
  const Checkpoint checkpoint = open();
  LinearOptions options;
  options.packed = map(checkpoint);
  const std::string reason = message_of<StalePackedFile>([&] { Linear::load(checkpoint, kLayers[0], options); });
  EXPECT_TRUE(contains(reason, "was packed for kernel int8_w8a8_other, wanted is int8_w8a8_")) << reason;
  EXPECT_TRUE(Linear::load(checkpoint, kLayers[1], options).is_mapped());
}

TEST_F(PackedFiles, AreStaleForAnotherLayout) {
  pack();
  edit_layers([](auto& layers) { layers[0]["layout"] = "int8 panels of 8, version 0"; });
  const Checkpoint checkpoint = open();
  LinearOptions options;
  options.packed = map(checkpoint);
  const std::string reason = message_of<StalePackedFile>([&] { Linear::load(checkpoint, kLayers[0], options); });
  EXPECT_TRUE(contains(reason, "was packed for layout int8 panels of 8, version 0, wanted is int8 panels of 16"));
}

// ------------------------------------------------------------------------------------------------------ hostile files

TEST_F(PackedFiles, OfAnotherKindAreRefused) {
  write_toy_file(file(), int8_tensors());
  EXPECT_TRUE(
      contains(message_of<CheckpointError>([&] { PackedFile::open(file(), open()); }), "not a packed-weight file"));
}

TEST_F(PackedFiles, CutShortAnywhereAreRefused) {
  pack();
  const std::string bytes = read_bytes(file());
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{7}, std::size_t{100}, bytes.size() / 2, bytes.size() - 64, bytes.size() - 1}) {
    folder_.write("packed.safetensors", bytes.substr(0, size));
    EXPECT_THROW(PackedFile::open(file(), open()), CheckpointError) << size << " bytes";
  }
}

TEST_F(PackedFiles, WithDamagedSectionsAreFoundWhenAsked) {
  pack();
  std::string bytes = read_bytes(file());
  bytes[bytes.size() - 65] = static_cast<char>(bytes[bytes.size() - 65] ^ 1);
  folder_.write("packed.safetensors", bytes);
  EXPECT_NO_THROW(PackedFile::open(file(), open()));
  const std::string text = message_of<CheckpointError>([&] {
    PackedFile::open(file(), open(), {SourceCheck::kTime, true});
  });
  EXPECT_TRUE(contains(text, "is damaged")) << text;
}

struct HostileManifest {
  const char* label;
  std::function<void(nlohmann::ordered_json& header, nlohmann::ordered_json& layers)> edit;
  const char* text;
};

TEST_F(PackedFiles, WithAManifestThatLiesAreRefused) {
  using Json = nlohmann::ordered_json;
  const std::vector<HostileManifest> cases = {
      {"sizes past the tensor", [](Json&, Json& l) { l[0]["sections"][0]["bytes"] = 1 << 30; },
       "the list of layers says"},
      {"a size past 64 bits", [](Json&, Json& l) { l[0]["sections"][0]["bytes"] = ~std::uint64_t{0}; }, "bytes"},
      {"a negative size", [](Json&, Json& l) { l[0]["sections"][0]["bytes"] = -64; }, "bytes is -64"},
      {"a size that is text", [](Json&, Json& l) { l[0]["sections"][0]["bytes"] = "64"; }, "bytes"},
      {"a section too many", [](Json&, Json& l) { l[0]["sections"][0]["name"] = "other"; }, "is missing"},
      {"a section twice", [](Json&, Json& l) { l[0]["sections"].push_back(l[0]["sections"][0]); }, "twice"},
      {"a layer twice", [](Json&, Json& l) { l.push_back(l[0]); }, "is listed twice"},
      {"a layer too few", [](Json&, Json& l) { l.erase(0); }, "is no section of a listed layer"},
      {"layers that are a number", [](Json&, Json& l) { l = 3; }, "layers is not a list"},
      {"a layer that is a number", [](Json&, Json& l) { l[0] = 3; }, "layers[0]"},
      {"no kernel", [](Json&, Json& l) { l[0].erase("kernel"); }, "no kernel"},
      {"a kernel that is a list", [](Json&, Json& l) { l[0]["kernel"] = Json::array(); }, "kernel"},
      {"no list of layers", [](Json& h, Json&) { h["__metadata__"].erase("source"); }, "not a packed-weight file"},
      {"broken JSON", [](Json& h, Json&) { h["__metadata__"]["source"] = "{"; }, "invalid JSON"},
      {"a tensor of another type",
       [](Json& h, Json&) {
         for (auto& [name, tensor] : h.items()) {
           if (name != "__metadata__") tensor["dtype"] = "I8";
         }
       },
       "not U8"},
  };
  pack();
  const std::string sound = read_bytes(file());
  for (const HostileManifest& hostile : cases) {
    SCOPED_TRACE(hostile.label);
    folder_.write("packed.safetensors", sound);
    edit_header([&](Json& header) {
      Json layers = Json::parse(header["__metadata__"]["layers"].get<std::string>());
      hostile.edit(header, layers["layers"]);
      header["__metadata__"]["layers"] = layers.dump();
    });
    const std::string text = message_of<CheckpointError>([&] { PackedFile::open(file(), open()); });
    EXPECT_TRUE(contains(text, hostile.text)) << text;
    EXPECT_TRUE(contains(text, "packed.safetensors")) << text;
  }
}

TEST_F(PackedFiles, WhoseDataBeginsOffTheAlignmentAreRefused) {
  pack();
  const std::string bytes = read_bytes(file());
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  folder_.write("packed.safetensors",
                framed(length + 8, bytes.substr(8, length) + std::string(8, ' '), bytes.substr(8 + length)));
  EXPECT_TRUE(contains(message_of<CheckpointError>([&] { PackedFile::open(file(), open()); }),
                       "does not begin at a multiple of 64 bytes"));
}

TEST_F(PackedFiles, WithSectionsOfAnotherShapeAreRefused) {
  pack();
  // As long as before when filled up to 64 bytes, so only the layer's shape contradicts it.
  edit_layers([](auto& layers) {
    auto& bytes = layers[0]["sections"][0]["bytes"];
    bytes = bytes.template get<std::int64_t>() - 1;
  });
  const Checkpoint checkpoint = open();
  LinearOptions options;
  options.packed = map(checkpoint);
  const std::string text = message_of<CheckpointError>([&] { Linear::load(checkpoint, kLayers[0], options); });
  EXPECT_TRUE(contains(text, "this layer needs")) << text;
}

TEST(ContentHash, DependsOnEveryByteAndNotOnTheCuts) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 7);
  std::set<std::string> seen;
  for (std::size_t size = 0; size <= text.size(); ++size) {
    const std::string_view part(text.data(), size);
    const std::string whole = content_hash(part);
    EXPECT_EQ(whole.size(), 16U);
    EXPECT_TRUE(seen.insert(whole).second) << size << " bytes";
    for (const std::size_t cut : {std::size_t{1}, std::size_t{31}, std::size_t{32}, std::size_t{33}}) {
      if (cut > size) continue;
      ContentHash hash;
      hash.update(std::as_bytes(std::span(part.substr(0, cut))));
      hash.update(std::as_bytes(std::span(part.substr(cut))));
      EXPECT_EQ(hash.digits(), whole);
    }
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ 1 << bit);
      EXPECT_TRUE(seen.insert(content_hash(std::string_view(changed))).second) << "byte " << i << " bit " << bit;
    }
  }
  const std::string zeros(64, '\0');
  EXPECT_NE(content_hash(std::string_view(zeros).substr(0, 33)), content_hash(std::string_view(zeros).substr(0, 34)));
}

}  // namespace
}  // namespace scaledmm
