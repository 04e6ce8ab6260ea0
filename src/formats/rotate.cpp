// rotate(): every tensor of a plain decoder has a part, by its name, and each part a formula.
#include "scaledmm/rotate.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/atomic_file.hpp"
#include "formats/decoder_config.hpp"
#include "formats/json.hpp"
#include "formats/other_files.hpp"
#include "formats/quote.hpp"
#include "formats/rotation.hpp"
#include "formats/safetensors_writer.hpp"
#include "formats/shard_index.hpp"
#include "numerics/formats.hpp"
#include "scaledmm/checkpoint.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight", kHeadName = "lm_head.weight",
                           kLastNormName = "model.norm.weight";

// What a tensor does with the residual stream.
enum class Part {
  kEmbedding,  // rows are states of it
  kHead,       // reads it behind the last norm
  kNorm,       // a gain
  kReader,     // reads it behind a norm: q, k, gate, up
  kValue,      // the same, and writes values
  kOutput,     // reads values, writes it
  kWriter,     // writes it: down
  kUntouched,
};

// Which side of a tensor carries the channels that down_proj reads.
enum class Channels { kNone, kRows, kColumns };

struct Role {
  Part part;
  std::string gain;  // the norm in front of it
  Channels channels = Channels::kNone;
  std::string down = {};  // the layer that reads those channels
};

Role role_of(const std::string& name, const fs::path& directory) {
  static const std::map<std::string, std::pair<Part, const char*>, std::less<>> kInLayers = {
      {"input_layernorm.weight", {Part::kNorm, ""}},
      {"post_attention_layernorm.weight", {Part::kNorm, ""}},
      {"self_attn.q_proj.weight", {Part::kReader, "input_layernorm.weight"}},
      {"self_attn.k_proj.weight", {Part::kReader, "input_layernorm.weight"}},
      {"self_attn.v_proj.weight", {Part::kValue, "input_layernorm.weight"}},
      {"self_attn.o_proj.weight", {Part::kOutput, ""}},
      {"mlp.gate_proj.weight", {Part::kReader, "post_attention_layernorm.weight"}},
      {"mlp.up_proj.weight", {Part::kReader, "post_attention_layernorm.weight"}},
      {"mlp.down_proj.weight", {Part::kWriter, ""}},
      {"self_attn.q_proj.bias", {Part::kUntouched, ""}},
      {"self_attn.k_proj.bias", {Part::kUntouched, ""}},
      {"self_attn.q_norm.weight", {Part::kUntouched, ""}},
      {"self_attn.k_norm.weight", {Part::kUntouched, ""}},
      {"mlp.gate_proj.bias", {Part::kUntouched, ""}},
      {"mlp.up_proj.bias", {Part::kUntouched, ""}}};
  if (name == kEmbeddingName) return {Part::kEmbedding, ""};
  if (name == kHeadName) return {Part::kHead, std::string(kLastNormName)};
  if (name == kLastNormName) return {Part::kNorm, ""};
  constexpr std::string_view kLayers = "model.layers.";
  const std::size_t dot = name.starts_with(kLayers) ? name.find('.', kLayers.size()) : std::string::npos;
  const auto found = dot == std::string::npos ? kInLayers.end() : kInLayers.find(name.substr(dot + 1));
  if (found == kInLayers.end()) {
    throw Unsupported(escape(directory.string()) + ": tensor " + quote(name) +
                      " is none of a plain decoder's that could be rotated");
  }
  const std::string prefix = name.substr(0, dot + 1);
  const std::string gain = found->second.second;
  Role role{found->second.first, gain.empty() ? gain : prefix + gain, Channels::kNone, prefix + "mlp.down_proj"};
  if (found->first == "mlp.down_proj.weight") role.channels = Channels::kColumns;
  if (found->first.starts_with("mlp.up_proj.")) role.channels = Channels::kRows;
  return role;
}

class Rotator {
 public:
  Rotator(const Checkpoint& source, const RotateOptions& options);
  // Writes the weight files and config.json.
  void write(const fs::path& directory);

 private:
  struct Target {
    std::string name;    // in the result
    std::string source;  // the tensor it is made of
    const StoredTensor* stored = nullptr;
    Role role;
  };

  std::int64_t size(const char* key) const;
  bool shares_embedding() const;
  RowMatrix load(const std::string& name, std::int64_t rows, std::int64_t columns) const;
  RowMatrix rotated(const Target& target) const;
  // s_j of the inputs of `down`: see rotate.hpp. Kept: down, up and its bias ask for them.
  const Eigen::ArrayXf& smoothing_scales(const std::string& down);
  Eigen::ArrayXf computed_scales(const std::string& down) const;
  void smooth(const Role& role, RowMatrix& w);
  // `values` of every block of a head's rows from the left by R^T: W -> (I (x) R^T) W.
  void rotate_heads(RowMatrix& w) const;
  void write_file_of(const fs::path& file, const std::vector<Target>& targets);

  const Checkpoint& source_;
  const RotateOptions& options_;
  Json config_;
  WeightFiles files_;
  std::int64_t hidden_ = 0;
  RowMatrix rotation_;  // Q [hidden, hidden]
  RowMatrix head_rotation_;
  std::map<std::string, Eigen::ArrayXf> smoothing_scales_;  // by the layer
  std::size_t done_ = 0;
  std::size_t total_ = 0;
};

Rotator::Rotator(const Checkpoint& source, const RotateOptions& options)
    : source_(source),
      options_(options),
      config_(parse_json(source.config_json(), "config.json")),
      files_(open_weight_files(source.directory())) {
  if (!is_plain_decoder(config_)) {
    const Json* type = find_member(config_, "model_type");
    const std::string text = type != nullptr && type->is_string() ? type->get<std::string>() : "";
    throw Unsupported(escape(source.directory().string()) + ": model_type " + quote(text) +
                      " cannot be rotated, only llama, mistral, qwen2 and qwen3");
  }
  hidden_ = size("hidden_size");
  const std::int64_t head = find_member(config_, "head_dim") != nullptr && !config_["head_dim"].is_null()
                                ? size("head_dim")
                                : hidden_ / size("num_attention_heads");
  rotation_ = rotation_matrix(hidden_, options.seed);
  head_rotation_ = spreading_matrix(head);
}

std::int64_t Rotator::size(const char* key) const {
  constexpr std::int64_t kLargest = 1 << 16;
  const Json* value = find_member(config_, key);
  if (value == nullptr || !value->is_number_integer() || *value < 1 || *value > kLargest) {
    throw CheckpointError(escape((source_.directory() / "config.json").string()) + ": " + key +
                          " is missing or no size between 1 and " + std::to_string(kLargest));
  }
  return value->get<std::int64_t>();
}

// As config.json says; where it does not, whether there is a head.
bool Rotator::shares_embedding() const {
  const bool has_head = source_.has_tensor(kHeadName);
  const Json* tied = find_member(config_, "tie_word_embeddings");
  if (tied == nullptr || tied->is_null()) return !has_head;
  if (!tied->is_boolean()) {
    throw CheckpointError(escape((source_.directory() / "config.json").string()) +
                          ": tie_word_embeddings is no boolean");
  }
  if (!tied->get<bool>() && !has_head) {
    throw CheckpointError(escape(source_.directory().string()) + ": has no tensor " + quote(kHeadName) +
                          ", and config.json does not let the head share the embedding");
  }
  return tied->get<bool>();
}

// -1: any number.
RowMatrix Rotator::load(const std::string& name, std::int64_t rows, std::int64_t columns) const {
  const ConstTensorView tensor = source_.tensor(name);
  const auto fail = [&](const std::string& text) {
    throw CheckpointError(escape(source_.directory().string()) + ": tensor " + quote(name) + " " + text);
  };
  if (!is_float16_or_32(tensor.dtype))
    fail("is " + std::string(scaledmm::name(tensor.dtype)) + ", must be bf16, f16 or f32");
  const Shape shape = tensor.shape.rank() == 1 ? Shape{1, tensor.shape[0]} : tensor.shape;
  if (shape.rank() != 2 || (rows >= 0 && shape[0] != rows) || (columns >= 0 && shape[1] != columns)) {
    fail("has shape " + tensor.shape.text() + ", must be [" + (rows < 0 ? "any" : std::to_string(rows)) + ", " +
         (columns < 0 ? "any" : std::to_string(columns)) + "]");
  }
  RowMatrix result(shape[0], shape[1]);
  for (std::int64_t i = 0; i < result.size(); ++i) {
    result.data()[i] = load_f32(tensor.data, tensor.dtype, i);
    if (!std::isfinite(result.data()[i])) fail("is not finite at element " + std::to_string(i));
  }
  return result;
}

void Rotator::rotate_heads(RowMatrix& w) const {
  const std::int64_t head = head_rotation_.rows();
  for (std::int64_t begin = 0; begin + head <= w.rows(); begin += head) {
    w.middleRows(begin, head) = transposed_product(head_rotation_, w.middleRows(begin, head));
  }
}

RowMatrix Rotator::rotated(const Target& target) const {
  const std::int64_t head = head_rotation_.rows();
  const auto whole_heads = [&](std::int64_t size) {
    if (size % head != 0) {
      throw CheckpointError(escape(source_.directory().string()) + ": tensor " + quote(target.source) + " has " +
                            std::to_string(size) + " values, no multiple of head_dim " + std::to_string(head));
    }
  };
  switch (target.role.part) {
    case Part::kNorm:
      return RowMatrix::Ones(1, load(target.source, 1, hidden_).cols());
    case Part::kEmbedding:
      return product(load(target.source, -1, hidden_), rotation_);
    case Part::kWriter:
      return transposed_product(rotation_, load(target.source, hidden_, -1));
    case Part::kOutput: {
      const RowMatrix w = load(target.source, hidden_, -1);
      whole_heads(w.cols());
      RowMatrix columns = w.transpose();
      rotate_heads(columns);
      return transposed_product(rotation_, RowMatrix(columns.transpose()));
    }
    case Part::kHead:
    case Part::kReader:
    case Part::kValue: {
      const RowMatrix gain = load(target.role.gain, 1, hidden_);
      RowMatrix w = product(load(target.source, -1, hidden_) * gain.asDiagonal(), rotation_);
      if (target.role.part == Part::kValue) {
        whole_heads(w.rows());
        rotate_heads(w);
      }
      return w;
    }
    case Part::kUntouched:
      break;
  }
  return load(target.source, -1, -1);
}

const Eigen::ArrayXf& Rotator::smoothing_scales(const std::string& down) {
  const auto known = smoothing_scales_.find(down);
  if (known != smoothing_scales_.end()) return known->second;
  return smoothing_scales_[down] = computed_scales(down);
}

Eigen::ArrayXf Rotator::computed_scales(const std::string& down) const {
  const RowMatrix w = load(down + ".weight", hidden_, -1);
  const Calibration& calibration = *options_.calibration;
  const std::string_view input = calibration.input_of(down);
  if (input.empty()) throw InvalidArgument("the calibration has no input of layer " + quote(down));
  if (calibration.size(input) != w.cols()) {
    throw InvalidArgument("the calibrated input of layer " + quote(down) + " has K = " +
                          std::to_string(calibration.size(input)) + ", its weight " + std::to_string(w.cols()));
  }
  const std::vector<float> gram = calibration.gram(input);
  const Eigen::ArrayXf inputs = Eigen::Map<const RowMatrix>(gram.data(), w.cols(), w.cols()).diagonal().array();
  const Eigen::ArrayXf weights = w.colwise().squaredNorm().transpose().array();
  const auto is_used =
      inputs > 0.0f && weights > 0.0f;  // a channel that is never read or never written keeps its scale
  Eigen::ArrayXf logarithms = is_used.select((inputs / weights).log() * 0.25f, 0.0f);
  logarithms -= logarithms.mean();
  return logarithms.exp();
}

void Rotator::smooth(const Role& role, RowMatrix& w) {
  if (options_.calibration == nullptr || role.channels == Channels::kNone) return;
  const Eigen::ArrayXf& scales = smoothing_scales(role.down);
  if (role.channels == Channels::kColumns) {
    w = w * scales.matrix().asDiagonal();
    return;
  }
  Eigen::Map<RowMatrix> rows(w.data(), scales.size(), w.size() / scales.size());  // a bias is a row of its own
  rows = scales.inverse().matrix().asDiagonal() * rows;
}

void Rotator::write_file_of(const fs::path& file, const std::vector<Target>& targets) {
  std::vector<TensorDeclaration> declarations;
  std::map<std::string_view, const Target*> by_name;
  for (const Target& target : targets) {
    const TensorEntry& entry = *files_.find(target.source)->entry;
    declarations.push_back({target.name, entry.stored, entry.shape});
    by_name[target.name] = &target;
  }
  SafetensorsWriter writer(file, std::move(declarations));
  for (const TensorDeclaration& tensor : writer.order()) {
    const Target& target = *by_name.at(tensor.name);
    RowMatrix values = rotated(target);
    smooth(target.role, values);
    const DType dtype = *tensor.stored->dtype;
    std::vector<std::byte> bytes(static_cast<std::size_t>(values.size() * size_bytes(dtype)));
    for (std::int64_t i = 0; i < values.size(); ++i) {
      store_f32(values.data()[i], bytes.data(), dtype, i);
      if (!std::isfinite(load_f32(bytes.data(), dtype, i))) {
        throw CheckpointError(escape(target.stored->file.string()) + ": tensor " + quote(target.source) +
                              " becomes too large for " + std::string(name(dtype)) + " at element " +
                              std::to_string(i) + " of the result");
      }
    }
    writer.write(tensor.name, bytes);
    ++done_;
    if (options_.progress) options_.progress(done_, total_, tensor.name);
  }
  writer.finish();
}

void Rotator::write(const fs::path& directory) {
  std::map<fs::path, std::vector<Target>> by_file;
  const StoredTensor* embedding = nullptr;
  for (const StoredTensor& stored : source_.tensors()) {
    if (stored.name == kHeadName && shares_embedding()) continue;  // nobody reads it
    by_file[stored.file].push_back({stored.name, stored.name, &stored, role_of(stored.name, source_.directory())});
    if (stored.name == kEmbeddingName) embedding = &stored;
    ++total_;
  }
  if (embedding == nullptr || !source_.has_tensor(kLastNormName)) {
    throw CheckpointError(escape(source_.directory().string()) + ": has no tensor " +
                          quote(embedding == nullptr ? kEmbeddingName : kLastNormName));
  }
  if (std::ranges::none_of(source_.tensors(), [&](const StoredTensor& stored) {
        return role_of(stored.name, source_.directory()).part == Part::kReader;
      })) {
    throw CheckpointError(escape(source_.directory().string()) + ": has no layer that reads the residual stream");
  }
  if (shares_embedding()) {
    by_file[embedding->file].push_back(
        {std::string(kHeadName), std::string(kEmbeddingName), embedding, {Part::kHead, std::string(kLastNormName)}});
    ++total_;
  }
  ShardIndex index;
  index.total_size = 0;
  std::size_t number = 0;
  for (const auto& [source, targets] : by_file) {
    const std::string name =
        by_file.size() == 1 ? std::string(kSingleFileName) : shard_file_name(++number, by_file.size());
    write_file_of(directory / name, targets);
    for (const Target& target : targets) {
      index.weight_map[target.name] = name;
      *index.total_size += target.stored->size_bytes;
    }
  }
  if (by_file.size() > 1) write_shard_index(directory / kIndexFileName, index);
  config_["tie_word_embeddings"] = false;
  write_file(directory / "config.json", config_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

void rotate(const fs::path& source, const fs::path& destination, const RotateOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(source);
  if (!checkpoint.quant_method().empty()) {
    throw Unsupported(escape(source.string()) + ": is quantized (" + checkpoint.quant_method() +
                      "), only a dense model can be rotated");
  }
  check_config_sizes(checkpoint);
  if (options.calibration != nullptr) options.calibration->check_model(checkpoint);
  AtomicDirectory directory(destination);
  copy_other_files(checkpoint, directory.path(), options.warn);
  Rotator(checkpoint, options).write(directory.path());
  directory.commit();
}

}  // namespace scaledmm
