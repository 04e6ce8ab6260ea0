// Reads one safetensors file: header checked when it opens, tensor bytes when they are asked for.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors_header.hpp"
#include "scaledmm/checkpoint.hpp"
#include "scaledmm/tensor.hpp"

namespace scaledmm {

// An open file. Views and spans stay valid as long as it lives (moving it keeps them).
// Mapped files must not be truncated while they are open: the system answers an access past the new end with SIGBUS.
// Open without use_mmap where that can happen: tensors are then read into memory, and a short read is an IoError.
class SafetensorsFile {
 public:
  // Errors: CheckpointError for a file that breaks the format, IoError for one that cannot be opened or mapped.
  static SafetensorsFile open(const std::filesystem::path& path, bool use_mmap = true);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::filesystem::path& path() const;
  const std::map<std::string, std::string>& metadata() const;
  // By name, ascending.
  const std::vector<TensorEntry>& tensors() const;
  // nullptr for an unknown name.
  const TensorEntry* find(std::string_view name) const;

  // The tensor's bytes, aligned for its elements: a tensor that the file places at an odd address is copied on first
  // use. `entry` must be one of tensors(). Errors: IoError when the file cannot be read.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;
  // The same as a tensor. Errors: CheckpointError for a type without a DType; IoError.
  ConstTensorView view(const TensorEntry& entry) const;
  // The entry as the public interface lists it.
  StoredTensor stored(const TensorEntry& entry) const;

 private:
  struct Impl;
  explicit SafetensorsFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaledmm
