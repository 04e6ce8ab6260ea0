#include "config.hpp"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "scaledmm/error.hpp"

namespace llama {
namespace {

// config.json, whose every complaint has the file, the key and the value. A member that is null is absent.
class Reader {
 public:
  explicit Reader(const scaledmm::Checkpoint& checkpoint)
      : file_((checkpoint.directory() / "config.json").string()),
        json_(nlohmann::json::parse(checkpoint.config_json(), nullptr, false)) {
    if (!json_.is_object()) refuse("is no JSON object");
  }

  [[noreturn]] void refuse(const std::string& reason) const { throw scaledmm::CheckpointError(file_ + ": " + reason); }

  // A whole number from 1 to `largest`.
  std::optional<std::int64_t> find_size(const char* key, std::int64_t largest) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const bool is_size = value->is_number_integer() && *value >= 1 && *value <= largest;
    if (!is_size) refuse_value(key, *value, "a whole number from 1 to " + std::to_string(largest));
    return value->get<std::int64_t>();
  }
  std::int64_t size(const char* key) const {
    constexpr std::int64_t kLargest = 1 << 24;
    const std::optional<std::int64_t> value = find_size(key, kLargest);
    if (!value) refuse(std::string(key) + " is missing");
    return *value;
  }

  // A number that a float holds, above 0, or 0 where `zero` says that it may be.
  std::optional<double> find_number(const char* key, bool zero) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->get<double>() : -1;
    const bool fits = number <= std::numeric_limits<float>::max() && (zero ? number >= 0 : number > 0);
    if (!fits) refuse_value(key, *value, zero ? "a finite number that is not negative" : "a finite number above 0");
    return number;
  }

  bool flag(const char* key) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse_value(key, *value, "true or false");
    return value->get<bool>();
  }

  // Nothing but this word, which an absent member may stand for.
  void expect(const char* key, const char* word, bool is_default) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr && !is_default) refuse(std::string(key) + " is missing");
    if (value != nullptr && *value != word) refuse_value(key, *value, std::string("\"") + word + "\"");
  }

  const nlohmann::json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

 private:
  [[noreturn]] void refuse_value(const char* key, const nlohmann::json& value, const std::string& expected) const {
    constexpr std::size_t kShown = 60;
    std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (text.size() > kShown) text = text.substr(0, kShown) + "...";
    refuse(std::string(key) + " is " + text + ", expected " + expected);
  }

  std::string file_;
  nlohmann::json json_;
};

}  // namespace

Config read_config(const scaledmm::Checkpoint& checkpoint) {
  constexpr std::int64_t kLargestHead = 1024;
  const Reader json(checkpoint);
  json.expect("model_type", "llama", false);
  json.expect("hidden_act", "silu", true);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (json.find(key) != nullptr) json.refuse(std::string(key) + " is not supported");
  }
  if (json.flag("attention_bias") || json.flag("mlp_bias")) json.refuse("biases are not supported");
  Config config;
  config.vocabulary = json.size("vocab_size");
  config.hidden = json.size("hidden_size");
  config.intermediate = json.size("intermediate_size");
  config.layers = json.size("num_hidden_layers");
  config.heads = json.size("num_attention_heads");
  config.max_positions = json.size("max_position_embeddings");
  config.kv_heads = json.find("num_key_value_heads") == nullptr ? config.heads : json.size("num_key_value_heads");
  config.rope_theta = json.find_number("rope_theta", false).value_or(config.rope_theta);
  const std::optional<double> eps = json.find_number("rms_norm_eps", true);
  if (!eps) json.refuse("rms_norm_eps is missing");
  config.rms_eps = static_cast<float>(*eps);
  config.tied_head = json.flag("tie_word_embeddings");

  const std::optional<std::int64_t> head_dim = json.find_size("head_dim", kLargestHead);
  if (!head_dim && config.hidden % config.heads != 0) {
    json.refuse("hidden_size " + std::to_string(config.hidden) + " is not a multiple of num_attention_heads " +
                std::to_string(config.heads));
  }
  config.head_dim = head_dim.value_or(config.hidden / config.heads);
  if (config.heads % config.kv_heads != 0) {
    json.refuse("num_attention_heads " + std::to_string(config.heads) + " is not a multiple of num_key_value_heads " +
                std::to_string(config.kv_heads));
  }
  // Attention works on 16 features of a head at a time.
  if (config.head_dim % 16 != 0 || config.head_dim > kLargestHead) {
    json.refuse("head_dim " + std::to_string(config.head_dim) + " is not a multiple of 16 up to " +
                std::to_string(kLargestHead));
  }
  return config;
}

}  // namespace llama
