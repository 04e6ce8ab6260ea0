#include "evaluation_cache.hpp"

#include <algorithm>
#include <fstream>
#include <utility>

#include "scaledmm/error.hpp"

namespace llama {

std::string fingerprint(const std::vector<std::filesystem::path>& folders) {
  std::vector<std::filesystem::path> files = {std::filesystem::read_symlink("/proc/self/exe")};
  for (const std::filesystem::path& folder : folders) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::filesystem::path& file = entry.path();
      if (file.extension() == ".safetensors" || file.filename() == "config.json") files.push_back(file);
    }
  }
  std::ranges::sort(files);
  std::string text;
  for (const std::filesystem::path& file : files) {
    text += file.filename().string() + " " + std::to_string(std::filesystem::file_size(file)) + " " +
            std::to_string(std::filesystem::last_write_time(file).time_since_epoch().count()) + "; ";
  }
  return text;
}

EvaluationCache::EvaluationCache(std::filesystem::path file) : file_(std::move(file)) {
  std::ifstream stream(file_);
  entries_ = nlohmann::json::parse(stream, nullptr, false);
  if (!entries_.is_object()) entries_ = nlohmann::json::object();
}

std::optional<Evaluation> EvaluationCache::find(const std::string& name, const std::string& key) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  try {
    if (found->at("key") != key) return std::nullopt;
    Evaluation evaluation;
    found->at("perplexity").get_to(evaluation.perplexity);
    found->at("window_mean_nll").get_to(evaluation.window_mean_nll);
    found->at("top1").get_to(evaluation.top1);
    return evaluation;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;  // damaged: as good as not there
  }
}

void EvaluationCache::store(const std::string& name, const std::string& key, const Evaluation& evaluation) {
  entries_[name] = {{"key", key},
                    {"perplexity", evaluation.perplexity},
                    {"window_mean_nll", evaluation.window_mean_nll},
                    {"top1", evaluation.top1}};
  std::ofstream stream(file_);
  stream << entries_.dump() << '\n';
  stream.close();
  if (!stream) throw scaledmm::IoError("cannot write " + file_.string());
}

}  // namespace llama
