// class Linear: a checkpoint's layer, or several side by side, with a kernel and packed weights.
#include <algorithm>
#include <cstring>

#include "formats/quote.hpp"
#include "formats/value_checks.hpp"
#include "numerics/formats.hpp"
#include "scaledmm/checkpoint.hpp"
#include "scaledmm/device_memory.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/packed.hpp"

namespace scaledmm {
namespace {

// Tensors of a fused layer, owned until they are packed.
struct FusedTensors {
  LayerConfig config;
  LayerWeights weights;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  std::vector<float> input_scales;
  std::vector<std::int32_t> input_zero_points;
  std::vector<std::string> warnings;
};

WeightShape& shape_of(LayerConfig& config) {
  return std::visit([](auto& c) -> WeightShape& { return c.weight_shape; }, config);
}

// The configuration but for N: what parts of one layer share.
LayerConfig without_n(LayerConfig config) {
  shape_of(config).n = 0;
  return config;
}

bool is_per_tensor(const LayerConfig& config) {
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
    return !int8->is_channelwise && !int8->weight_block;
  }
  return std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.scale.group_shape.is_per_tensor();
}

void make_per_channel(LayerConfig& config) {
  if (auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
    int8->is_channelwise = true;
  } else {
    std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.scale.group_shape = GroupShape::per_channel();
  }
}

std::string part_texts(const std::vector<const LayerRecord*>& parts) {
  std::string text;
  for (const LayerRecord* part : parts) {
    text += "\n  " + escape(part->name) + ": " + (part->quantized ? describe(part->config) : "dense (left out)");
  }
  return text;
}

void check_parts(const std::vector<const LayerRecord*>& parts) {
  const LayerRecord& first = *parts.front();
  const bool same = std::ranges::all_of(parts, [&](const LayerRecord* part) {
    return part->quantized == first.quantized && part->input_scale_ub == first.input_scale_ub &&
           part->ue8m0_input_scales == first.ue8m0_input_scales &&
           (!part->quantized || without_n(part->config) == without_n(first.config));
  });
  if (!same) throw InvalidArgument("these layers cannot be fused, they differ in more than N:" + part_texts(parts));
  if (!first.quantized) {
    throw Unsupported("layer " + quote(first.name) + " is dense: only quantized layers run here");
  }
}

// Adds the part's weight scales to the fused ones: a value for each row, or block rows below block rows.
void append_scales(const Checkpoint& checkpoint, const LayerRecord& part, bool last, FusedTensors& fused) {
  const ScaleGrid grid = scale_grid(checkpoint, part);
  const std::int64_t elements = grid.view.shape.elements();
  if (is_per_tensor(part.config)) {
    fused.scales.insert(fused.scales.end(), static_cast<std::size_t>(part.n), scale_at(grid.view, 0));
    return;
  }
  if (!last && part.n % grid.block_n != 0) {
    throw InvalidArgument("layer " + quote(part.name) + " cannot be fused before others: its " +
                          std::to_string(part.n) + " rows do not fill scale blocks of " + std::to_string(grid.block_n) +
                          "; load the parts one by one");
  }
  for (std::int64_t i = 0; i < elements; ++i) fused.scales.push_back(scale_at(grid.view, i));
}

void append_part(const Checkpoint& checkpoint, const LayerRecord& part, bool last, bool with_codes,
                 FusedTensors& fused) {
  const LayerWeights weights = checkpoint.weights(part);
  if (with_codes) {
    const auto* codes = static_cast<const std::uint8_t*>(weights.weight.data);
    fused.codes.insert(fused.codes.end(), codes, codes + part.n * part.k);
  }
  append_scales(checkpoint, part, last, fused);
  if (weights.input_scale.defined()) fused.input_scales.push_back(scale_at(weights.input_scale, 0));
  if (weights.input_zero_point.defined()) {
    const ConstTensorView& zero = weights.input_zero_point;
    fused.input_zero_points.push_back(zero.dtype == DType::kInt32 ? *static_cast<const std::int32_t*>(zero.data)
                                                                  : *static_cast<const std::int8_t*>(zero.data));
  }
  fused.weights.logical_widths.push_back(part.n);
}

template <class T>
bool all_equal(const std::vector<T>& values) {
  return std::ranges::all_of(values, [&](const T& value) { return value == values.front(); });
}

// Without codes the fused weight is a null pointer.
FusedTensors fuse(const Checkpoint& checkpoint, const std::vector<const LayerRecord*>& parts, bool with_codes) {
  FusedTensors fused;
  const LayerRecord& first = *parts.front();
  for (const LayerRecord* part : parts) append_part(checkpoint, *part, part == parts.back(), with_codes, fused);
  fused.config = first.config;
  WeightShape& shape = shape_of(fused.config);
  shape.n = 0;
  for (const LayerRecord* part : parts) shape.n += part->n;
  LayerWeights& weights = fused.weights;
  weights.weight = ConstTensorView(with_codes ? fused.codes.data() : nullptr, checkpoint.tensor(first.weight).dtype,
                                   Shape{shape.n, shape.k});
  weights.input_scale_ub = first.input_scale_ub;
  weights.ue8m0_input_scales = first.ue8m0_input_scales;
  if (is_per_tensor(fused.config)) make_per_channel(fused.config);  // exact; codes stay as they are
  const auto scales = static_cast<std::int64_t>(fused.scales.size());
  const bool block = is_block_scaled(fused.config);
  const std::int64_t columns = block ? scale_grid(checkpoint, first).columns : 1;
  weights.weight_scale = ConstTensorView(fused.scales.data(), DType::kF32, Shape{scales / columns, columns});

  const auto count = static_cast<std::int64_t>(parts.size());
  if (!fused.input_scales.empty()) {
    weights.input_scale = ConstTensorView(fused.input_scales.data(), DType::kF32, Shape{count});
  }
  if (!fused.input_zero_points.empty()) {
    weights.input_zero_point = ConstTensorView(fused.input_zero_points.data(), DType::kInt32, Shape{count});
  }
  if (!all_equal(fused.input_scales) || !all_equal(fused.input_zero_points)) {
    fused.warnings.push_back("static input scales of the parts differ: " +
                             std::string(fused.input_zero_points.empty()
                                             ? "the largest is taken"
                                             : "the range that holds all of them is taken"));
  }
  return fused;
}

// Biases side by side in f32, zeros for parts without one; empty when no part has one.
std::vector<float> fused_bias(const Checkpoint& checkpoint, const std::vector<const LayerRecord*>& parts) {
  std::vector<float> values;
  if (std::ranges::all_of(parts, [](const LayerRecord* part) { return part->bias.empty(); })) return values;
  for (const LayerRecord* part : parts) {
    if (part->bias.empty()) {
      values.resize(values.size() + static_cast<std::size_t>(part->n));
      continue;
    }
    const ConstTensorView bias = checkpoint.tensor(part->bias);
    for (std::int64_t i = 0; i < part->n; ++i) values.push_back(load_f32(bias.data, bias.dtype, i));
  }
  return values;
}

std::string joined_names(const std::vector<const LayerRecord*>& parts) {
  std::string name;
  for (const LayerRecord* part : parts) name += (name.empty() ? "" : "+") + part->name;
  return name;
}

}  // namespace

struct Linear::Impl {
  const LinearKernel* kernel = nullptr;
  std::optional<Layer> layer;
  std::vector<float> bias;
  DeviceBuffer bias_on_gpu;
  std::vector<std::string> warnings;
  bool is_mapped = false;

  // Selects a kernel, and takes the packed weights from the options' file or packs them here.
  void process(LayerConfig config, LayerWeights weights, std::string name, const LinearOptions& options) {
    const Device& device = options.device ? *options.device : this_cpu();
    try {
      kernel = &select(config, device, options.select);
    } catch (const Unsupported& error) {
      if (name.empty()) throw;
      throw Unsupported("layer " + quote(name) + ": " + error.what());
    }
    if (device.kind == DeviceKind::kCpu) {
      if (const Support here = kernel->is_supported(this_cpu()); !here) {
        throw InvalidArgument("a described CPU is no place to run: " + std::string(kernel->name()) +
                              " was chosen for it, and here " + here.reason());
      }
    }
    layer.emplace(std::move(config), std::move(weights), std::move(name));
    if (options.packed != nullptr) {
      is_mapped = options.packed->adopt(*layer, *kernel);
      if (!is_mapped) warnings.push_back(escape(options.packed->path().string()) + " does not hold it, it was packed");
    }
    if (!is_mapped) {
      Context context(device, options.threading);
      kernel->process_weights_after_loading(*layer, context);
    }
    if (device.kind == DeviceKind::kCpu || bias.empty()) return;
    bias_on_gpu = DeviceBuffer(device, bias.data(), static_cast<std::int64_t>(bias.size() * sizeof(float)));
  }
};

namespace {

void check_packed(const Checkpoint& checkpoint, const LinearOptions& options) {
  if (options.packed == nullptr || options.packed->checkpoint_directory() == checkpoint.directory()) return;
  throw InvalidArgument(escape(options.packed->path().string()) + " was opened for " +
                        escape(options.packed->checkpoint_directory().string()) + ", the layer is one of " +
                        escape(checkpoint.directory().string()));
}

}  // namespace

Linear::Linear() : impl_(std::make_unique<Impl>()) {}
Linear::~Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;

Linear Linear::load(const Checkpoint& checkpoint, std::string_view layer, const LinearOptions& options) {
  const LayerRecord& record = checkpoint.layer(layer);
  check_parts({&record});
  check_packed(checkpoint, options);
  Linear linear;
  linear.impl_->bias = fused_bias(checkpoint, {&record});
  linear.impl_->process(record.config, checkpoint.weights(record), record.name, options);
  return linear;
}

Linear Linear::load_fused(const Checkpoint& checkpoint, const std::vector<std::string>& layers,
                          const LinearOptions& options) {
  if (layers.empty()) throw InvalidArgument("load_fused: the list of layers is empty");
  if (layers.size() == 1) return load(checkpoint, layers.front(), options);
  std::vector<const LayerRecord*> parts;
  for (const std::string& name : layers) parts.push_back(&checkpoint.layer(name));
  check_parts(parts);
  check_packed(checkpoint, options);
  const std::string name = joined_names(parts);
  FusedTensors fused = fuse(checkpoint, parts, options.packed == nullptr || !options.packed->holds(name));
  Linear linear;
  linear.impl_->bias = fused_bias(checkpoint, parts);
  linear.impl_->warnings = std::move(fused.warnings);
  linear.impl_->process(fused.config, fused.weights, name, options);
  return linear;
}

Linear Linear::create(const LayerConfig& config, const LayerWeights& weights, ConstTensorView bias,
                      const LinearOptions& options) {
  if (options.packed != nullptr) throw InvalidArgument("a packed file holds the layers of a checkpoint, not this one");
  Linear linear;
  if (bias.defined()) {
    const std::int64_t n = weight_shape(config).n;
    if (!is_float16_or_32(bias.dtype)) {
      throw InvalidArgument("bias is " + std::string(name(bias.dtype)) + ", not f32, bf16 or f16");
    }
    if (bias.shape != Shape{n} || !bias.is_packed()) {
      throw InvalidArgument("bias has shape " + bias.shape.text() + ", expected a packed " + Shape{n}.text());
    }
    for (std::int64_t i = 0; i < n; ++i) linear.impl_->bias.push_back(load_f32(bias.data, bias.dtype, i));
  }
  linear.impl_->process(config, weights, {}, options);
  return linear;
}

const LayerConfig& Linear::config() const { return impl_->layer->config(); }
const LinearKernel& Linear::kernel() const { return *impl_->kernel; }
const Layer& Linear::layer() const { return *impl_->layer; }
const std::vector<std::string>& Linear::warnings() const { return impl_->warnings; }
bool Linear::is_mapped() const { return impl_->is_mapped; }

ConstTensorView Linear::bias() const {
  if (impl_->bias.empty()) return {};
  return ConstTensorView(impl_->bias.data(), DType::kF32, Shape{static_cast<std::int64_t>(impl_->bias.size())});
}

void Linear::apply(ConstTensorView x, TensorView y, Context& context) const {
  ConstTensorView b = bias();
  if (impl_->bias_on_gpu.data() != nullptr) b.data = impl_->bias_on_gpu.data();
  impl_->kernel->apply_weights(*impl_->layer, x, b, y, context);
}

}  // namespace scaledmm
