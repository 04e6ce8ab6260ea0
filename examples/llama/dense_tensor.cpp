#include "dense_tensor.hpp"

#include "scaledmm/error.hpp"
#include "vector_math.hpp"

namespace llama {

std::span<const std::uint16_t> bf16_tensor(const scaledmm::Checkpoint& checkpoint, const std::string& name,
                                           const scaledmm::Shape& shape) {
  const scaledmm::ConstTensorView tensor = checkpoint.tensor(name);
  if (tensor.dtype != scaledmm::DType::kBF16 || !(tensor.shape == shape)) {
    throw scaledmm::CheckpointError(checkpoint.directory().string() + ": " + name + " is " +
                                    std::string(scaledmm::name(tensor.dtype)) + " " + tensor.shape.text() +
                                    ", the decoder needs bf16 " + shape.text());
  }
  return {static_cast<const std::uint16_t*>(tensor.data), static_cast<std::size_t>(shape.elements())};
}

std::vector<float> widened_tensor(const scaledmm::Checkpoint& checkpoint, const std::string& name,
                                  const scaledmm::Shape& shape) {
  const std::span<const std::uint16_t> values = bf16_tensor(checkpoint, name, shape);
  std::vector<float> out(values.size());
  widen(values.data(), static_cast<std::int64_t>(values.size()), out.data());
  return out;
}

}  // namespace llama
