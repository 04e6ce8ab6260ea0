// Checkpoint folders: the safetensors container, the quantization dialects, the layer table, and layers ready to run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scaledmm/calibration.hpp"
#include "scaledmm/linear.hpp"
#include "scaledmm/registry.hpp"
#include "scaledmm/scheme.hpp"

namespace scaledmm {

// A tensor of a safetensors file.
struct StoredTensor {
  std::string name;
  std::string stored_dtype;    // the container's spelling: "F8_E4M3"
  std::optional<DType> dtype;  // ours; nothing for types that linear layers never use (BOOL, I64, ...)
  Shape shape;
  std::uint64_t size_bytes = 0;
  std::filesystem::path file;
};

struct CheckpointOptions {
  bool use_mmap = true;         // false: read tensors into memory (a file that may be truncated while it is open)
  bool follow_symlinks = true;  // shard files that are links, as in a hub cache
  bool lenient = false;         // a module whose tensors contradict the config is left out with a warning
  // Model's activation dtype; nothing: config.json's dtype / torch_dtype, else bf16.
  std::optional<DType> input_dtype;
  std::optional<DType> out_dtype;  // nothing: as input_dtype
};

// A linear layer as the checkpoint describes it.
struct LayerRecord {
  std::string name;        // "model.layers.0.self_attn.q_proj"
  bool quantized = false;  // false: dense (bf16, f16 or f32 weights), passed through
  std::string scheme;      // scheme_name(config), or "dense"
  LayerConfig config;      // quantized layers
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::string format;  // the dialect: "compressed-tensors int-quantized", "fp8", ...
  // Names of the layer's tensors; empty where there is none.
  std::string weight;
  std::string weight_scale;
  std::string input_scale;
  std::string input_zero_point;
  std::string bias;
  std::optional<float> input_scale_ub;
  bool ue8m0_input_scales = false;
  std::vector<std::string> warnings;
};

// A checkpoint folder. Opening reads headers and config only; tensor bytes are mapped and read when asked for.
class Checkpoint {
 public:
  // Errors: CheckpointError (file and tensor named), Unsupported (a recognised format that is not W8A8 or W8A16),
  // IoError.
  static Checkpoint open(const std::filesystem::path& directory, const CheckpointOptions& options = {});
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const std::filesystem::path& directory() const;
  // config.json's text; quantization method after normalisation ("compressed-tensors", "fp8", ...; empty: not
  // quantized).
  const std::string& config_json() const;
  const std::string& quant_method() const;
  DType model_dtype() const;

  // Every tensor, by name in ascending order.
  const std::vector<StoredTensor>& tensors() const;
  // Errors: CheckpointError for an unknown name or a dtype that has no DType.
  ConstTensorView tensor(std::string_view name) const;
  bool has_tensor(std::string_view name) const;

  // A hash of every tensor's name, type, shape, and first and last 4096 bytes: the same for copies and other files of
  // one model, another after any training, rotation or quantization. It does not withstand somebody who forges it.
  // Errors: IoError.
  std::string fingerprint() const;

  // Every rank-2 module that is a linear layer, natural order of names (layers.2 before layers.10).
  const std::vector<LayerRecord>& layers() const;
  // Errors: CheckpointError for an unknown name, with the nearest known ones.
  const LayerRecord& layer(std::string_view name) const;
  const std::vector<std::string>& warnings() const;

  // The layer's tensors, its scale values checked. Views into the checkpoint: it must outlive them.
  // Errors: CheckpointError that names the file and the tensor.
  LayerWeights weights(const LayerRecord& record) const;
  // Every value check: scales finite and positive, no NaN weight codes, zero points in range, power-of-two scales where
  // promised, weights that model_dtype() can hold, dense tensors finite, at least one quantized layer where config.json
  // says that the model is quantized, and the layers and shapes that it gives a plain decoder. One line for each
  // problem, naming file and tensor; empty when sound.
  std::vector<std::string> verify(const std::function<void(std::size_t done, std::size_t total)>& progress = {}) const;
  // The same for one layer.
  std::vector<std::string> verify(const LayerRecord& record) const;

 private:
  Checkpoint();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class PackedFile;  // packed.hpp

struct LinearOptions {
  SelectOptions select;
  std::optional<Device> device;  // nothing: this_cpu()
  Threading threading;
  // Layers that this file holds are mapped instead of packed; a layer that it does not hold is packed, with a warning.
  std::shared_ptr<const PackedFile> packed;
};

// A linear layer, ready to run: packed weights, bias and kernel. Quantized layers only.
class Linear {
 public:
  // Loads, selects and packs. The checkpoint may be closed afterwards.
  // Errors: CheckpointError, Unsupported (dense layer; no kernel, with every reason), both with the layer's name,
  // InvalidArgument (also a packed file that was opened for another folder), StalePackedFile (the layer was packed for
  // another kernel or layout).
  static Linear load(const Checkpoint& checkpoint, std::string_view layer, const LinearOptions& options = {});
  // Several layers of one scheme with the same input as one layer, outputs side by side (q, k, v; gate, up). Each part
  // keeps its own scales: per-tensor scales become per channel, block parts must fill their blocks except the last.
  static Linear load_fused(const Checkpoint& checkpoint, const std::vector<std::string>& layers,
                           const LinearOptions& options = {});
  // A layer given by its tensors; they may be freed afterwards. bias [N] f32, bf16 or f16, or undefined.
  // Errors: InvalidArgument, Unsupported.
  static Linear create(const LayerConfig& config, const LayerWeights& weights, ConstTensorView bias = {},
                       const LinearOptions& options = {});
  ~Linear();
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;

  const LayerConfig& config() const;
  const LinearKernel& kernel() const;
  const Layer& layer() const;
  // f32 [N]; undefined without a bias.
  ConstTensorView bias() const;
  // What was done to fuse parts that differ: "input scales differ, the largest is taken". And that a packed file did
  // not hold the layer.
  const std::vector<std::string>& warnings() const;
  // Its packed weights lie in LinearOptions::packed.
  bool is_mapped() const;

  // y = x W^T (+ bias). Shapes and errors: LinearKernel::apply_weights.
  void apply(ConstTensorView x, TensorView y, Context& context) const;

 private:
  Linear();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What the converter writes.
enum class ConvertScheme : std::uint8_t { kInt8Channel, kFp8Tensor, kFp8Channel, kFp8Block };

struct ConvertOptions {
  ConvertScheme scheme = ConvertScheme::kInt8Channel;
  bool bf16_scales = false;                   // scales in bf16 (rounded first, then used to quantize); default f32
  std::uint64_t shard_bytes = 5'000'000'000;  // a file is closed when the next tensor would pass this
  std::vector<std::string> ignore;            // more layers to leave dense: full names or "re:" patterns
  // Inputs of every quantized layer over a calibration text: codes are then chosen so that their errors cancel in the
  // layer's output (GPTQ) instead of each being the nearest. nullptr: the nearest.
  const Calibration* calibration = nullptr;
  bool asymmetric_inputs = false;  // INT8: the layers quantize tokens with a zero point ("symmetric": false)
  std::function<void(std::size_t done, std::size_t total, std::string_view layer)> progress;
  // Told before the long work, a line each: what of the folder is not copied, and fused groups that are quantized in
  // part only (q, k, v; gate, up), which vLLM refuses to load.
  std::function<void(const std::string& warning)> warn;
};

// How far a layer's dequantized weights are from the dense ones.
struct ConvertedLayer {
  std::string name;
  double max_abs_error = 0;
  double cosine = 1;
  std::int64_t saturated = 0;
};

// Writes a dense checkpoint as a quantized one: int8 per channel and FP8 per channel as compressed-tensors, FP8 per
// tensor and FP8 128x128 block as quant_method fp8. lm_head, embeddings, norms and routers stay dense. Everything is
// written under a temporary name beside `destination` and renamed at the end; nothing is left behind on an error.
// Errors: CheckpointError (also for a weight that is not finite, with file, tensor and position), IoError, Unsupported
// (a source that is quantized already, or has nothing to quantize), InvalidArgument (a destination that exists, an
// ignore entry that matches no layer, a calibration of another model, without a layer that is quantized or with another
// K).
std::vector<ConvertedLayer> convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                                    const ConvertOptions& options);

}  // namespace scaledmm
