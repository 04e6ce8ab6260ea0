#include "scaledmm/calibration.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "formats/quote.hpp"
#include "formats/row_matrix.hpp"
#include "formats/safetensors.hpp"
#include "formats/safetensors_writer.hpp"
#include "scaledmm/checkpoint.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

constexpr std::string_view kSuffix = ".gram";
constexpr std::string_view kModel = "scaledmm.model";  // in the metadata
constexpr std::int64_t kStripe = 128;                  // rows of a Gram matrix that one task adds to

std::string list(const std::vector<std::string>& layers) {
  std::string text;
  for (const std::string& layer : layers) text += (text.empty() ? "" : ", ") + quote(layer);
  return text;
}

// Rows scaled to a root mean square of 1.
RowMatrix normalized(ConstTensorView x, const std::string& layer) {
  const std::int64_t rows = x.shape[0], k = x.shape[1];
  RowMatrix result = Eigen::Map<const RowMatrix>(static_cast<const float*>(x.data), rows, k);
  for (std::int64_t i = 0; i < rows; ++i) {
    const double square = result.row(i).cast<double>().squaredNorm();
    if (!std::isfinite(square)) {
      throw InvalidArgument("row " + std::to_string(i) + " of the input of " + quote(layer) + " is not finite");
    }
    if (square > 0) result.row(i) *= static_cast<float>(std::sqrt(static_cast<double>(k) / square));
  }
  return result;
}

}  // namespace

void Calibration::add(const std::vector<std::string>& layers, ConstTensorView x, Context& context) {
  if (layers.empty()) throw InvalidArgument("an input without layers that read it");
  if (x.dtype != DType::kF32 || x.shape.rank() != 2 || !x.is_packed()) {
    throw InvalidArgument("the input of " + quote(layers.front()) + " is " + std::string(scaledmm::name(x.dtype)) +
                          " " + x.shape.text() + ", must be packed f32 [rows, K]");
  }
  const std::int64_t rows = x.shape[0], k = x.shape[1];
  const auto found = inputs_.find(layers.front());
  if (found != inputs_.end() && (found->second.k != k || found->second.layers != layers)) {
    throw InvalidArgument("the input of " + list(layers) + " has K = " + std::to_string(k) +
                          ", before it was that of " + list(found->second.layers) +
                          " with K = " + std::to_string(found->second.k));
  }
  if (found == inputs_.end()) {
    for (const std::string& layer : layers) {
      if (readers_.contains(layer)) throw InvalidArgument(quote(layer) + " reads two inputs");
    }
  }
  const RowMatrix scaled = normalized(x, layers.front());
  Input& input = inputs_[layers.front()];
  if (input.sum.empty()) {
    input.layers = layers;
    input.k = k;
    input.sum.resize(static_cast<std::size_t>(k * k));
    for (const std::string& layer : layers) readers_[layer] = layers.front();
  }
  context.parallel((k + kStripe - 1) / kStripe, [&](std::int64_t task) {
    const std::int64_t begin = task * kStripe, end = std::min(k, begin + kStripe);
    Eigen::Map<RowMatrix> sum(input.sum.data(), k, k);
    add_transposed_product(scaled.middleCols(begin, end - begin), scaled.leftCols(end),
                           sum.block(begin, 0, end - begin, end));
  });
  input.rows += rows;
}

const Calibration::Input& Calibration::input(std::string_view name) const {
  const auto found = inputs_.find(name);
  if (found == inputs_.end()) throw InvalidArgument("there is no calibrated input " + quote(name));
  return found->second;
}

std::string_view Calibration::input_of(std::string_view layer) const {
  const auto found = readers_.find(layer);
  return found == readers_.end() ? std::string_view{} : std::string_view(found->second);
}

std::int64_t Calibration::size(std::string_view name) const { return input(name).k; }

std::vector<float> Calibration::gram(std::string_view name) const {
  const Input& in = input(name);
  std::vector<float> gram(in.sum.size());
  const float scale = in.rows > 0 ? 1.0f / static_cast<float>(in.rows) : 0.0f;
  for (std::int64_t i = 0; i < in.k; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      const float value = in.sum[static_cast<std::size_t>(i * in.k + j)] * scale;
      gram[static_cast<std::size_t>(i * in.k + j)] = value;
      gram[static_cast<std::size_t>(j * in.k + i)] = value;
    }
  }
  return gram;
}

void Calibration::check_model(const Checkpoint& checkpoint) const {
  if (model_.empty()) return;
  const std::string fingerprint = checkpoint.fingerprint();
  if (fingerprint == model_) return;
  throw InvalidArgument("the calibration is of another model: its fingerprint is " + quote(model_) + ", that of " +
                        escape(checkpoint.directory().string()) + " is " + quote(fingerprint));
}

void Calibration::save(const std::filesystem::path& file) const {
  std::vector<TensorDeclaration> tensors;
  std::map<std::string, std::string> metadata;
  for (const auto& [name, in] : inputs_) {
    tensors.push_back({name + std::string(kSuffix), &stored_dtype(DType::kF32), {in.k, in.k}});
    for (const std::string& layer : in.layers) {
      if (layer != name) metadata[layer] = name;
    }
  }
  if (!model_.empty()) metadata[std::string(kModel)] = model_;
  SafetensorsWriter writer(file, std::move(tensors), metadata);
  for (const TensorDeclaration& tensor : writer.order()) {
    const std::string name = tensor.name.substr(0, tensor.name.size() - kSuffix.size());
    const std::vector<float> matrix = gram(name);
    writer.write(tensor.name, std::as_bytes(std::span(matrix)));
  }
  writer.finish();
}

Calibration Calibration::load(const std::filesystem::path& file) {
  const SafetensorsFile source = SafetensorsFile::open(file);
  Calibration result;
  for (const TensorEntry& entry : source.tensors()) {
    const auto fail = [&](const std::string& text) {
      throw CheckpointError(escape(file.string()) + ": tensor " + quote(entry.name) + " " + text);
    };
    if (!entry.name.ends_with(kSuffix)) fail("is not of a calibration, its name does not end with .gram");
    if (entry.stored->dtype != DType::kF32) fail("is " + std::string(entry.stored->name) + ", must be F32");
    if (entry.shape.rank() != 2 || entry.shape[0] != entry.shape[1]) {
      fail("has shape " + entry.shape.text() + ", must be square");
    }
    const std::string name = entry.name.substr(0, entry.name.size() - kSuffix.size());
    Input& in = result.inputs_[name];
    in.layers = {name};
    in.k = entry.shape[0];
    in.rows = 1;
    in.sum.resize(static_cast<std::size_t>(in.k * in.k));
    if (!in.sum.empty()) std::memcpy(in.sum.data(), source.bytes(entry).data(), in.sum.size() * sizeof(float));
    if (!std::ranges::all_of(in.sum, [](float value) { return std::isfinite(value); })) {
      fail("has a value that is not finite");
    }
    for (std::int64_t i = 0; i < in.k; ++i) {
      if (in.sum[static_cast<std::size_t>(i * in.k + i)] < 0) {
        fail("has a negative mean square at [" + std::to_string(i) + ", " + std::to_string(i) + "]");
      }
      for (std::int64_t j = 0; j < i; ++j) {
        if (in.sum[static_cast<std::size_t>(i * in.k + j)] != in.sum[static_cast<std::size_t>(j * in.k + i)]) {
          fail("is not symmetric at [" + std::to_string(i) + ", " + std::to_string(j) + "]");
        }
      }
    }
    result.readers_[name] = name;
  }
  for (const auto& [layer, name] : source.metadata()) {
    if (layer == kModel) result.model_ = name;
    const auto found = result.inputs_.find(name);
    if (found == result.inputs_.end()) continue;  // not ours: {"format": "pt"}
    found->second.layers.push_back(layer);
    result.readers_[layer] = name;
  }
  return result;
}

}  // namespace scaledmm
