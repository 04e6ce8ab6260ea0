#include "formats/decoder_config.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "formats/config_node.hpp"
#include "formats/layer_table.hpp"
#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

// A size as config.json gives it; nothing where it does not.
struct Extent {
  std::string name;
  std::optional<std::int64_t> size;
};

Extent read_size(const ConfigNode& config, const char* key) {
  const std::optional<std::int64_t> size = config.integer(key);
  if (size && *size < 1) config.fail(std::string(key) + " = " + std::to_string(*size) + " is no size");
  return {key, size};
}

Extent product(const Extent& a, const Extent& b) {
  Extent result{a.name + " * " + b.name, std::nullopt};
  if (!a.size || !b.size) return result;
  std::int64_t size = 0;
  if (!__builtin_mul_overflow(*a.size, *b.size, &size)) result.size = size;
  return result;
}

// Shapes by the end of the name, behind "model.layers.N." for those of a layer.
using Shapes = std::map<std::string, std::vector<Extent>, std::less<>>;

Shapes read_shapes(const ConfigNode& config) {
  const Extent hidden = read_size(config, "hidden_size"), inner = read_size(config, "intermediate_size");
  const Extent heads = read_size(config, "num_attention_heads"), words = read_size(config, "vocab_size");
  Extent groups = read_size(config, "num_key_value_heads"), head = read_size(config, "head_dim");
  if (!groups.size) groups = heads;
  if (!head.size && hidden.size && heads.size) head = {"hidden_size / num_attention_heads", *hidden.size / *heads.size};
  const Extent queries = product(heads, head), keys = product(groups, head);
  return {{"model.embed_tokens.weight", {words, hidden}},
          {"model.norm.weight", {hidden}},
          {"lm_head.weight", {words, hidden}},
          {"input_layernorm.weight", {hidden}},
          {"post_attention_layernorm.weight", {hidden}},
          {"self_attn.q_proj.weight", {queries, hidden}},
          {"self_attn.k_proj.weight", {keys, hidden}},
          {"self_attn.v_proj.weight", {keys, hidden}},
          {"self_attn.o_proj.weight", {hidden, queries}},
          {"self_attn.q_norm.weight", {head}},
          {"self_attn.k_norm.weight", {head}},
          {"mlp.gate_proj.weight", {inner, hidden}},
          {"mlp.up_proj.weight", {inner, hidden}},
          {"mlp.down_proj.weight", {hidden, inner}}};
}

constexpr std::string_view kLayers = "model.layers.";

std::string_view part_of_layer(std::string_view name) {
  if (!name.starts_with(kLayers)) return name;
  const std::size_t dot = name.find('.', kLayers.size());
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

// 12 of "model.layers.12.mlp.up_proj.weight".
std::optional<std::int64_t> layer_number(std::string_view name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  std::int64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kLayers.size(), end, number);
  if (error != std::errc() || number < 0 || at == end || *at != '.') return std::nullopt;
  return number;
}

bool has_own_head(const ConfigNode& config) {
  if (config.boolean("tie_word_embeddings").value_or(false)) return false;
  const std::vector<std::string> classes = config.texts("architectures");
  return std::ranges::any_of(classes, [](const std::string& name) { return name.ends_with("ForCausalLM"); });
}

// Layers 0 to num_hidden_layers - 1, no other, in each what any of them has, and what stands before and behind them: a
// decoder with a layer or a tensor too few runs in no engine, and one with a layer too many computes something else
// than was trained.
void check_layers(const Checkpoint& checkpoint, const ConfigNode& config, const Shapes& shapes) {
  const std::optional<std::int64_t> count = read_size(config, "num_hidden_layers").size;
  if (!count) return;
  std::set<std::string_view> parts;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const std::optional<std::int64_t> number = layer_number(tensor.name);
    if (!number) continue;
    if (*number >= *count) {
      throw CheckpointError(where(tensor) + " is of layer " + std::to_string(*number) +
                            ", but num_hidden_layers in config.json is " + std::to_string(*count));
    }
    if (shapes.contains(part_of_layer(tensor.name))) parts.insert(part_of_layer(tensor.name));
  }
  if (parts.empty()) return;  // its layers have other names
  for (std::int64_t layer = 0; layer < *count; ++layer) {
    for (const std::string_view part : parts) {
      const std::string name = std::string(kLayers) + std::to_string(layer) + "." + std::string(part);
      if (checkpoint.has_tensor(name)) continue;
      config.fail("num_hidden_layers is " + std::to_string(*count) + ", but there is no tensor " + quote(name));
    }
  }
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"}) {
    if (!checkpoint.has_tensor(name)) config.fail("the model is a decoder, but there is no tensor " + quote(name));
  }
  if (has_own_head(config) && !checkpoint.has_tensor("lm_head.weight")) {
    config.fail("tie_word_embeddings is not true, but there is no tensor " + quote("lm_head.weight"));
  }
}

}  // namespace

bool is_plain_decoder(const Json& config) {
  static const std::set<std::string> kTypes = {"llama", "mistral", "qwen2", "qwen3"};
  const Json* type = find_member(config, "model_type");
  return type != nullptr && type->is_string() && kTypes.contains(type->get<std::string>());
}

void check_config_sizes(const Checkpoint& checkpoint) {
  const Json config = parse_json(checkpoint.config_json(), "config.json");
  if (!is_plain_decoder(config)) return;
  const ConfigNode node(config, "config.json");
  const Shapes shapes = read_shapes(node);
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const auto known = shapes.find(part_of_layer(tensor.name));
    if (known == shapes.end()) continue;
    const std::vector<Extent>& expected = known->second;
    if (tensor.shape.rank() != expected.size()) {
      throw CheckpointError(where(tensor) + " is " + tensor.shape.text() + ", must have " +
                            std::to_string(expected.size()) + (expected.size() == 1 ? " dimension" : " dimensions"));
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (!expected[i].size || *expected[i].size == tensor.shape[i]) continue;
      throw CheckpointError(where(tensor) + " is " + tensor.shape.text() + ", but " + expected[i].name +
                            " in config.json is " + std::to_string(*expected[i].size));
    }
  }
  check_layers(checkpoint, node, shapes);
}

}  // namespace scaledmm
