#include "formats/layer_table.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "formats/fused_groups.hpp"
#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

constexpr std::array<std::string_view, 11> kEmbeddingNames = {
    "embed_tokens",    "wte",        "word_embeddings", "wpe",    "position_embeddings",     "token_type_embeddings",
    "embed_positions", "embeddings", "tok_embeddings",  "shared", "relative_attention_bias",
};
constexpr std::array<std::string_view, 3> kWeightScaleNames = {"weight_scale", "weight_scale_inv", "scale"};
constexpr std::array<std::string_view, 2> kInputScaleNames = {"input_scale", "activation_scale"};
// Suffixes that only quantized linear layers have; a tensor of them that no layer uses is worth a line.
constexpr std::array<std::string_view, 9> kScaleSuffixes = {
    "weight_scale",     "weight_scale_inv", "weight_scale_2", "weight_zero_point", "input_scale",
    "activation_scale", "input_zero_point", "input_scale_ub", "pre_quant_scale",
};
constexpr std::array<std::string_view, 7> kCacheSuffixes = {
    "k_scale", "v_scale", "q_scale", "output_scale", "k_zero_point", "v_zero_point", "q_zero_point"};

std::string_view last_segment(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

// "a.b" of "a.b.weight"; empty without a dot.
std::string_view parent(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

bool is_embedding(std::string_view module) {
  return std::ranges::find(kEmbeddingNames, last_segment(module)) != kEmbeddingNames.end();
}

bool is_quantized(const StoredTensor& tensor) {
  return tensor.dtype && (*tensor.dtype == DType::kInt8 || is_fp8(*tensor.dtype));
}
bool is_dense(const StoredTensor& tensor) { return tensor.dtype && is_float16_or_32(*tensor.dtype); }

std::int64_t blocks(std::int64_t extent, std::int64_t block) { return extent / block + (extent % block != 0 ? 1 : 0); }

[[noreturn]] void fail(const StoredTensor& tensor, const std::string& message) {
  throw CheckpointError(where(tensor) + message);
}

class TableBuilder {
 public:
  TableBuilder(const std::vector<StoredTensor>& tensors, const QuantConfig& config, const LayerTableOptions& options)
      : tensors_(tensors), config_(config), options_(options) {}

  LayerTable build() {
    table_.warnings = config_.warnings;
    for (const StoredTensor& tensor : tensors_) {
      const std::string_view suffix = last_segment(tensor.name);
      try {
        if (suffix == "weight_packed" || suffix == "weight_g_idx" || suffix == "qweight") {
          throw Unsupported(where(tensor) + " belongs to a packed format of fewer than 8 bits");
        }
        if (suffix == "weight" && suffix.size() != tensor.name.size()) add_module(tensor);
      } catch (const CheckpointError& error) {
        if (!options_.lenient) throw;
        leave_out(tensor, error);
      } catch (const Unsupported& error) {
        if (!options_.lenient) throw;
        leave_out(tensor, error);
      }
    }
    std::ranges::stable_sort(table_.layers, [](const auto& a, const auto& b) { return natural_less(a.name, b.name); });
    notice_unused_tensors();
    notice_unmatched_entries();
    notice_split_groups();
    return std::move(table_);
  }

 private:
  const StoredTensor* sibling(std::string_view module, std::string_view suffix) const {
    return find_tensor(tensors_, std::string(module).append(".").append(suffix));
  }

  void leave_out(const StoredTensor& tensor, const Error& error) {
    left_out_.insert(std::string(parent(tensor.name)));
    table_.warnings.push_back(std::string(error.what()) + "; the module is left out");
  }

  void add_module(const StoredTensor& weight) {
    const std::string_view module = parent(weight.name);
    if (!is_linear_weight(weight)) return;
    const ModuleScheme* scheme = config_.method.empty() ? nullptr : config_.scheme_of(module);
    LayerRecord record;
    record.name = module;
    record.weight = weight.name;
    record.n = weight.shape[0];
    record.k = weight.shape[1];
    if (is_quantized(weight)) {
      add_quantized(weight, scheme, std::move(record));
    } else if (is_dense(weight)) {
      add_dense(weight, scheme, std::move(record));
    } else if (scheme != nullptr) {
      fail(weight, " is " + weight.stored_dtype + ", but " + config_.source + " says that its module is quantized (" +
                       scheme->format + ")");
    }
  }

  void add_dense(const StoredTensor& weight, const ModuleScheme* scheme, LayerRecord record) {
    if (scheme != nullptr) {
      const StoredTensor* scale = nullptr;
      for (const std::string_view suffix : kWeightScaleNames) {
        if (scale == nullptr) scale = sibling(record.name, suffix);
      }
      if (!config_.stored_dtype_decides || scale != nullptr) {
        fail(weight, " is " + weight.stored_dtype + ", but " + config_.source + " says that its module is quantized (" +
                         scheme->format + ")" +
                         (scale == nullptr ? std::string() : ", and there is " + quote(scale->name)));
      }
      record.warnings.push_back("dense weight, although " + config_.source + " does not list the module as left out");
    }
    record.scheme = "dense";
    record.format = "dense";
    set_bias(record);
    use(record);
  }

  void add_quantized(const StoredTensor& weight, const ModuleScheme* scheme, LayerRecord record) {
    if (const StoredTensor* a = sibling(record.name, "a"); a != nullptr && a->shape.elements() == 1) {
      throw Unsupported(where(weight) +
                        ": int8 weights with a scalar \"a\" are an old SmoothQuant export, not W8A8 with "
                        "scales: quantize the dense model instead");
    }
    if (scheme == nullptr) {
      fail(weight, " is " + weight.stored_dtype +
                       (config_.method.empty() ? ", but there is no quantization config"
                                               : ", but " + config_.source + " leaves its module dense"));
    }
    if (scheme->int8 != (*weight.dtype == DType::kInt8)) {
      fail(weight, " is " + weight.stored_dtype + ", but " + config_.source + " promises " +
                       (scheme->int8 ? "int8" : "FP8") + " weights (" + scheme->format + ")");
    }
    if (*weight.dtype == DType::kE5M2) {
      if (!scheme->e4m3_member.empty()) fail(weight, " is F8_E5M2, but " + scheme->e4m3_member + " says e4m3");
      record.warnings.push_back("weight is F8_E5M2, a type that " + config_.source + " does not name");
    }
    if (record.n == 0 || record.k == 0) fail(weight, " is empty: " + weight.shape.text());
    record.quantized = true;
    record.format = scheme->format;
    record.input_scale_ub = scheme->input_scale_ub;
    record.ue8m0_input_scales = scheme->ue8m0 && scheme->activation == ModuleScheme::Activation::kDynamic;

    const StoredTensor* scale = one_of(record.name, kWeightScaleNames);
    if (scale == nullptr) {
      fail(weight,
           " is " + weight.stored_dtype + " and has no scale: " + quote(record.name + ".weight_scale") + " is missing");
    }
    record.weight_scale = scale->name;
    const ModuleScheme::Weight granularity = classify(weight, *scale, *scheme);
    if (const StoredTensor* zero = sibling(record.name, "weight_zero_point")) use(zero->name);
    set_activation_tensors(*scheme, record);
    set_bias(record);
    set_config(*scheme, granularity, *weight.dtype, record);
    use(record);
  }

  // The tensor under one of several names. Under two of them it must be the same.
  const StoredTensor* one_of(std::string_view module, std::span<const std::string_view> suffixes) {
    const StoredTensor* found = nullptr;
    for (const std::string_view suffix : suffixes) {
      const StoredTensor* tensor = sibling(module, suffix);
      if (tensor == nullptr) continue;
      use(tensor->name);
      if (found == nullptr) {
        found = tensor;
      } else if (found->shape.elements() != tensor->shape.elements() || !options_.same_values(*found, *tensor)) {
        fail(*tensor, " and " + quote(found->name) + " are both there and differ");
      }
    }
    return found;
  }

  // What the scale's shape is; refuses shapes that the scheme cannot have.
  static ModuleScheme::Weight classify(const StoredTensor& weight, const StoredTensor& scale,
                                       const ModuleScheme& scheme) {
    using Weight = ModuleScheme::Weight;
    const std::int64_t n = weight.shape[0];
    const std::int64_t k = weight.shape[1];
    const Shape& shape = scale.shape;
    const bool block = scheme.weight == Weight::kBlock;
    const bool powers = scale.dtype && (*scale.dtype == DType::kE8M0 || (block && *scale.dtype == DType::kUInt8));
    if (!powers && !is_dense(scale)) {
      fail(scale, " is " + scale.stored_dtype + ": scales are F32, BF16 or F16" +
                      (block ? ", or powers of two as F8_E8M0 or U8" : ""));
    }
    if (block) {
      const std::int64_t rows = blocks(n, scheme.block.row);
      const std::int64_t columns = blocks(k, scheme.block.col);
      if (shape == Shape{rows, columns} || shape == Shape{rows, 1, columns, 1}) return Weight::kBlock;
      refuse_shape(weight, scale, Shape{rows, columns}, rows * columns,
                   "a scale for each block " + scheme.block.text());
    }
    const bool one = shape.elements() == 1 && shape.rank() <= 2;
    if (scheme.weight != Weight::kChannel && one) return Weight::kTensor;
    if (scheme.weight != Weight::kTensor && (shape == Shape{n} || shape == Shape{n, 1} || shape == Shape{1, n})) {
      return Weight::kChannel;
    }
    if (scheme.weight == Weight::kTensor) refuse_shape(weight, scale, Shape{1}, 1, "one scale");
    refuse_shape(
        weight, scale, Shape{n, 1}, n,
        std::string(scheme.weight == Weight::kChannel ? "" : "one scale, or ") + "one for each output feature");
  }

  [[noreturn]] static void refuse_shape(const StoredTensor& weight, const StoredTensor& scale, const Shape& expected,
                                        std::int64_t elements, const std::string& why) {
    fail(scale, " has " + std::to_string(scale.shape.elements()) + " elements " + scale.shape.text() + ", expected " +
                    std::to_string(elements) + " " + expected.text() + ": " + why + " of the weight " +
                    weight.shape.text());
  }

  void check_single(const StoredTensor& tensor, bool type_fits, const char* types) const {
    if (tensor.shape.elements() != 1 || tensor.shape.rank() > 2) {
      fail(tensor, " has " + std::to_string(tensor.shape.elements()) + " elements " + tensor.shape.text() +
                       ", expected 1 [1]: static activations have one");
    }
    if (!type_fits) fail(tensor, " is " + tensor.stored_dtype + ", expected " + types);
  }

  void set_activation_tensors(const ModuleScheme& scheme, LayerRecord& record) {
    if (scheme.activation != ModuleScheme::Activation::kStatic) return;
    const StoredTensor* scale = one_of(record.name, kInputScaleNames);
    if (scale == nullptr) {
      throw CheckpointError(where(*find_tensor(tensors_, record.weight)) + ": activations are static (" +
                            config_.source + "), but " + quote(record.name + ".input_scale") + " is missing");
    }
    check_single(*scale, is_dense(*scale), "F32, BF16 or F16");
    record.input_scale = scale->name;
    const StoredTensor* zero = sibling(record.name, "input_zero_point");
    if (scheme.input_symmetric) {
      if (zero != nullptr) use(zero->name);  // must be 0: looked at with the values
      return;
    }
    if (zero == nullptr) {
      throw CheckpointError(where(*scale) + ": activations are asymmetric (" + config_.source + "), but " +
                            quote(record.name + ".input_zero_point") + " is missing");
    }
    check_single(*zero, zero->dtype == DType::kInt8 || zero->dtype == DType::kInt32, "I8 or I32");
    record.input_zero_point = zero->name;
  }

  void set_bias(LayerRecord& record) const {
    const StoredTensor* bias = sibling(record.name, "bias");
    if (bias == nullptr) return;
    if (bias->shape != Shape{record.n}) {
      fail(*bias, " is " + bias->shape.text() + ", expected " + Shape{record.n}.text());
    }
    if (!is_dense(*bias)) fail(*bias, " is " + bias->stored_dtype + ", expected F32, BF16 or F16");
    record.bias = bias->name;
  }

  void set_config(const ModuleScheme& scheme, ModuleScheme::Weight granularity, DType weight_dtype,
                  LayerRecord& record) const {
    using Weight = ModuleScheme::Weight;
    using Activation = ModuleScheme::Activation;
    const WeightShape shape{record.n, record.k};
    if (scheme.int8) {
      Int8ScaledMMLinearLayerConfig config;
      config.is_static_input_scheme = scheme.activation == Activation::kStatic;
      config.is_channelwise = granularity == Weight::kChannel;
      config.input_symmetric = scheme.input_symmetric;
      config.weight_shape = shape;
      config.input_dtype = options_.input_dtype;
      config.out_dtype = options_.out_dtype;
      if (granularity == Weight::kBlock) config.weight_block = scheme.block;
      record.config = config;
    } else {
      // Activations take the weights' FP8 type, except beside e5m2 weights.
      const DType x = weight_dtype == DType::kE4M3FNUZ ? DType::kE4M3FNUZ : DType::kE4M3FN;
      const auto weight_key = [&](GroupShape group) { return fp8_key(true, group, true, DType::kF32, weight_dtype); };
      const auto input_key = [&](bool is_static, GroupShape group) {
        return fp8_key(is_static, group, true, DType::kF32, x);
      };
      FP8ScaledMMLinearLayerConfig config;
      config.weight_quant_key = weight_key(granularity == Weight::kBlock    ? scheme.block
                                           : granularity == Weight::kTensor ? GroupShape::per_tensor()
                                                                            : GroupShape::per_channel());
      config.activation_quant_key.reset();
      if (scheme.activation == Activation::kStatic)
        config.activation_quant_key = input_key(true, GroupShape::per_tensor());
      if (scheme.activation == Activation::kDynamic) {
        config.activation_quant_key =
            input_key(false, granularity == Weight::kBlock ? GroupShape{1, scheme.block.col} : GroupShape::per_token());
      }
      config.weight_shape = shape;
      config.input_dtype = options_.input_dtype;
      config.out_dtype = options_.out_dtype;
      record.config = config;
    }
    record.scheme = scheme_name(record.config);
  }

  void use(const std::string& name) {
    if (!name.empty()) used_.insert(name);
  }
  void use(const LayerRecord& record) {
    for (const auto* name :
         {&record.weight, &record.weight_scale, &record.input_scale, &record.input_zero_point, &record.bias}) {
      use(*name);
    }
    if (record.quantized) quantized_.insert(record.name);
    table_.layers.push_back(record);
  }

  // Does a quantized layer have this name, or one that it begins with?
  bool is_under_quantized(std::string_view name) const {
    for (std::string_view module = parent(name); !module.empty(); module = parent(module)) {
      if (quantized_.contains(module)) return true;
    }
    return false;
  }

  const StoredTensor* scale_beside(const StoredTensor& tensor) const {
    for (const char* suffix : {"_scale", "_scale_inv"}) {
      if (const StoredTensor* scale = find_tensor(tensors_, tensor.name + suffix)) return scale;
    }
    return nullptr;
  }

  void notice_unused_tensors() {
    using Groups = std::map<std::string_view, std::pair<std::size_t, const StoredTensor*>>;  // suffix -> count, first
    Groups cache;
    Groups under;
    Groups others;
    const auto add = [](Groups& groups, std::string_view suffix, const StoredTensor& tensor) {
      auto& [count, first] = groups[suffix];
      if (count++ == 0) first = &tensor;
    };
    const auto text = [](const auto& entry) {
      return where(*entry.second) +
             (entry.first == 1 ? "" : " and others like it (" + std::to_string(entry.first) + " in all)");
    };
    for (const StoredTensor& tensor : tensors_) {
      const std::string_view suffix = last_segment(tensor.name);
      if (used_.contains(tensor.name) || left_out_.contains(std::string(parent(tensor.name)))) continue;
      if (std::ranges::find(kScaleSuffixes, suffix) != kScaleSuffixes.end()) {
        table_.warnings.push_back(where(tensor) + " is not used: no quantized layer takes it");
      } else if (std::ranges::find(kCacheSuffixes, suffix) != kCacheSuffixes.end()) {
        add(cache, suffix, tensor);
      } else if (is_under_quantized(tensor.name)) {
        add(under, suffix, tensor);
      } else if (is_quantized(tensor) || (tensor.shape.rank() >= 2 && scale_beside(tensor) != nullptr)) {
        add(others, suffix, tensor);
      }
    }
    for (const auto& [suffix, entry] : cache) {
      table_.warnings.push_back(text(entry) + ": an attention cache's, not used");
    }
    for (const auto& [suffix, entry] : under) {
      table_.warnings.push_back(text(entry) + ": not used, although the layer is quantized and may need it");
    }
    for (const auto& [suffix, entry] : others) {
      const StoredTensor& tensor = *entry.second;
      const StoredTensor* scale = scale_beside(tensor);
      table_.warnings.push_back(text(entry) + ": " + tensor.stored_dtype + " " + tensor.shape.text() +
                                (scale == nullptr ? "" : " with " + quote(scale->name)) +
                                " and no linear layer's: not used");
    }
  }

  // Entries that no module of any kind has are worth a line: a list written for other names loads well and is wrong.
  void notice_unmatched_entries() {
    std::vector<bool> ignored(config_.ignore.entries().size());
    std::vector<bool> targeted(config_.targets.entries().size());
    std::string_view last;
    for (const StoredTensor& tensor : tensors_) {
      const std::string_view module = parent(tensor.name);
      if (module.empty() || module == last) continue;
      last = module;
      for (const std::size_t i : config_.ignore.find_all(module)) ignored[i] = true;
      for (const std::size_t i : config_.targets.find_all(module)) targeted[i] = true;
    }
    for (std::size_t i = 0; i < ignored.size(); ++i) {
      const std::string& entry = config_.ignore.entries()[i];
      // Tied embeddings: the name is in the list, the tensor in no file.
      if (!ignored[i] && entry != "lm_head") {
        table_.warnings.push_back(config_.ignore_path + ": entry " + quote(entry) + " matches no module");
      }
    }
    for (std::size_t i = 0; i < targeted.size(); ++i) {
      if (targeted[i]) continue;
      table_.warnings.push_back(config_.source + ": target " + quote(config_.targets.entries()[i]) +
                                " matches no module (of class names only \"Linear\" is known)");
    }
  }

  void notice_split_groups() {
    std::set<std::string, std::less<>> quantized;
    std::vector<std::string> dense;
    for (const LayerRecord& layer : table_.layers) {
      if (layer.quantized) {
        quantized.insert(layer.name);
      } else {
        dense.push_back(layer.name);
      }
    }
    const std::vector<std::string> groups = split_groups(quantized, dense);
    table_.warnings.insert(table_.warnings.end(), groups.begin(), groups.end());
  }

  const std::vector<StoredTensor>& tensors_;
  const QuantConfig& config_;
  const LayerTableOptions& options_;
  LayerTable table_;
  std::set<std::string, std::less<>> used_;
  std::set<std::string, std::less<>> left_out_;
  std::set<std::string, std::less<>> quantized_;  // layers
};

}  // namespace

LayerTable build_layer_table(const std::vector<StoredTensor>& tensors, const QuantConfig& config,
                             const LayerTableOptions& options) {
  return TableBuilder(tensors, config, options).build();
}

bool natural_less(std::string_view a, std::string_view b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!digit(a[i]) || !digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    const auto take_number = [&](std::string_view text, std::size_t& at) {
      while (at + 1 < text.size() && text[at] == '0' && digit(text[at + 1])) ++at;
      const std::size_t begin = at;
      while (at < text.size() && digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view x = take_number(a, i);
    const std::string_view y = take_number(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  return a.size() - i < b.size() - j;
}

std::string where(const StoredTensor& tensor) {
  return escape(tensor.file.filename().string()) + ": tensor " + quote(tensor.name);
}

bool is_linear_weight(const StoredTensor& tensor) {
  return tensor.name.ends_with(".weight") && tensor.shape.rank() == 2 && !is_embedding(parent(tensor.name));
}

bool is_scale_name(std::string_view name) {
  const std::string_view suffix = last_segment(name);
  return std::ranges::find(kScaleSuffixes, suffix) != kScaleSuffixes.end() ||
         std::ranges::find(kWeightScaleNames, suffix) != kWeightScaleNames.end();
}

const StoredTensor* find_tensor(const std::vector<StoredTensor>& tensors, std::string_view name) {
  const auto at =
      std::ranges::lower_bound(tensors, name, {}, [](const StoredTensor& t) { return std::string_view(t.name); });
  return at != tensors.end() && at->name == name ? &*at : nullptr;
}

}  // namespace scaledmm
