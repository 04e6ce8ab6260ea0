#include "formats/other_files.hpp"

#include <set>
#include <string>
#include <system_error>

#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

namespace fs = std::filesystem;

// What is written anew, and weights in whatever container.
bool is_left_behind(const fs::path& file) {
  static const std::set<std::string> kWeights = {".safetensors", ".bin", ".pt",   ".pth",     ".ckpt",
                                                 ".gguf",        ".h5",  ".onnx", ".msgpack", ".tflite"};
  const std::string name = file.filename().string();
  return name == "config.json" || name.ends_with(".index.json") || kWeights.contains(file.extension().string());
}

}  // namespace

void copy_other_files(const fs::path& source, const fs::path& destination) {
  std::error_code error;
  for (fs::directory_iterator at(source, error), end; !error && at != end; at.increment(error)) {
    const fs::path& file = at->path();
    std::error_code copied;
    if (is_left_behind(file) || fs::is_directory(file, copied)) continue;
    fs::copy_file(file, destination / file.filename(), copied);
    if (copied) throw IoError(escape(file.string()) + ": cannot be copied: " + copied.message());
  }
  if (error) throw IoError(escape(source.string()) + ": cannot be listed: " + error.message());
}

}  // namespace scaledmm
