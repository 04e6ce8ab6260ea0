#include "config.hpp"

#include <nlohmann/json.hpp>

#include "scaledmm/error.hpp"

namespace llama {

Config read_config(const scaledmm::Checkpoint& checkpoint) {
  const std::string file = (checkpoint.directory() / "config.json").string();
  const auto refuse = [&](const std::string& reason) { throw scaledmm::CheckpointError(file + ": " + reason); };
  Config config;
  try {
    const nlohmann::json json = nlohmann::json::parse(checkpoint.config_json());
    const auto is_absent = [&](const char* key) { return !json.contains(key) || json.at(key).is_null(); };
    json.at("vocab_size").get_to(config.vocabulary);
    json.at("hidden_size").get_to(config.hidden);
    json.at("intermediate_size").get_to(config.intermediate);
    json.at("num_hidden_layers").get_to(config.layers);
    json.at("num_attention_heads").get_to(config.heads);
    json.at("max_position_embeddings").get_to(config.max_positions);
    json.at("rms_norm_eps").get_to(config.rms_eps);
    config.rope_theta = json.value("rope_theta", config.rope_theta);
    config.kv_heads = json.value("num_key_value_heads", config.heads);
    for (const std::int64_t size : {config.vocabulary, config.hidden, config.intermediate, config.layers, config.heads,
                                    config.kv_heads, config.max_positions}) {
      if (size < 1 || size > 1 << 24) refuse("a size of the model is " + std::to_string(size));
    }
    config.head_dim = is_absent("head_dim") ? config.hidden / config.heads : json.at("head_dim").get<std::int64_t>();
    if (config.head_dim < 1 || config.head_dim > 1024) refuse("head_dim is " + std::to_string(config.head_dim));

    if (json.value("model_type", "") != "llama") refuse("model_type is not llama");
    if (json.value("hidden_act", "silu") != "silu") refuse("hidden_act is not silu");
    if (!is_absent("rope_scaling")) refuse("rope_scaling is not supported");
    if (json.value("attention_bias", false) || json.value("mlp_bias", false)) refuse("biases are not supported");
    config.tied_head = json.value("tie_word_embeddings", false);
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  }
  if (config.heads % config.kv_heads != 0) refuse("num_attention_heads is not a multiple of num_key_value_heads");
  // Attention works on 16 features of a head at a time.
  if (config.head_dim % 16 != 0) refuse("head_dim " + std::to_string(config.head_dim) + " is not a multiple of 16");
  return config;
}

}  // namespace llama
