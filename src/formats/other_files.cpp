#include "formats/other_files.hpp"

#include <algorithm>
#include <set>
#include <system_error>
#include <vector>

#include "formats/quote.hpp"
#include "formats/shard_index.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const char* what, const std::error_code& error) {
  throw IoError(escape(path.string()) + ": cannot be " + what + ": " + error.message());
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    paths.push_back(at->path());
  }
  if (error) fail(folder, "listed", error);
  std::ranges::sort(paths);
  return paths;
}

bool is_weights(const fs::path& file) {
  static const std::set<std::string> kContainers = {".safetensors", ".bin", ".pt",   ".pth",     ".ckpt",
                                                    ".gguf",        ".h5",  ".onnx", ".msgpack", ".tflite"};
  return file.filename().string().ends_with(".index.json") || kContainers.contains(file.extension().string());
}

class Copier {
 public:
  Copier(const Checkpoint& source, const fs::path& destination) : source_(source.directory()), root_(destination) {
    replaced_ = {source_ / "config.json", source_ / kIndexFileName};
    for (const StoredTensor& tensor : source.tensors()) replaced_.insert(source_ / tensor.file.filename());
  }

  void copy(const fs::path& folder, const fs::path& destination) {
    for (const fs::path& path : entries(folder)) {
      if (replaced_.contains(path)) continue;
      std::error_code error;
      const fs::file_status status = fs::status(path, error);
      if (!fs::exists(status))
        fail(path, "copied", error ? error : std::make_error_code(std::errc::no_such_file_or_directory));
      if (fs::is_directory(status)) {
        if (!fs::equivalent(path, root_, error)) copy_folder(path, destination / path.filename());
      } else if (is_weights(path) || !fs::is_regular_file(status)) {
        left_.push_back(path.lexically_relative(source_).string());
      } else {
        fs::copy_file(path, destination / path.filename(), error);
        if (error) fail(path, "copied", error);
      }
    }
  }

  const std::vector<std::string>& left() const { return left_; }

 private:
  void copy_folder(const fs::path& folder, const fs::path& destination) {
    std::error_code error;
    const bool is_left = folder.filename().string().starts_with('.') || fs::is_symlink(folder, error) ||
                         std::ranges::any_of(entries(folder), is_weights);
    if (is_left) {
      left_.push_back(folder.lexically_relative(source_).string() + "/");
      return;
    }
    fs::create_directory(destination, error);
    if (error) fail(destination, "made", error);
    copy(folder, destination);
  }

  fs::path source_;
  fs::path root_;  // of what is written; it may lie in the source
  std::set<fs::path> replaced_;
  std::vector<std::string> left_;
};

}  // namespace

void copy_other_files(const Checkpoint& source, const fs::path& destination,
                      const std::function<void(const std::string&)>& warn) {
  Copier copier(source, destination);
  copier.copy(source.directory(), destination);
  if (copier.left().empty() || !warn) return;
  constexpr std::size_t kShown = 10;
  std::string text = escape(source.directory().string()) + ": not copied: ";
  for (std::size_t i = 0; i < std::min(kShown, copier.left().size()); ++i) {
    text += (i == 0 ? "" : ", ") + escape(copier.left()[i]);
  }
  if (copier.left().size() > kShown) text += " and " + std::to_string(copier.left().size() - kShown) + " more";
  warn(text);
}

}  // namespace scaledmm
