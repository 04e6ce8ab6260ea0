#include "formats/safetensors_writer.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "formats/quote.hpp"
#include "formats/safetensors_header.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& file, std::string_view name, const std::string& message) {
  throw InvalidArgument(escape(file.string()) + ": tensor " + quote(name) + ": " + message);
}

std::string json_string(std::string_view text, const std::filesystem::path& file) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw InvalidArgument(escape(file.string()) + ": " + quote(text) + " is not UTF-8");
  }
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.rank(); ++i) text += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  return text + "]";
}

// Fills in sizes and puts the tensors into the order of the file.
std::vector<TensorDeclaration> arrange(std::vector<TensorDeclaration> tensors, const std::filesystem::path& file) {
  if (tensors.size() > kMaxTensors) {
    throw InvalidArgument(escape(file.string()) + ": " + std::to_string(tensors.size()) + " tensors, the limit is " +
                          std::to_string(kMaxTensors));
  }
  for (TensorDeclaration& tensor : tensors) {
    if (tensor.stored == nullptr) refuse(file, tensor.name, "no dtype");
    if (tensor.name == "__metadata__") refuse(file, tensor.name, "a name that the format keeps for itself");
    if (tensor.name.size() > kMaxNameBytes) {
      refuse(file, tensor.name,
             "name of " + std::to_string(tensor.name.size()) + " bytes, the limit is " + std::to_string(kMaxNameBytes));
    }
    if (tensor.name.find('\0') != std::string::npos) refuse(file, tensor.name, "name holds a NUL character");
    std::array<std::uint64_t, Shape::kMaxRank> dimensions{};
    std::copy(tensor.shape.sizes().begin(), tensor.shape.sizes().end(), dimensions.begin());
    try {
      tensor.size_bytes = checked_size_bytes(std::span(dimensions).first(tensor.shape.rank()), *tensor.stored, "");
    } catch (const CheckpointError& error) {
      refuse(file, tensor.name, error.what());
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorDeclaration& a, const TensorDeclaration& b) {
    return std::tie(b.stored->rank, a.name) < std::tie(a.stored->rank, b.name);
  });
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorDeclaration& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  if (const auto twin = std::adjacent_find(names.begin(), names.end()); twin != names.end()) {
    refuse(file, *twin, "duplicate name");
  }
  return tensors;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& destination, std::vector<TensorDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata, std::uint64_t alignment)
    : file_(destination), order_(arrange(std::move(tensors), destination)) {
  std::string header = R"({"__metadata__":{"format":"pt")";
  for (const auto& [key, value] : metadata) {
    if (key == "format") continue;
    header += "," + json_string(key, destination) + ":" + json_string(value, destination);
  }
  header += "}";
  for (const TensorDeclaration& tensor : order_) {
    const std::uint64_t begin = data_bytes_;
    if (tensor.size_bytes > kMaxDimension - begin) {
      refuse(destination, tensor.name, "the file would hold more than " + std::to_string(kMaxDimension) + " bytes");
    }
    data_bytes_ += tensor.size_bytes;
    header += "," + json_string(tensor.name, destination) + R"(:{"dtype":")" + std::string(tensor.stored->name) +
              R"(","shape":)" + shape_text(tensor.shape) + R"(,"data_offsets":[)" + std::to_string(begin) + "," +
              std::to_string(data_bytes_) + "]}";
  }
  header += "}";
  // Data that begins at a multiple of 8, in this order of types, is aligned for every tensor.
  const std::uint64_t data_begin = (kHeaderPrefixBytes + header.size() + alignment - 1) / alignment * alignment;
  header.resize(data_begin - kHeaderPrefixBytes, ' ');
  if (header.size() > kMaxHeaderBytes) {
    throw InvalidArgument(escape(destination.string()) + ": header of " + std::to_string(header.size()) +
                          " bytes, the limit is " + std::to_string(kMaxHeaderBytes));
  }
  std::string prefix;
  for (unsigned i = 0; i < kHeaderPrefixBytes; ++i) prefix += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  file_.write(prefix + header);
  skip_complete();
}

void SafetensorsWriter::skip_complete() {
  while (current_ < order_.size() && written_ == order_[current_].size_bytes) {
    ++current_;
    written_ = 0;
  }
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> data) {
  if (data.empty()) return;
  const auto& file = file_.destination();
  if (current_ == order_.size())
    refuse(file, name, "all tensors are complete, " + std::to_string(data.size()) + " bytes more");
  const TensorDeclaration& tensor = order_[current_];
  if (name != tensor.name) refuse(file, name, "bytes out of order, " + quote(tensor.name) + " is next");
  if (data.size() > tensor.size_bytes - written_) {
    refuse(file, name,
           std::to_string(written_ + data.size()) + " bytes, its shape " + tensor.shape.text() + " of " +
               std::string(tensor.stored->name) + " takes " + std::to_string(tensor.size_bytes));
  }
  file_.write(data);
  written_ += data.size();
  skip_complete();
}

void SafetensorsWriter::finish() {
  if (current_ != order_.size()) {
    const TensorDeclaration& tensor = order_[current_];
    refuse(file_.destination(), tensor.name,
           std::to_string(written_) + " of " + std::to_string(tensor.size_bytes) + " bytes written");
  }
  file_.commit();
}

}  // namespace scaledmm
