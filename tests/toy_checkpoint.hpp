// Small checkpoint folders, made of tensors that are written down by their values.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "formats/safetensors_writer.hpp"
#include "formats/shard_index.hpp"
#include "formats/stored_dtype.hpp"
#include "numerics/formats.hpp"
#include "scratch_folder.hpp"

namespace scaledmm {

struct ToyTensor {
  std::string name;
  std::string dtype;  // the container's spelling
  Shape shape;
  std::vector<std::byte> bytes;
};

// One element of a container type. Byte types other than FP8 take the number as it is: U8 130 and F8_E8M0 130 are byte
// 130.
inline void append_element(std::vector<std::byte>& bytes, const std::string& dtype, double value) {
  const auto append = [&](auto raw) {
    std::byte copy[sizeof raw];
    std::memcpy(copy, &raw, sizeof raw);
    bytes.insert(bytes.end(), copy, copy + sizeof raw);
  };
  const auto f = static_cast<float>(value);
  if (dtype == "F32") return append(f);
  if (dtype == "F64") return append(value);
  if (dtype == "BF16") return append(f32_to_bf16(f));
  if (dtype == "F16") return append(f32_to_f16(f));
  if (dtype == "I32") return append(static_cast<std::int32_t>(value));
  if (dtype == "I8") return append(static_cast<std::int8_t>(value));
  if (dtype == "F8_E4M3") return append(f32_to_e4m3fn(f));
  if (dtype == "F8_E4M3FNUZ") return append(f32_to_e4m3fnuz(f));
  if (dtype == "F8_E5M2") return append(f32_to_e5m2(f));
  append(static_cast<std::uint8_t>(value));
}

// value(i) is element i in row-major order.
inline ToyTensor toy(std::string name, std::string dtype, Shape shape,
                     const std::function<double(std::int64_t)>& value) {
  ToyTensor tensor{std::move(name), std::move(dtype), shape, {}};
  for (std::int64_t i = 0; i < shape.elements(); ++i) append_element(tensor.bytes, tensor.dtype, value(i));
  return tensor;
}
// All elements alike: one is converted, the others are its copies.
inline ToyTensor toy(std::string name, std::string dtype, Shape shape, double value) {
  ToyTensor tensor{std::move(name), std::move(dtype), shape, {}};
  std::vector<std::byte> element;
  append_element(element, tensor.dtype, value);
  tensor.bytes.resize(static_cast<std::size_t>(shape.elements()) * element.size());
  for (std::size_t i = 0; i < tensor.bytes.size(); i += element.size()) {
    std::memcpy(tensor.bytes.data() + i, element.data(), element.size());
  }
  return tensor;
}

inline void write_toy_file(const std::filesystem::path& path, const std::vector<ToyTensor>& tensors) {
  std::vector<TensorDeclaration> declarations;
  for (const ToyTensor& tensor : tensors) {
    declarations.push_back({tensor.name, find_stored_dtype(tensor.dtype), tensor.shape, 0});
  }
  SafetensorsWriter writer(path, declarations);
  for (const TensorDeclaration& declaration : writer.order()) {
    for (const ToyTensor& tensor : tensors) {
      if (tensor.name == declaration.name) writer.write(tensor.name, tensor.bytes);
    }
  }
  writer.finish();
}

// A folder with config.json, written as one file or as shards: tensor i goes to shard i % shards, so that a weight and
// its scale lie apart.
inline void write_toy_checkpoint(const std::filesystem::path& folder, const std::string& config_json,
                                 const std::vector<ToyTensor>& tensors, std::size_t shards = 1) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config_json;
  if (shards == 1) return write_toy_file(folder / "model.safetensors", tensors);
  ShardIndex index;
  index.total_size = 0;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    std::vector<ToyTensor> part;
    for (std::size_t i = shard; i < tensors.size(); i += shards) {
      part.push_back(tensors[i]);
      index.weight_map[tensors[i].name] = shard_file_name(shard + 1, shards);
      *index.total_size += tensors[i].bytes.size();
    }
    write_toy_file(folder / shard_file_name(shard + 1, shards), part);
  }
  write_shard_index(folder / kIndexFileName, index);
}

}  // namespace scaledmm
