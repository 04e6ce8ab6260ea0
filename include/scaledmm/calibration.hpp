// What linear layers read, as the converter needs it: second moments of their inputs over a calibration text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scaledmm/linear.hpp"
#include "scaledmm/tensor.hpp"

namespace scaledmm {

class Checkpoint;

// For each input of a linear layer its Gram matrix G = sum of x^T x / rows, every row x scaled to a root mean square
// of 1, so that no single token fills the matrix. Layers that read the same input (q, k, v) share one.
class Calibration {
 public:
  // Adds rows of what `layers`, names as in the checkpoint ("model.layers.0.self_attn.q_proj"), read.
  // Shapes: x [rows, K] f32, packed. A row of zeros counts as nothing.
  // Errors: InvalidArgument for no layers, another dtype or shape, a K or a list of layers that differs from that of an
  // earlier call, or an x that is not finite.
  void add(const std::vector<std::string>& layers, ConstTensorView x, Context& context);

  // The model whose inputs these are, Checkpoint::fingerprint(); empty: not known, nothing is compared.
  void set_model(std::string fingerprint) { model_ = std::move(fingerprint); }
  const std::string& model() const { return model_; }
  // Errors: InvalidArgument for another model than that of set_model.
  void check_model(const Checkpoint& checkpoint) const;

  // One safetensors file: "<first layer>.gram" F32 [K, K]; in the metadata each further layer's first one, and the
  // model. Errors: IoError.
  void save(const std::filesystem::path& file) const;
  // Errors: IoError; CheckpointError for a file that is not such a file, with the tensor's name.
  static Calibration load(const std::filesystem::path& file);

  // Name of the input that a layer reads, equal for layers that share it; empty for an unknown layer.
  std::string_view input_of(std::string_view layer) const;
  // G of an input [K, K], row-major. Errors: InvalidArgument for an unknown input.
  std::vector<float> gram(std::string_view input) const;
  // K of an input. Errors: InvalidArgument for an unknown input.
  std::int64_t size(std::string_view input) const;

 private:
  struct Input {
    std::vector<std::string> layers;
    std::int64_t k = 0;
    std::int64_t rows = 0;
    std::vector<float> sum;  // [K, K], the lower triangle
  };

  const Input& input(std::string_view name) const;

  std::string model_;
  std::map<std::string, Input, std::less<>> inputs_;         // by the first layer's name
  std::map<std::string, std::string, std::less<>> readers_;  // layer -> input
};

}  // namespace scaledmm
