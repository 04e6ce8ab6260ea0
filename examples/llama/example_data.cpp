#include "example_data.hpp"

#include <algorithm>

#include "scaledmm/error.hpp"

namespace llama {

ExampleData ExampleData::open(const std::filesystem::path& folder) {
  ExampleData data(scaledmm::Checkpoint::open(folder));
  data.offsets_ = data.integers("offsets");
  const scaledmm::ConstTensorView bytes = data.checkpoint_.tensor("bytes");
  const auto size = bytes.shape.elements();
  const bool is_sound = bytes.dtype == scaledmm::DType::kUInt8 && !data.offsets_.empty() &&
                        data.offsets_.front() >= 0 && std::ranges::is_sorted(data.offsets_) &&
                        data.offsets_.back() <= size;
  if (!is_sound) throw scaledmm::CheckpointError(folder.string() + ": offsets do not fit the vocabulary's bytes");
  data.bytes_ = static_cast<const char*>(bytes.data);
  return data;
}

std::span<const std::int32_t> ExampleData::integers(const std::string& name) const {
  const scaledmm::ConstTensorView tensor = checkpoint_.tensor(name);
  if (tensor.dtype != scaledmm::DType::kInt32 || tensor.shape.rank() != 1) {
    throw scaledmm::CheckpointError(checkpoint_.directory().string() + ": " + name + " is not a list of int32");
  }
  return {static_cast<const std::int32_t*>(tensor.data), static_cast<std::size_t>(tensor.shape[0])};
}

bool ExampleData::ends_generation(std::int32_t token) const {
  return std::ranges::find(integers("eos"), token) != integers("eos").end();
}

std::string_view ExampleData::spelling(std::int32_t token) const {
  if (token < 0 || static_cast<std::size_t>(token) + 1 >= offsets_.size()) return {};
  const auto i = static_cast<std::size_t>(token);
  return {bytes_ + offsets_[i], static_cast<std::size_t>(offsets_[i + 1] - offsets_[i])};
}

std::string ExampleData::spelling(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += spelling(token);
  return text;
}

}  // namespace llama
