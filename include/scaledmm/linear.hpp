// The kernel protocol: what a layer brings, what a kernel promises, and the two things that it does.
//
//   is_supported(device)            could this machine ever run me
//   can_implement(config)           can I do this layer
//   process_weights_after_loading   once: lay the weights out for this kernel
//   apply_weights                   often: y = x W^T (+ bias)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scaledmm/device.hpp"
#include "scaledmm/scheme.hpp"
#include "scaledmm/support.hpp"
#include "scaledmm/tensor.hpp"
#include "scaledmm/threads.hpp"

namespace scaledmm {

// The tensors of a layer as its checkpoint has them. Views: their memory must outlive process_weights_after_loading, no
// more.
struct LayerWeights {
  // [N, K] int8 or FP8. Any row pitch; the last dimension is contiguous.
  ConstTensorView weight;
  // The multiplier that dequantizes. [] or [1] or [1, 1]: per tensor. [parts]: for each logical width. [N], [N, 1] or
  // [1, N]: per channel. [ceil(N / bn), ceil(K / bk)]: block. f32, bf16, f16, e8m0, or uint8 read as e8m0 in blocks.
  ConstTensorView weight_scale;
  // Static activations: one value, or one for each logical width (the largest counts; int8 asymmetric: ranges merge).
  ConstTensorView input_scale;
  ConstTensorView input_zero_point;     // int8 or int32, one value or one for each logical width
  std::optional<float> input_scale_ub;  // upper bound of the absmax in dynamic per-token quantization
  bool ue8m0_input_scales = false;      // dynamic group scales are rounded up to powers of two
  // Widths of the fused parts; empty for one part. Their sum is N.
  std::vector<std::int64_t> logical_widths;
  // Where this layer's rows and columns begin inside the first scale block (tensor-parallel slices).
  std::int64_t block_offset_n = 0;
  std::int64_t block_offset_k = 0;
};

// What every kernel gets: shapes and scales checked, scales in f32 and of one of two kinds. Owned by nobody but its
// maker.
struct CheckedWeights {
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType dtype = DType::kInt8;
  const std::uint8_t* bytes = nullptr;  // row n starts at bytes + n * row_pitch
  std::int64_t row_pitch = 0;           // bytes
  // scale(n, k) = scales[(n + offset_n) / block_n * scale_columns + (k + offset_k) / block_k]. Per tensor and per
  // logical width are expanded to per channel: block_n = 1, block_k = K, scale_columns = 1.
  std::vector<float> scales;
  std::int64_t block_n = 1;
  std::int64_t block_k = 1;
  std::int64_t scale_columns = 1;
  std::int64_t offset_n = 0;
  std::int64_t offset_k = 0;
  bool per_channel = true;
  std::optional<float> input_scale;
  std::int32_t input_zero_point = 0;
  std::optional<float> input_scale_ub;
  bool ue8m0_input_scales = false;

  float scale(std::int64_t row, std::int64_t column) const {
    return scales[static_cast<std::size_t>((row + offset_n) / block_n * scale_columns + (column + offset_k) / block_k)];
  }
};

// A named part of packed weights, as a file keeps it.
struct PackedSection {
  std::string_view name;
  std::span<const std::byte> bytes;
};

// Packed weights of one layer: owns its memory, remembers its kernel. Kernels derive their own.
class PackedWeights {
 public:
  virtual ~PackedWeights() = default;
  virtual std::int64_t size_bytes() const = 0;
  // What packing made of the weights' codes and scales; empty: this kind cannot be kept in a file.
  virtual std::vector<PackedSection> sections() const { return {}; }
};

// What a kernel guarantees, as data. Selection can require the three booleans.
struct Guarantees {
  bool deterministic = true;     // same input, same bits, every run
  bool batch_invariant = true;   // a row's bits do not depend on M or on its place
  bool thread_invariant = true;  // nor on the number of threads
  std::string_view accumulator = "int32";
  std::string_view exactness;  // "integer sums exact; equal to the reference bit for bit"
};

struct KernelInfo {
  std::string_view name;      // int8_w8a8_avx2
  std::string_view upstream;  // the upstream classes it stands for, e.g. "CPUInt8ScaledMMLinearKernel"
  DeviceKind device = DeviceKind::kCpu;
  Isa isa = Isa::kScalar;              // CPU kernels: the tier
  std::string_view computes = "w8a8";  // or w8a16: what happens to the activations
  Guarantees guarantees;
};

// Where calls run, their scratch memory, and their threads or stream. One context serves one call at a time; keep it,
// and calls allocate nothing once it has grown.
class Context {
 public:
  // On this machine's CPU.
  explicit Context(Threading threading = {});
  // On a device: this machine's CPU, or a GPU that devices() found. A GPU's calls are put on the context's stream and
  // not waited for; the threads serve process_weights_after_loading. Errors: InvalidArgument for a device that was only
  // described, DeviceError.
  explicit Context(const Device& device, Threading threading = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Device& device() const;
  // The stream of later calls, a cudaStream_t; nullptr is the default stream. Scratch memory is shared by all calls of
  // a context, so what an earlier stream still runs must be finished, or the new stream must wait for it.
  void set_stream(void* stream);
  void* stream() const;

  int threads() const;
  // At least `bytes` of memory of the context's device, aligned to 64 (GPU: 256), valid until the next call of
  // scratch() on this context. A GPU's memory stays where it is, also after growing, until the context goes: captured
  // graphs may be replayed. Errors: DeviceError when it would have to grow while the stream is captured: make a call of
  // that size before.
  std::byte* scratch(std::int64_t bytes);
  // As scratch(), a second buffer with a life of its own: the public boundary keeps converted operands there.
  std::byte* staging(std::int64_t bytes);
  // Runs fn(task) for every task in [0, tasks) on up to threads() threads. fn must not throw.
  template <class Fn>
  void parallel(std::int64_t tasks, const Fn& fn) {
    run(
        tasks, [](void* f, std::int64_t task) { (*static_cast<const Fn*>(f))(task); }, const_cast<Fn*>(&fn));
  }

 private:
  void run(std::int64_t tasks, void (*fn)(void*, std::int64_t), void* fn_context);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// An activation that was quantized before it came here.
struct QuantizedActivation {
  ConstTensorView data;        // [..., K] int8 or FP8
  ConstTensorView scale;       // f32: [1], [rows] or [rows, groups]
  ConstTensorView zero_point;  // int32: [1] or [rows]; undefined when symmetric
  QuantKey quant_key;
};

// What a kernel's multiply gets: rows flattened, strides in elements, everything checked.
struct ApplyArguments {
  std::int64_t m = 0;
  const void* x = nullptr;  // [M, K], row stride x_stride
  DType x_dtype = DType::kBF16;
  std::int64_t x_stride = 0;
  const float* x_scale = nullptr;  // pre-quantized x only: [M] or [M, groups], see x_scale_columns
  std::int64_t x_scale_columns = 1;
  const std::int32_t* x_zero_point = nullptr;  // pre-quantized asymmetric x only: [M]
  const float* bias = nullptr;                 // [N] or nullptr
  void* y = nullptr;                           // [M, N], row stride y_stride
  DType y_dtype = DType::kBF16;
  std::int64_t y_stride = 0;
};

class Layer;

// A kernel. Stateless; all instances are const and live as long as the program.
class LinearKernel {
 public:
  virtual ~LinearKernel() = default;
  virtual const KernelInfo& info() const = 0;
  std::string_view name() const { return info().name; }

  virtual Support is_supported(const Device& device) const = 0;
  virtual Support can_implement(const LayerConfig& config) const = 0;

  // The key of pre-quantized activations that this kernel takes for this layer; nothing: it takes none.
  virtual std::optional<QuantKey> input_quant_key(const LayerConfig&) const { return std::nullopt; }

  // Checks the layer's tensors, packs them and stores the result in the layer, once.
  // Errors: InvalidArgument when can_implement(layer.config()) is no, for a wrong shape, dtype or scale (the text has
  // both numbers), and for a layer that was processed already.
  void process_weights_after_loading(Layer& layer, Context& context) const;

  // As process_weights_after_loading, on sections that were packed before in this kernel's packed_layout(). The layer's
  // scales are checked, its weight codes are not read and may be a null pointer. The sections' bytes are used where
  // they lie, aligned to 64; `memory` keeps them there.
  // Errors: InvalidArgument also for sections that are not those of this layer's shape and scheme.
  void adopt_packed_weights(Layer& layer, std::span<const PackedSection> sections,
                            std::shared_ptr<const void> memory) const;

  // y = x W^T (+ bias), leading dimensions kept: x [..., K], y [..., N], bias [N].
  // Shapes: x f32, bf16 or f16 (the config's input_dtype); y the config's out_dtype; bias f32, bf16 or f16. Row strides
  // of x and y are honoured; the last dimension must be contiguous. Errors: InvalidArgument. Nothing else is thrown
  // once process_weights_after_loading has succeeded.
  void apply_weights(const Layer& layer, ConstTensorView x, ConstTensorView bias, TensorView y, Context& context) const;
  // The same for an activation that was quantized before. Errors: InvalidArgument also when the keys differ.
  void apply_weights(const Layer& layer, const QuantizedActivation& x, ConstTensorView bias, TensorView y,
                     Context& context) const;

  // Gives the checkpoint's weight bytes back, [N, K] packed. Errors: InvalidArgument for a layer of another kernel.
  std::vector<std::uint8_t> unpack(const Layer& layer) const;

  // For kernel authors: what process_weights_after_loading, apply_weights and unpack do after their checks.
  virtual std::unique_ptr<PackedWeights> pack(const LayerConfig& config, const CheckedWeights& weights,
                                              Context& context) const = 0;
  virtual void multiply(const LayerConfig& config, const PackedWeights& packed, const ApplyArguments& arguments,
                        Context& context) const = 0;
  virtual std::vector<std::uint8_t> unpack(const LayerConfig& config, const PackedWeights& packed) const = 0;
  // The layout of PackedWeights::sections() as text: its version and tile sizes. Sections of another layout cannot be
  // adopted. Empty: this kernel's weights cannot be kept in a file.
  virtual std::string packed_layout() const { return {}; }
  // Packed weights on sections of this layout. `weights` is what pack() gets, without bytes; sizes that do not follow
  // from it are an InvalidArgument.
  virtual std::unique_ptr<PackedWeights> adopt(const LayerConfig& config, const CheckedWeights& weights,
                                               std::span<const PackedSection> sections,
                                               const std::shared_ptr<const void>& memory) const;

 private:
  void check_unprocessed(const Layer& layer) const;
};

// A layer: its configuration and, after process_weights_after_loading, its packed weights. Before that it holds views.
class Layer {
 public:
  Layer(LayerConfig config, LayerWeights weights, std::string name = {});
  ~Layer();
  Layer(Layer&&) noexcept;
  Layer& operator=(Layer&&) noexcept;

  const std::string& name() const { return name_; }
  const LayerConfig& config() const { return config_; }
  bool processed() const { return packed_ != nullptr; }
  // Which kernel processed it; nullptr before.
  const LinearKernel* kernel() const { return kernel_; }
  // Errors: InvalidArgument before processing.
  const PackedWeights& packed() const;

  // Replaces the weights of a processed layer by new plain ones of the same shape and scheme, with the same kernel.
  // Errors: InvalidArgument. The old weights stay when it throws.
  void refill(LayerWeights weights, Context& context);

 private:
  friend class LinearKernel;
  std::string name_;
  LayerConfig config_;
  LayerWeights weights_;
  std::int64_t block_offset_k_ = 0;  // kept from the weights: it counts the scale groups of quantized activations
  const LinearKernel* kernel_ = nullptr;
  std::unique_ptr<PackedWeights> packed_;
};

// Checks a layer's tensors against its configuration and brings the scales into one form.
// Errors: InvalidArgument with both shapes, or with the position of a scale that is not finite, negative, or 0 where
// the weights are not.
CheckedWeights check_weights(const LayerConfig& config, const LayerWeights& weights, std::string_view layer_name);
// The same without reading the weight's codes, whose data may be a null pointer: scales of 0 are taken as meant.
CheckedWeights check_weights_without_codes(const LayerConfig& config, const LayerWeights& weights,
                                           std::string_view layer_name);

}  // namespace scaledmm
