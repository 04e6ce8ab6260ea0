// Quantization configs of toy checkpoints, folders of them that are opened and refused, and a layer that is run.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "scaledmm/checkpoint.hpp"
#include "scaledmm/error.hpp"
#include "toy_checkpoint.hpp"

namespace scaledmm {

inline std::string with_config(const std::string& quantization_config, const std::string& dtype = "float32") {
  return R"({"model_type":"toy","torch_dtype":")" + dtype + R"(","quantization_config":)" + quantization_config + "}";
}

inline std::string compressed(const std::string& format, const std::string& weights, const std::string& input,
                              const std::string& ignore = "\"lm_head\"") {
  const std::string type = format == "int-quantized" ? "int" : "float";
  const auto arguments = [&](const std::string& rest) {
    return rest == "null" ? rest : R"({"num_bits":8,"type":")" + type + "\"," + rest + "}";
  };
  return with_config(R"({"quant_method":"compressed-tensors","format":")" + format + R"(","ignore":[)" + ignore +
                     R"(],"config_groups":{"group_0":{"targets":["Linear"],"weights":)" + arguments(weights) +
                     R"(,"input_activations":)" + arguments(input) + "}}}");
}

inline const std::string kTensor = R"("strategy":"tensor")";
inline const std::string kChannel = R"("strategy":"channel")";
inline const std::string kToken = R"("strategy":"token","dynamic":true)";
inline const std::string kBlock = R"("strategy":"block","block_structure":[128,128])";
inline const std::string kFp8Dynamic = with_config(R"({"quant_method":"fp8","activation_scheme":"dynamic"})");
inline const std::string kFp8Static = with_config(R"({"quant_method":"fp8","activation_scheme":"static"})");
inline const std::string kFp8Block =
    with_config(R"({"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128,128]})");

// y = x W^T for x all 1, f32.
inline std::vector<float> run_ones(const Linear& linear) {
  const WeightShape shape = weight_shape(linear.config());
  const std::vector<float> x(static_cast<std::size_t>(shape.k), 1.0f);
  std::vector<float> y(static_cast<std::size_t>(shape.n), -1.0f);
  Context context;
  linear.apply(ConstTensorView(x.data(), DType::kF32, {1, shape.k}), TensorView(y.data(), DType::kF32, {1, shape.n}),
               context);
  return y;
}

inline void expect_near_all(const std::vector<float>& y, std::size_t begin, std::size_t end, float value) {
  for (std::size_t i = begin; i < end; ++i) ASSERT_NEAR(y[i], value, std::abs(value) * 1e-5f) << "output " << i;
}

struct Toy {
  ScratchFolder folder;
  explicit Toy(const std::string& config, const std::vector<ToyTensor>& tensors) {
    write_toy_checkpoint(folder.path(), config, tensors);
  }
  Checkpoint open(bool lenient = false) const {
    CheckpointOptions options;
    options.lenient = lenient;
    return Checkpoint::open(folder.path(), options);
  }
  template <class E = CheckpointError>
  std::string refusal() const {
    return message_of<E>([&] { open(); });
  }
  std::string load_refusal() const {
    const Checkpoint checkpoint = open();
    return message_of<CheckpointError>([&] { Linear::load(checkpoint, "m"); });
  }
};

inline bool any_contains(const std::vector<std::string>& texts, std::string_view part) {
  return std::ranges::any_of(texts, [&](const std::string& text) { return contains(text, part); });
}

}  // namespace scaledmm
