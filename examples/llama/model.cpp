#include "model.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "dense_tensor.hpp"
#include "scaledmm/error.hpp"
#include "vector_math.hpp"

namespace llama {
namespace {

constexpr std::int64_t kRowsOfTask = 8;

// fn(i) for every row.
template <class Fn>
void for_rows(std::int64_t m, scaledmm::Context& context, const Fn& fn) {
  context.parallel((m + kRowsOfTask - 1) / kRowsOfTask, [&](std::int64_t task) {
    for (std::int64_t i = task * kRowsOfTask; i < std::min(m, (task + 1) * kRowsOfTask); ++i) fn(i);
  });
}

// Adds the time from its birth to its death to a sum of seconds.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

Model::Model(const Config& config, std::span<const std::uint16_t> embedding, scaledmm::DenseLinear head,
             scaledmm::Context& context)
    : config_(config),
      context_(&context),
      embedding_(embedding.begin(), embedding.end()),
      head_(std::move(head)),
      attention_(config, config.max_positions) {}

Model Model::load(const std::filesystem::path& folder, DenseMath dense, scaledmm::Context& context,
                  scaledmm::Calibration* calibration, const scaledmm::Device& linears) {
  scaledmm::CheckpointOptions options;
  options.input_dtype = scaledmm::DType::kF32;
  const scaledmm::Checkpoint checkpoint = scaledmm::Checkpoint::open(folder, options);
  if (calibration != nullptr) calibration->set_model(checkpoint.fingerprint());
  const Config config = read_config(checkpoint);
  const auto load_linear = [&](const std::string& prefix, const std::vector<std::string>& names,
                               const std::vector<std::int64_t>& widths, std::int64_t k) {
    LinearParts parts{{}, widths, k};
    for (const std::string& name : names) parts.names.push_back(prefix + name);
    const auto is_quantized = [&](const std::string& name) { return checkpoint.layer(name).quantized; };
    std::unique_ptr<LinearOp> op = std::ranges::any_of(parts.names, is_quantized)
                                       ? load_quantized(checkpoint, parts, linears, context.threads())
                                   : dense == DenseMath::kF32 ? load_f32(checkpoint, parts)
                                                              : load_bf16(checkpoint, parts, context);
    return calibration == nullptr ? std::move(op) : observed(std::move(op), parts, *calibration);
  };

  const auto matrix = [&](const std::string& name) {
    return bf16_tensor(checkpoint, name, {config.vocabulary, config.hidden});
  };
  const auto embedding = matrix("model.embed_tokens.weight");
  const auto head = config.tied_head ? embedding : matrix("lm_head.weight");
  Model model(config, embedding,
              scaledmm::DenseLinear({head.data(), scaledmm::DType::kBF16, {config.vocabulary, config.hidden}}, context),
              context);
  model.last_norm_ = widened_tensor(checkpoint, "model.norm.weight", {config.hidden});
  const std::int64_t q = config.heads * config.head_dim;
  const std::int64_t kv = config.kv_heads * config.head_dim;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    Block block;
    block.attention_norm = widened_tensor(checkpoint, prefix + "input_layernorm.weight", {config.hidden});
    block.mlp_norm = widened_tensor(checkpoint, prefix + "post_attention_layernorm.weight", {config.hidden});
    block.qkv = load_linear(prefix + "self_attn.", {"q_proj", "k_proj", "v_proj"}, {q, kv, kv}, config.hidden);
    block.attention_out = load_linear(prefix + "self_attn.", {"o_proj"}, {config.hidden}, q);
    block.gate_up = load_linear(prefix + "mlp.", {"gate_proj", "up_proj"}, {config.intermediate, config.intermediate},
                                config.hidden);
    block.down = load_linear(prefix + "mlp.", {"down_proj"}, {config.hidden}, config.intermediate);
    model.blocks_.push_back(std::move(block));
  }
  return model;
}

std::string Model::kernels() const {
  std::vector<std::string> names;
  for (const Block& block : blocks_) {
    for (const LinearOp* op : {block.qkv.get(), block.attention_out.get(), block.gate_up.get(), block.down.get()}) {
      const std::string name = op->kernel();
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void Model::norm(const float* x, const std::vector<float>& weight, std::int64_t m, float* y) {
  const std::int64_t n = config_.hidden;
  for_rows(m, *context_, [&](std::int64_t i) { rms_norm(x + i * n, weight.data(), config_.rms_eps, n, y + i * n); });
}

void Model::apply(const LinearOp& op, const std::vector<float>& x, std::int64_t m, std::vector<float>& y) {
  const Stopwatch stopwatch(linear_seconds_);
  op.apply(x.data(), m, y.data(), *context_);
}

void Model::run_block(const Block& block, std::int64_t layer, std::int64_t m, KvCache& cache) {
  const std::int64_t hidden = config_.hidden;
  const std::int64_t mlp = config_.intermediate;
  const auto add_to_residual = [&] {
    for_rows(m, *context_,
             [&](std::int64_t i) { add(residual_.data() + i * hidden, normed_.data() + i * hidden, hidden); });
  };
  norm(residual_.data(), block.attention_norm, m, normed_.data());
  apply(*block.qkv, normed_, m, wide_);
  attention_.apply(layer, wide_.data(), m, cache, narrow_.data(), *context_);
  apply(*block.attention_out, narrow_, m, normed_);
  add_to_residual();

  norm(residual_.data(), block.mlp_norm, m, normed_.data());
  apply(*block.gate_up, normed_, m, wide_);
  for_rows(m, *context_, [&](std::int64_t i) {
    const float* gate = wide_.data() + i * 2 * mlp;
    silu_multiply(gate, gate + mlp, mlp, narrow_.data() + i * mlp);
  });
  apply(*block.down, narrow_, m, normed_);
  add_to_residual();
}

const float* Model::forward(std::span<const std::int32_t> tokens, KvCache& cache) {
  const auto m = static_cast<std::int64_t>(tokens.size());
  const std::int64_t limit = std::min(cache.capacity(), config_.max_positions);
  if (cache.length() + m > limit) {
    throw scaledmm::InvalidArgument("position " + std::to_string(cache.length() + m) + " is past the cache's " +
                                    std::to_string(limit));
  }
  const std::int64_t q = config_.heads * config_.head_dim;
  const std::int64_t qkv = q + 2 * config_.kv_heads * config_.head_dim;
  residual_.resize(static_cast<std::size_t>(m * config_.hidden));
  normed_.resize(residual_.size());
  wide_.resize(static_cast<std::size_t>(m * std::max(qkv, 2 * config_.intermediate)));
  narrow_.resize(static_cast<std::size_t>(m * std::max(q, config_.intermediate)));
  for (std::int64_t i = 0; i < m; ++i) {
    const std::int32_t token = tokens[static_cast<std::size_t>(i)];
    if (token < 0 || token >= config_.vocabulary) {
      throw scaledmm::InvalidArgument("token " + std::to_string(token) + " is outside the vocabulary of " +
                                      std::to_string(config_.vocabulary));
    }
    widen(embedding_.data() + token * config_.hidden, config_.hidden, residual_.data() + i * config_.hidden);
  }
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    run_block(blocks_[layer], static_cast<std::int64_t>(layer), m, cache);
  }
  cache.length_ += m;
  norm(residual_.data(), last_norm_, m, normed_.data());
  return normed_.data();
}

void Model::head(const float* hidden, std::int64_t m, float* logits) {
  const Stopwatch stopwatch(linear_seconds_);
  head_.apply({hidden, scaledmm::DType::kF32, {m, config_.hidden}}, {},
              {logits, scaledmm::DType::kF32, {m, config_.vocabulary}}, *context_);
}

const std::vector<float>& Model::next_logits(std::span<const std::int32_t> tokens, KvCache& cache) {
  if (tokens.empty()) throw scaledmm::InvalidArgument("there are no tokens to continue");
  const float* hidden = forward(tokens, cache);
  logits_.resize(static_cast<std::size_t>(config_.vocabulary));
  head(hidden + (static_cast<std::int64_t>(tokens.size()) - 1) * config_.hidden, 1, logits_.data());
  return logits_;
}

}  // namespace llama
