#include "formats/decoder_config.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/config_node.hpp"
#include "formats/layer_table.hpp"
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

std::string_view part_of_layer(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return name;
  const std::size_t dot = name.find('.', kLayers.size());
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
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
  const Shapes shapes = read_shapes(ConfigNode(config, "config.json"));
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
}

}  // namespace scaledmm
