// Evaluations of earlier runs: the same program on the same files gives the same numbers, and computing them takes a
// minute.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluation.hpp"

namespace llama {

// Name, size and time of change of this program and of every weight file and config.json in the folders.
std::string fingerprint(const std::vector<std::filesystem::path>& folders);

class EvaluationCache {
 public:
  // A file that does not exist or cannot be read as JSON is an empty cache.
  explicit EvaluationCache(std::filesystem::path file);
  // What was stored under the name, when its key was the same.
  std::optional<Evaluation> find(const std::string& name, const std::string& key) const;
  // Replaces what the name had, and writes the file. Errors: scaledmm::IoError.
  void store(const std::string& name, const std::string& key, const Evaluation& evaluation);

 private:
  std::filesystem::path file_;
  nlohmann::json entries_;
};

}  // namespace llama
