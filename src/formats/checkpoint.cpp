#include "scaledmm/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <span>
#include <unordered_map>

#include "formats/config_node.hpp"
#include "formats/content_hash.hpp"
#include "formats/decoder_config.hpp"
#include "formats/json.hpp"
#include "formats/layer_table.hpp"
#include "formats/quant_config.hpp"
#include "formats/quote.hpp"
#include "formats/shard_index.hpp"
#include "formats/value_checks.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

std::optional<DType> torch_dtype(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16" || name == "half") return DType::kF16;
  if (name == "float32" || name == "float") return DType::kF32;
  return std::nullopt;
}

// dtype or torch_dtype of config.json or of its text_config; bf16 without one.
DType read_model_dtype(const Json& config_json, std::vector<std::string>& warnings) {
  const ConfigNode root(config_json, "config.json");
  const std::optional<ConfigNode> text_config = root.object("text_config");
  for (const ConfigNode* node : {&root, text_config ? &*text_config : nullptr}) {
    if (node == nullptr) continue;
    for (const char* key : {"dtype", "torch_dtype"}) {
      const std::optional<std::string> name = node->text(key);
      if (!name || name == "auto") continue;
      if (const std::optional<DType> dtype = torch_dtype(*name)) return *dtype;
      warnings.push_back(node->path_of(key) + ": " + quote(*name) + " is no activation type here: bf16 is taken");
      return DType::kBF16;
    }
  }
  return DType::kBF16;
}

// Edits that turn a into b.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string nearest_names(std::string_view name, const std::vector<LayerRecord>& layers) {
  constexpr std::size_t kShown = 3;
  constexpr std::size_t kLongestCompared = 256;
  std::vector<std::pair<std::size_t, std::string_view>> ranked;
  for (const LayerRecord& layer : layers) {
    const std::string_view known = layer.name;
    ranked.emplace_back(edit_distance(name.substr(0, kLongestCompared), known.substr(0, kLongestCompared)), known);
  }
  std::ranges::stable_sort(ranked, {}, [](const auto& item) { return item.first; });
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, ranked.size()); ++i) {
    text += (i == 0 ? "" : ", ") + quote(ranked[i].second);
  }
  return text.empty() ? "there are no layers" : "nearest: " + text;
}

}  // namespace

struct Checkpoint::Impl {
  std::filesystem::path directory;
  std::string config_json;
  QuantConfig quant;
  DType model_dtype = DType::kBF16;
  WeightFiles files;
  std::vector<StoredTensor> tensors;
  LayerTable table;
  std::unordered_map<std::string_view, std::size_t> layer_index;
};

Checkpoint::Checkpoint() : impl_(std::make_unique<Impl>()) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

Checkpoint Checkpoint::open(const std::filesystem::path& directory, const CheckpointOptions& options) {
  Checkpoint checkpoint;
  Impl& impl = *checkpoint.impl_;
  impl.directory = directory;
  impl.config_json = read_text_file(directory / "config.json");
  const Json config_json = parse_json(impl.config_json, escape((directory / "config.json").string()));
  impl.quant = read_quant_config(config_json, nullptr);
  const std::filesystem::path old_config = directory / "hf_quant_config.json";
  if (impl.quant.method.empty() && std::filesystem::exists(old_config)) {
    const Json hf_quant_config = read_json_file(old_config);
    impl.quant = read_quant_config(config_json, &hf_quant_config);
  }
  std::vector<std::string> warnings;
  impl.model_dtype = read_model_dtype(config_json, warnings);

  impl.files = open_weight_files(directory, {options.use_mmap, options.follow_symlinks});
  warnings.insert(warnings.end(), impl.files.warnings.begin(), impl.files.warnings.end());
  impl.tensors.reserve(impl.files.tensors.size());
  for (const auto& [name, location] : impl.files.tensors) {
    impl.tensors.push_back(impl.files.files[location.file].stored(*location.entry));
  }

  LayerTableOptions table_options;
  table_options.input_dtype = options.input_dtype.value_or(impl.model_dtype);
  table_options.out_dtype = options.out_dtype.value_or(table_options.input_dtype);
  table_options.lenient = options.lenient;
  table_options.same_values = [&](const StoredTensor& a, const StoredTensor& b) {
    for (const StoredTensor* tensor : {&a, &b}) {
      const std::optional<DType>& dtype = tensor->dtype;
      if (!dtype || !(is_float16_or_32(*dtype) || dtype == DType::kE8M0 || dtype == DType::kUInt8)) return false;
    }
    const ConstTensorView x = checkpoint.tensor(a.name);
    const ConstTensorView y = checkpoint.tensor(b.name);
    const std::int64_t elements = x.shape.elements();
    for (std::int64_t i = 0; i < elements; ++i) {
      if (scale_at(x, i) != scale_at(y, i)) return false;
    }
    return true;
  };
  impl.table = build_layer_table(impl.tensors, impl.quant, table_options);
  impl.table.warnings.insert(impl.table.warnings.begin(), warnings.begin(), warnings.end());
  for (std::size_t i = 0; i < impl.table.layers.size(); ++i) impl.layer_index[impl.table.layers[i].name] = i;
  return checkpoint;
}

const std::filesystem::path& Checkpoint::directory() const { return impl_->directory; }
const std::string& Checkpoint::config_json() const { return impl_->config_json; }
const std::string& Checkpoint::quant_method() const { return impl_->quant.method; }
DType Checkpoint::model_dtype() const { return impl_->model_dtype; }
const std::vector<StoredTensor>& Checkpoint::tensors() const { return impl_->tensors; }
const std::vector<LayerRecord>& Checkpoint::layers() const { return impl_->table.layers; }
const std::vector<std::string>& Checkpoint::warnings() const { return impl_->table.warnings; }

ConstTensorView Checkpoint::tensor(std::string_view name) const {
  const TensorLocation* location = impl_->files.find(name);
  if (location == nullptr) throw CheckpointError(escape(impl_->directory.string()) + ": no tensor " + quote(name));
  return impl_->files.files[location->file].view(*location->entry);
}

bool Checkpoint::has_tensor(std::string_view name) const { return impl_->files.find(name) != nullptr; }

std::string Checkpoint::fingerprint() const {
  constexpr std::size_t kSampleBytes = 4096;
  ContentHash hash;
  const auto add_text = [&](const std::string& text) {
    hash.update(std::as_bytes(std::span(text.c_str(), text.size() + 1)));
  };
  for (const auto& [name, location] : impl_->files.tensors) {
    const TensorEntry& entry = *location.entry;
    add_text(name);
    add_text(std::string(entry.stored->name));
    add_text(entry.shape.text());
    const std::span<const std::byte> bytes = impl_->files.files[location.file].bytes(entry);
    hash.update(bytes.first(std::min(kSampleBytes, bytes.size())));
    hash.update(bytes.last(std::min(kSampleBytes, bytes.size())));
  }
  return hash.digits();
}

const LayerRecord& Checkpoint::layer(std::string_view name) const {
  const auto found = impl_->layer_index.find(name);
  if (found != impl_->layer_index.end()) return impl_->table.layers[found->second];
  throw CheckpointError(escape(impl_->directory.string()) + ": no layer " + quote(name) + " (" +
                        nearest_names(name, impl_->table.layers) + ")");
}

LayerWeights Checkpoint::weights(const LayerRecord& record) const {
  LayerWeights weights;
  weights.weight = tensor(record.weight);
  if (!record.quantized) return weights;
  check_scale_values(*this, record, [](const std::string& problem) { throw CheckpointError(problem); });
  weights.weight_scale = scale_grid(*this, record).view;
  if (!record.input_scale.empty()) weights.input_scale = tensor(record.input_scale);
  if (!record.input_zero_point.empty()) weights.input_zero_point = tensor(record.input_zero_point);
  weights.input_scale_ub = record.input_scale_ub;
  weights.ue8m0_input_scales = record.ue8m0_input_scales;
  return weights;
}

std::vector<std::string> Checkpoint::verify(const LayerRecord& record) const {
  std::vector<std::string> problems;
  const Report report = [&](const std::string& problem) { problems.push_back(problem); };
  if (record.quantized) {
    check_scale_values(*this, record, report);
    check_weight_values(*this, record, report);
  } else {
    for (const std::string& name : {record.weight, record.bias}) {
      if (!name.empty()) check_finite(*this, *find_tensor(impl_->tensors, name), report);
    }
  }
  return problems;
}

std::vector<std::string> Checkpoint::verify(const std::function<void(std::size_t, std::size_t)>& progress) const {
  std::vector<std::string> problems;
  const Report report = [&](const std::string& problem) { problems.push_back(problem); };
  const std::vector<LayerRecord>& layers = impl_->table.layers;
  std::set<std::string_view> checked;  // tensors of layers
  bool is_quantized = false;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::vector<std::string> found = verify(layers[i]);
    problems.insert(problems.end(), found.begin(), found.end());
    checked.insert({layers[i].weight, layers[i].bias, layers[i].weight_scale, layers[i].input_scale});
    is_quantized = is_quantized || layers[i].quantized;
    if (progress) progress(i + 1, layers.size());
  }
  for (const StoredTensor& tensor : impl_->tensors) {
    if (!checked.contains(tensor.name)) check_finite(*this, tensor, report);
  }
  try {
    check_config_sizes(*this);
  } catch (const CheckpointError& error) {
    problems.emplace_back(error.what());
  }
  if (!impl_->quant.method.empty() && !is_quantized) {
    problems.push_back(escape((impl_->directory / "config.json").string()) + ": quant_method is " +
                       quote(impl_->quant.method) + ", but no layer is quantized");
  }
  return problems;
}

}  // namespace scaledmm
