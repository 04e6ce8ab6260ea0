// A dense checkpoint folder for tests of the converter, with layers of odd sizes.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors_writer.hpp"
#include "numerics/formats.hpp"
#include "scaledmm/scaledmm.hpp"

namespace scaledmm {

inline constexpr std::int64_t kHidden = 136;  // more than one block, and not a whole number of them
inline constexpr std::int64_t kInner = 200;

struct DenseTensor {
  Shape shape;
  std::vector<float> values;
  DType dtype = DType::kBF16;
};
using DenseModel = std::map<std::string, DenseTensor>;

// -63 to 63, without a pattern that rounding errors could follow.
inline float scattered(std::int64_t i) {
  const std::uint32_t h = static_cast<std::uint32_t>(i + 1) * 2654435761U;
  return static_cast<float>((h ^ h >> 15) % 127) - 63;
}

// Numbers between -1 and 1 of very different rows, which bf16 holds exactly.
inline DenseTensor matrix(std::int64_t n, std::int64_t k, DType dtype = DType::kBF16) {
  DenseTensor tensor{{n, k}, {}, dtype};
  for (std::int64_t i = 0; i < n * k; ++i) {
    tensor.values.push_back(scattered(i) * std::ldexp(1.0f, -6 - static_cast<int>(i / k % 5)));
  }
  return tensor;
}

inline DenseModel toy_model(DType dtype = DType::kBF16) {
  DenseModel model;
  for (const std::string layer : {"model.layers.0", "model.layers.1"}) {
    model[layer + ".mlp.up_proj.weight"] = matrix(kInner, kHidden, dtype);
    model[layer + ".mlp.down_proj.weight"] = matrix(kHidden, kInner, dtype);
    model[layer + ".mlp.gate.weight"] = matrix(4, kHidden, dtype);
    model[layer + ".input_layernorm.weight"] = {{kHidden}, std::vector<float>(kHidden, 1), dtype};
  }
  model["model.layers.0.mlp.up_proj.bias"] = {{kInner}, std::vector<float>(kInner, 0.5f), dtype};
  model["model.embed_tokens.weight"] = matrix(32, kHidden, dtype);
  model["lm_head.weight"] = matrix(32, kHidden, dtype);
  return model;
}

inline void write_model(const std::filesystem::path& directory, const DenseModel& model) {
  std::filesystem::create_directories(directory);
  std::vector<TensorDeclaration> declarations;
  for (const auto& [tensor_name, tensor] : model) {
    declarations.push_back({tensor_name, &stored_dtype(tensor.dtype), tensor.shape});
  }
  SafetensorsWriter writer(directory / "model.safetensors", declarations);
  for (const TensorDeclaration& declaration : writer.order()) {
    const DenseTensor& tensor = model.at(declaration.name);
    std::vector<std::byte> bytes(tensor.values.size() * static_cast<std::size_t>(size_bytes(tensor.dtype)));
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      store_f32(tensor.values[i], bytes.data(), tensor.dtype, static_cast<std::int64_t>(i));
    }
    writer.write(declaration.name, bytes);
  }
  writer.finish();
  std::ofstream(directory / "config.json") << R"({"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"})";
  std::ofstream(directory / "tokenizer.json") << "{}";
  std::ofstream(directory / "pytorch_model.bin") << "pickle";
}

}  // namespace scaledmm
