// The decoder: embedding, layers of attention and SwiGLU, and the head, which may share the embedding.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention.hpp"
#include "config.hpp"
#include "linear_op.hpp"
#include "scaledmm/checkpoint.hpp"
#include "scaledmm/dense.hpp"

namespace llama {

class Model {
 public:
  // A folder written by prepare_model.py or `scaledmm convert`. `dense` says how layers without quantization
  // run. With `calibration`, which must outlive the model, every call adds what the linear layers read. `linears` is
  // where the linear layers of a quantized checkpoint run; all else runs on the CPU.
  // Errors: those of scaledmm::Checkpoint and scaledmm::Linear.
  static Model load(const std::filesystem::path& folder, DenseMath dense, scaledmm::Context& context,
                    scaledmm::Calibration* calibration = nullptr,
                    const scaledmm::Device& linears = scaledmm::this_cpu());

  const Config& config() const { return config_; }
  // What runs the linear layers, each once: "int8_w8a8_avx2".
  std::string kernels() const;

  // Runs `tokens` after the ones in the cache. Returns their hidden states after the last norm, [m, hidden], valid
  // until the next call. Errors: scaledmm::InvalidArgument for a token outside the vocabulary and for a full cache.
  const float* forward(std::span<const std::int32_t> tokens, KvCache& cache);
  // logits [m, vocabulary] of hidden states [m, hidden].
  void head(const float* hidden, std::int64_t m, float* logits);
  // logits [vocabulary] of the last of `tokens`.
  const std::vector<float>& next_logits(std::span<const std::int32_t> tokens, KvCache& cache);
  // Seconds that calls spent in linear layers so far, the head with them.
  double linear_seconds() const { return linear_seconds_; }

 private:
  struct Block {
    std::vector<float> attention_norm;
    std::vector<float> mlp_norm;
    std::unique_ptr<LinearOp> qkv;
    std::unique_ptr<LinearOp> attention_out;
    std::unique_ptr<LinearOp> gate_up;
    std::unique_ptr<LinearOp> down;
  };

  Model(const Config& config, std::span<const std::uint16_t> embedding, scaledmm::DenseLinear head,
        scaledmm::Context& context);
  void run_block(const Block& block, std::int64_t layer, std::int64_t m, KvCache& cache);
  void norm(const float* x, const std::vector<float>& weight, std::int64_t m, float* y);
  void apply(const LinearOp& op, const std::vector<float>& x, std::int64_t m, std::vector<float>& y);

  Config config_;
  scaledmm::Context* context_;
  std::vector<std::uint16_t> embedding_;  // [vocabulary, hidden] bf16
  scaledmm::DenseLinear head_;
  Attention attention_;
  std::vector<Block> blocks_;
  std::vector<float> last_norm_;
  // Activations: the residual stream [m, hidden]; what a linear layer reads, and what it writes.
  std::vector<float> residual_;
  std::vector<float> normed_;
  std::vector<float> wide_;
  std::vector<float> narrow_;
  std::vector<float> logits_;
  double linear_seconds_ = 0;
};

}  // namespace llama
