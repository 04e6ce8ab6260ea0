// Writes one safetensors file as a stream: tensors are declared first, their bytes follow in the file's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/atomic_file.hpp"
#include "formats/stored_dtype.hpp"
#include "scaledmm/tensor.hpp"

namespace scaledmm {

struct TensorDeclaration {
  std::string name;
  const StoredDType* stored = nullptr;  // stored_dtype(DType::kE4M3FN), find_stored_dtype("I64"), a TensorEntry's
  Shape shape;
  std::uint64_t size_bytes = 0;  // filled in by the writer
};

// The file appears under its name when finish() returns, or not at all: a writer that is destroyed without finish()
// leaves nothing behind.
class SafetensorsWriter {
 public:
  // Writes the header. `metadata` is added to {"format":"pt"}. The first tensor begins at a multiple of `alignment`,
  // and so does every other whose predecessors' sizes are multiples. Errors: InvalidArgument for a name that occurs
  // twice, is "__metadata__", too long or not UTF-8, or a size out of range; IoError.
  SafetensorsWriter(const std::filesystem::path& destination, std::vector<TensorDeclaration> tensors,
                    const std::map<std::string, std::string>& metadata = {}, std::uint64_t alignment = 8);

  // The order in which bytes must come: widest types first, then by name.
  const std::vector<TensorDeclaration>& order() const { return order_; }
  // Bytes of all tensors.
  std::uint64_t data_bytes() const { return data_bytes_; }

  // The next bytes of the tensor `name`, the whole of it or a part.
  // Errors: InvalidArgument out of order or past the tensor's size; IoError that names the file, such as on a full
  // disk.
  void write(std::string_view name, std::span<const std::byte> data);
  // Errors: InvalidArgument while bytes are missing; IoError.
  void finish();

 private:
  // Moves past tensors that are complete.
  void skip_complete();

  AtomicFile file_;
  std::vector<TensorDeclaration> order_;
  std::uint64_t data_bytes_ = 0;
  std::size_t current_ = 0;    // in order_
  std::uint64_t written_ = 0;  // bytes of the current tensor
};

}  // namespace scaledmm
