// convert(): a dense checkpoint becomes a quantized one. The files list scales before codes (safetensors puts wide
// types first), so every layer of a shard is quantized before its first code is written.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/atomic_file.hpp"
#include "formats/converted_weight.hpp"
#include "formats/decoder_config.hpp"
#include "formats/fused_groups.hpp"
#include "formats/layer_table.hpp"
#include "formats/other_files.hpp"
#include "formats/quote.hpp"
#include "formats/safetensors_writer.hpp"
#include "formats/shard_index.hpp"
#include "formats/target_matcher.hpp"
#include "numerics/formats.hpp"
#include "scaledmm/checkpoint.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

namespace fs = std::filesystem;

// Codes of a shard that stay in memory until they are written; layers past it are quantized a second time.
constexpr std::uint64_t kKeptCodeBytes = std::uint64_t{1} << 30;

// Routers decide between experts on small differences, the head and embeddings on rare tokens: they stay dense.
bool stays_dense(std::string_view layer) {
  static const std::set<std::string_view> kDense = {
      "lm_head", "embed_out", "output", "score",           "classifier", "embed_tokens", "embed_in",
      "wte",     "wpe",       "router", "word_embeddings", "gate",       "gate_wg",      "shared_expert_gate"};
  return kDense.contains(layer.substr(layer.rfind('.') + 1));
}

// A layer that is quantized.
struct Item {
  const LayerRecord* layer = nullptr;
  QuantizedWeight weight;  // bytes empty: not kept
  ConvertedLayer report;
  std::exception_ptr error;
};

// A file of the new checkpoint: source tensors that go into it, and the bytes they become.
struct Shard {
  std::vector<std::string> tensors;
  std::uint64_t bytes = 0;
};

class Converter {
 public:
  Converter(const Checkpoint& source, const ConvertOptions& options);

  // Writes the weight files and config.json.
  void write(const fs::path& directory);
  std::vector<ConvertedLayer> reports() const;

 private:
  void choose_layers();
  // Refuses tensors that would contradict the new config: scales that are there already, and weights of layers in types
  // that are not read. Of those that stay dense it takes note.
  void check_other_tensors(const std::set<std::string_view>& layer_weights,
                           const std::function<bool(std::string_view)>& is_left_dense);
  void plan_shards();
  void check_calibration(const LayerRecord& layer) const;
  ErrorCompensation compensation(const Item& item) const;
  // Codes, scales and the report of layers that read one calibrated input, or of any one layer. An error stays in the
  // item, and ends the work.
  void quantize(std::span<Item* const> items) const;
  std::vector<std::vector<Item*>> tasks_of(const Shard& shard);
  void quantize_shard(const Shard& shard);
  // Rethrows what quantize() threw, with the file and the tensor.
  [[noreturn]] void fail(const Item& item) const;
  void write_shard(const fs::path& file, const Shard& shard);
  std::vector<std::byte> scale_bytes(const QuantizedWeight& weight) const;
  DType scale_dtype() const { return options_.bf16_scales ? DType::kBF16 : DType::kF32; }
  std::string scale_name(const Item& item) const { return item.layer->name + "." + std::string(storage_.scale_name); }
  // nullptr for a tensor that is copied.
  Item* item_of(const std::string& tensor);

  const Checkpoint& source_;
  const ConvertOptions& options_;
  const ConvertedStorage storage_;
  WeightFiles files_;  // the source's bytes, of every container type
  std::vector<Item> items_;
  std::map<std::string, std::size_t> item_by_weight_;
  std::vector<std::string> dense_;
  std::vector<Shard> shards_;
  std::size_t done_ = 0;
  Context context_;
};

Converter::Converter(const Checkpoint& source, const ConvertOptions& options)
    : source_(source),
      options_(options),
      storage_(converted_storage(options.scheme)),
      files_(open_weight_files(source.directory())) {
  if (options.asymmetric_inputs && options.scheme != ConvertScheme::kInt8Channel) {
    throw InvalidArgument("asymmetric inputs are for INT8: FP8 has no zero point");
  }
  choose_layers();
  plan_shards();
}

void Converter::choose_layers() {
  TargetMatcher ignored;
  for (const std::string& entry : options_.ignore) {
    try {
      ignored.add(entry, "ignore list");
    } catch (const CheckpointError& error) {
      throw InvalidArgument(error.what());
    }
  }
  std::set<std::size_t> used;
  const auto is_left_dense = [&](std::string_view layer) {
    const std::vector<std::size_t> hits = ignored.find_all(layer);
    used.insert(hits.begin(), hits.end());
    return stays_dense(layer) || !hits.empty();
  };
  std::set<std::string_view> layers;
  for (const LayerRecord& layer : source_.layers()) {
    layers.insert(layer.weight);
    if (is_left_dense(layer.name) || layer.n == 0 || layer.k == 0) {
      dense_.push_back(layer.name);
      continue;
    }
    item_by_weight_[layer.weight] = items_.size();
    items_.emplace_back().layer = &layer;
    check_calibration(layer);
  }
  check_other_tensors(layers, is_left_dense);
  for (std::size_t i = 0; i < options_.ignore.size(); ++i) {
    if (!used.contains(i)) throw InvalidArgument("ignore entry " + quote(options_.ignore[i]) + " matches no layer");
  }
  if (items_.empty()) {
    throw Unsupported(escape(source_.directory().string()) + ": there is no dense linear layer to quantize");
  }
  if (options_.warn) {
    std::set<std::string, std::less<>> quantized;
    for (const Item& item : items_) quantized.insert(item.layer->name);
    for (const std::string& group : split_groups(quantized, dense_)) options_.warn(group);
  }
  // A head that shares the embedding has no tensor, but it is a module whose scales other programs would look for.
  if (std::find(dense_.begin(), dense_.end(), "lm_head") == dense_.end()) dense_.emplace_back("lm_head");
}

void Converter::check_other_tensors(const std::set<std::string_view>& layer_weights,
                                    const std::function<bool(std::string_view)>& is_left_dense) {
  for (const StoredTensor& tensor : source_.tensors()) {
    const std::size_t dot = tensor.name.rfind('.');
    if (dot == std::string::npos) continue;
    const std::string layer = tensor.name.substr(0, dot);
    if (is_scale_name(tensor.name) && item_of(layer + ".weight") != nullptr) {
      throw CheckpointError(escape(tensor.file.string()) + ": tensor " + quote(tensor.name) +
                            " is of a quantized layer, but the weight beside it is dense");
    }
    if (!is_linear_weight(tensor) || layer_weights.contains(tensor.name)) continue;
    if (is_left_dense(layer)) {
      dense_.push_back(layer);
      continue;
    }
    throw Unsupported(escape(tensor.file.string()) + ": tensor " + quote(tensor.name) + ": " + tensor.stored_dtype +
                      " is not supported, a layer that is quantized is BF16, F16 or F32");
  }
}

void Converter::plan_shards() {
  shards_.emplace_back();
  for (const StoredTensor& tensor : source_.tensors()) {
    const Item* item = item_of(tensor.name);
    const std::uint64_t bytes =
        item == nullptr ? tensor.size_bytes : static_cast<std::uint64_t>(item->layer->n * item->layer->k);
    Shard* shard = &shards_.back();
    if (!shard->tensors.empty() && shard->bytes + bytes > options_.shard_bytes) shard = &shards_.emplace_back();
    shard->tensors.push_back(tensor.name);
    shard->bytes += bytes;
  }
}

Item* Converter::item_of(const std::string& tensor) {
  const auto found = item_by_weight_.find(tensor);
  return found == item_by_weight_.end() ? nullptr : &items_[found->second];
}

void Converter::check_calibration(const LayerRecord& layer) const {
  if (options_.calibration == nullptr) return;
  const std::string_view input = options_.calibration->input_of(layer.name);
  if (input.empty()) throw InvalidArgument("the calibration has no input of layer " + quote(layer.name));
  if (const std::int64_t k = options_.calibration->size(input); k != layer.k) {
    throw InvalidArgument("the calibrated input of layer " + quote(layer.name) + " has K = " + std::to_string(k) +
                          ", its weight " + std::to_string(layer.k));
  }
}

ErrorCompensation Converter::compensation(const Item& item) const {
  const std::string_view input = options_.calibration->input_of(item.layer->name);
  try {
    return prepare_compensation(options_.calibration->gram(input), item.layer->k);
  } catch (const InvalidArgument& error) {
    throw CheckpointError("calibrated input " + quote(input) + ": " + error.what());
  }
}

void Converter::quantize(std::span<Item* const> items) const {
  std::optional<ErrorCompensation> inputs;
  for (Item* item : items) {
    try {
      if (options_.calibration != nullptr && !inputs) inputs = compensation(*item);
      const ConstTensorView w = source_.tensor(item->layer->weight);
      item->weight = convert_weight(w, storage_, options_.bf16_scales, inputs ? &*inputs : nullptr);
      item->report = compare_weight(item->layer->name, w, storage_, item->weight);
    } catch (...) {
      item->error = std::current_exception();
      return;
    }
  }
}

void Converter::fail(const Item& item) const {
  const std::vector<StoredTensor>& tensors = source_.tensors();
  const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                   [&](const StoredTensor& stored) { return stored.name == item.layer->weight; });
  try {
    std::rethrow_exception(item.error);
  } catch (const InvalidArgument& error) {
    throw CheckpointError(escape(tensor->file.string()) + ": tensor " + quote(tensor->name) + ": " + error.what());
  }
}

std::vector<std::vector<Item*>> Converter::tasks_of(const Shard& shard) {
  std::vector<std::vector<Item*>> tasks;
  std::map<std::string_view, std::size_t> by_input;
  for (const std::string& tensor : shard.tensors) {
    Item* item = item_of(tensor);
    if (item == nullptr) continue;
    const std::string_view input = options_.calibration == nullptr ? std::string_view(item->layer->name)
                                                                   : options_.calibration->input_of(item->layer->name);
    const auto [at, is_new] = by_input.try_emplace(input, tasks.size());
    if (is_new) tasks.emplace_back();
    tasks[at->second].push_back(item);
  }
  return tasks;
}

void Converter::quantize_shard(const Shard& shard) {
  const std::vector<std::vector<Item*>> tasks = tasks_of(shard);
  const std::size_t batch = static_cast<std::size_t>(context_.threads()) * 4;
  std::uint64_t kept = 0;
  for (std::size_t begin = 0; begin < tasks.size(); begin += batch) {
    const std::size_t end = std::min(tasks.size(), begin + batch);
    context_.parallel(static_cast<std::int64_t>(end - begin),
                      [&](std::int64_t task) { quantize(tasks[begin + static_cast<std::size_t>(task)]); });
    for (std::size_t i = begin; i < end; ++i) {
      for (Item* item : tasks[i]) {
        if (item->error != nullptr) fail(*item);
        if (kept + item->weight.bytes.size() > kKeptCodeBytes) std::vector<std::uint8_t>().swap(item->weight.bytes);
        kept += item->weight.bytes.size();
      }
      done_ += tasks[i].size();
    }
    if (options_.progress) options_.progress(done_, items_.size(), tasks[end - 1].back()->layer->name);
  }
}

std::vector<std::byte> Converter::scale_bytes(const QuantizedWeight& weight) const {
  std::vector<std::byte> bytes(weight.scales.size() * static_cast<std::size_t>(size_bytes(scale_dtype())));
  for (std::size_t i = 0; i < weight.scales.size(); ++i) {
    store_f32(weight.scales[i], bytes.data(), scale_dtype(), static_cast<std::int64_t>(i));
  }
  return bytes;
}

void Converter::write_shard(const fs::path& file, const Shard& shard) {
  quantize_shard(shard);
  std::vector<TensorDeclaration> declarations;
  std::map<std::string, const Item*> scales;
  for (const std::string& name : shard.tensors) {
    const Item* item = item_of(name);
    const TensorEntry& entry = *files_.find(name)->entry;
    declarations.push_back({name, item == nullptr ? entry.stored : &stored_dtype(storage_.dtype), entry.shape});
    if (item == nullptr) continue;
    scales[scale_name(*item)] = item;
    declarations.push_back(
        {scale_name(*item), &stored_dtype(scale_dtype()), converted_scale_shape(options_.scheme, item->weight)});
  }
  SafetensorsWriter writer(file, std::move(declarations));
  for (const TensorDeclaration& tensor : writer.order()) {
    if (const auto scale = scales.find(tensor.name); scale != scales.end()) {
      writer.write(tensor.name, scale_bytes(scale->second->weight));
    } else if (Item* item = item_of(tensor.name); item != nullptr) {
      if (item->weight.bytes.empty()) quantize(std::span(&item, 1));
      writer.write(tensor.name, std::as_bytes(std::span(item->weight.bytes)));
      std::vector<std::uint8_t>().swap(item->weight.bytes);
    } else {
      const TensorLocation& location = *files_.find(tensor.name);
      writer.write(tensor.name, files_.files[location.file].bytes(*location.entry));
    }
  }
  writer.finish();
}

void Converter::write(const fs::path& directory) {
  ShardIndex index;
  index.total_size = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const std::string name =
        shards_.size() == 1 ? std::string(kSingleFileName) : shard_file_name(i + 1, shards_.size());
    write_shard(directory / name, shards_[i]);
    for (const std::string& tensor : shards_[i].tensors) {
      index.weight_map[tensor] = name;
      const Item* item = item_of(tensor);
      if (item != nullptr) index.weight_map[scale_name(*item)] = name;
      if (item != nullptr) *index.total_size += scale_bytes(item->weight).size();
    }
    *index.total_size += shards_[i].bytes;
  }
  if (shards_.size() > 1) write_shard_index(directory / kIndexFileName, index);
  write_file(directory / "config.json", converted_config(source_.config_json(), options_, dense_));
}

std::vector<ConvertedLayer> Converter::reports() const {
  std::vector<ConvertedLayer> reports;
  for (const Item& item : items_) reports.push_back(item.report);
  return reports;
}

// What was written must read back as sound and as quantized as it was meant to be.
void check_result(const fs::path& directory, std::size_t layers) {
  const Checkpoint written = Checkpoint::open(directory);
  const std::vector<std::string> problems = written.verify();
  if (!problems.empty()) throw CheckpointError(problems.front());
  const auto is_quantized = [](const LayerRecord& layer) { return layer.quantized; };
  const auto found = std::count_if(written.layers().begin(), written.layers().end(), is_quantized);
  if (static_cast<std::size_t>(found) != layers) {
    throw CheckpointError(escape(directory.string()) + ": " + std::to_string(found) + " quantized layers read back, " +
                          std::to_string(layers) + " were written");
  }
}

}  // namespace

std::vector<ConvertedLayer> convert(const fs::path& source, const fs::path& destination,
                                    const ConvertOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(source);
  if (!checkpoint.quant_method().empty()) {
    throw Unsupported(escape(source.string()) + ": is quantized already (" + checkpoint.quant_method() + ")");
  }
  check_config_sizes(checkpoint);
  if (options.calibration != nullptr) options.calibration->check_model(checkpoint);
  Converter converter(checkpoint, options);
  AtomicDirectory directory(destination);
  copy_other_files(checkpoint, directory.path(), options.warn);
  converter.write(directory.path());
  std::vector<ConvertedLayer> reports = converter.reports();
  check_result(directory.path(), reports.size());
  directory.commit();
  return reports;
}

}  // namespace scaledmm
