// Packed weights of a checkpoint's layers in one file, so that a second start maps them instead of packing again.
// docs/packed-weights.md has the format, and what makes a file stale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scaledmm/checkpoint.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {

// A packed file that is sound, but was made from other files, by another version, or for another kernel or layout than
// is wanted now. The text names the field with both values. The remedy: write it again.
class StalePackedFile : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

// What shows that the checkpoint's files are those that were packed, beside their names, sizes and headers.
enum class SourceCheck : std::uint8_t {
  kTime,     // the times of their last change; no tensor is read
  kContent,  // a hash of all their bytes: everything is read; a copied checkpoint still fits
};

struct PackedFileOptions {
  SourceCheck source = SourceCheck::kTime;
  bool check_sections = false;  // read the packed weights too and compare their hashes: a damaged disk, a bad copy
};

// A layer in a packed file.
struct PackedLayer {
  std::string name;  // fused layers: their names, joined by '+'
  std::string kernel;
  std::string layout;            // LinearKernel::packed_layout()
  std::uint64_t size_bytes = 0;  // of its sections
};

// A packed file, mapped. It must not be truncated while it, or a Linear from it, lives.
class PackedFile {
 public:
  // Opens and checks the file and what it was made from.
  // Errors: CheckpointError for a broken file, StalePackedFile, IoError.
  static PackedFile open(const std::filesystem::path& file, const Checkpoint& checkpoint,
                         const PackedFileOptions& options = {});
  ~PackedFile();
  PackedFile(PackedFile&&) noexcept;
  PackedFile& operator=(PackedFile&&) noexcept;

  const std::filesystem::path& path() const;
  // The checkpoint that it was opened for.
  const std::filesystem::path& checkpoint_directory() const;
  // In the order of their names.
  const std::vector<PackedLayer>& layers() const;

  bool holds(std::string_view layer) const;

  // Gives `layer` its packed weights. False: the file does not hold a layer of that name.
  // Errors: StalePackedFile when it was packed for another kernel or layout, CheckpointError for sections that do not
  // fit the layer.
  bool adopt(Layer& layer, const LinearKernel& kernel) const;

 private:
  PackedFile();
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// What write_packed did.
struct PackedFileReport {
  std::vector<PackedLayer> layers;
  std::vector<std::string> left_out;  // "model.layers.0.mlp.up_proj: reference keeps no packed weights in files"
  std::uint64_t file_bytes = 0;
};

// Writes the packed weights of layers that were loaded from `checkpoint`, whose files must not have changed since. The
// file appears under its name when it is complete; one that is there is replaced.
// Errors: InvalidArgument for a layer that is not the checkpoint's or comes twice, IoError.
PackedFileReport write_packed(const std::filesystem::path& file, const Checkpoint& checkpoint,
                              std::span<const Linear* const> layers);

}  // namespace scaledmm
