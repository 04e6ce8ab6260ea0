// The folder that prepare_model.py writes beside the models: text to judge by, prompts, and the spelling of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scaledmm/checkpoint.hpp"

namespace llama {

class ExampleData {
 public:
  // Errors: those of scaledmm::Checkpoint; CheckpointError for tensors of another type or an offset past the bytes.
  static ExampleData open(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return checkpoint_.directory(); }
  std::span<const std::int32_t> text() const { return integers("tokens"); }
  // Another text, to calibrate with.
  std::span<const std::int32_t> calibration() const { return integers("calibration"); }
  // "chat", "capital". Errors: CheckpointError for an unknown name.
  std::span<const std::int32_t> prompt(const std::string& name) const { return integers("prompt." + name); }
  bool ends_generation(std::int32_t token) const;
  // May be a part of a UTF-8 character. Empty for a token that the vocabulary does not have.
  std::string_view spelling(std::int32_t token) const;
  std::string spelling(std::span<const std::int32_t> tokens) const;

 private:
  explicit ExampleData(scaledmm::Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  std::span<const std::int32_t> integers(const std::string& name) const;

  scaledmm::Checkpoint checkpoint_;
  std::span<const std::int32_t> offsets_;
  const char* bytes_ = nullptr;
};

}  // namespace llama
