// The public side of the protocol: checks every argument, brings it into the form that kernels take, and calls them.
#include "scaledmm/linear.hpp"

#include <string>

#include "kernels/operand_copies.hpp"
#include "kernels/operand_layout.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

[[noreturn]] void fail(const Layer& layer, const std::string& text) {
  throw InvalidArgument((layer.name().empty() ? "" : "layer " + layer.name() + ": ") + text);
}

std::string text(std::int64_t value) { return std::to_string(value); }

// Rows of a tensor with its leading dimensions flattened.
struct Rows {
  std::int64_t count = 1;
  std::int64_t stride = 0;  // elements
  bool flat = true;         // one stride leads from each row to the next
};

Rows flatten(const Shape& shape, const Shape& strides) {
  Rows rows;
  const std::size_t rank = shape.rank();
  rows.stride = shape.back();
  bool first = true;
  std::int64_t expected = 0;
  for (std::size_t i = rank - 1; i-- > 0;) {
    rows.count *= shape[i];
    if (shape[i] == 1) continue;
    if (first) {
      rows.stride = strides[i];
      first = false;
    } else if (strides[i] != expected) {
      rows.flat = false;
    }
    expected = strides[i] * shape[i];
  }
  return rows;
}

template <class View>
void check_operand(const Layer& layer, const char* what, const View& view, DType expected_dtype,
                   std::int64_t expected_columns, const char* letter) {
  const Shape& shape = view.shape;
  if (view.dtype != expected_dtype) {
    fail(layer, std::string(what) + " is " + std::string(name(view.dtype)) + ", the layer takes " +
                    std::string(name(expected_dtype)));
  }
  if (shape.rank() < 1) fail(layer, std::string(what) + " has rank 0");
  if (shape.back() != expected_columns) {
    fail(layer, std::string(what) + " has shape " + shape.text() + ", its last dimension must be " + letter + " = " +
                    text(expected_columns));
  }
  if (shape.elements() == 0) return;
  if (const std::string fault = layout_fault(what, view); !fault.empty()) fail(layer, fault);
}

Shape leading(const Shape& shape) { return Shape(shape.sizes().first(shape.rank() - 1)); }

// The pieces of one call that need a copy, laid out one after the other in the context's staging buffer.
class Staging {
 public:
  std::int64_t reserve(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = 64;
    const std::int64_t offset = size_;
    size_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  void allocate(Context& context) { base_ = size_ > 0 ? context.staging(size_) : nullptr; }
  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

 private:
  std::int64_t size_ = 0;
  std::byte* base_ = nullptr;
};

bool aligned_f32(const ConstTensorView& bias) {
  return bias.dtype == DType::kF32 && (bias.shape.elements() == 1 || bias.strides[bias.shape.rank() - 1] == 1) &&
         reinterpret_cast<std::uintptr_t>(bias.data) % sizeof(float) == 0;
}

void check_bias(const Layer& layer, const ConstTensorView& bias, std::int64_t n) {
  if (!bias.defined()) return;
  const Shape& shape = bias.shape;
  const bool is_vector = shape.rank() == 1 || (shape.rank() == 2 && shape[0] == 1);
  if (!is_vector || shape.back() != n) {
    fail(layer, "bias has shape " + shape.text() + ", expected " + Shape{n}.text());
  }
  if (!is_float16_or_32(bias.dtype)) {
    fail(layer, "bias is " + std::string(name(bias.dtype)) + ", not f32, bf16 or f16");
  }
  if (bias.data == nullptr) fail(layer, "bias is a null pointer");
}

// How many scales and zero points a pre-quantized activation must bring.
struct ActivationScales {
  std::int64_t columns = 1;  // of scales, for each row
  bool one_for_all = false;  // a single value may stand for all rows
};

ActivationScales activation_scales(const QuantKey& key, std::int64_t k, std::int64_t offset_k) {
  const GroupShape& group = key.scale.group_shape;
  if (group.is_per_tensor()) return {1, true};
  if (group.col < 1) return {1, false};
  return {(offset_k + k + group.col - 1) / group.col, false};
}

void check_scale_tensor(const Layer& layer, const ConstTensorView& view, const char* what, DType dtype,
                        std::int64_t rows, ActivationScales scales) {
  if (!view.defined()) fail(layer, std::string(what) + " is missing");
  if (view.dtype != dtype) {
    fail(layer, std::string(what) + " is " + std::string(name(view.dtype)) + ", not " + std::string(name(dtype)));
  }
  const std::int64_t elements = view.shape.elements(), expected = rows * scales.columns;
  const bool single = scales.one_for_all && elements == 1;
  if (elements != expected && !single) {
    fail(layer, std::string(what) + " has shape " + view.shape.text() + " with " + text(elements) +
                    " elements, expected " + text(scales.one_for_all ? 1 : expected));
  }
  if (elements > 0 && view.data == nullptr) fail(layer, std::string(what) + " is a null pointer");
}

// f32 or int32 values that kernels can take as they are.
bool is_direct(const ConstTensorView& view, std::int64_t count) {
  return view.is_packed() && view.shape.elements() == count && reinterpret_cast<std::uintptr_t>(view.data) % 4 == 0;
}

const OperandCopies& copies_for(const LinearKernel& kernel) {
  return kernel.info().device == DeviceKind::kCuda ? cuda_copies() : host_copies();
}

struct Call {
  ConstTensorView x;
  const QuantizedActivation* quantized = nullptr;
  std::optional<QuantKey> key;
  ConstTensorView bias;
  TensorView y;
};

// Every operand must lie where the kernel runs.
void check_memory(const Layer& layer, const OperandCopies& copies, const Call& call, const Context& context) {
  const auto check = [&](const ConstTensorView& view, const char* what) {
    if (view.data == nullptr || view.shape.elements() == 0) return;
    if (const std::string fault = copies.memory_fault(view, context); !fault.empty()) {
      fail(layer, std::string(what) + " " + fault);
    }
  };
  check(call.x, "x");
  check(call.y, "y");
  check(call.bias, "bias");
  if (call.quantized == nullptr) return;
  check(call.quantized->scale, "x's scale");
  check(call.quantized->zero_point, "x's zero point");
}

// One call, plain or pre-quantized.
void run(const LinearKernel& kernel, const Layer& layer, const Call& call, std::int64_t block_offset_k,
         Context& context) {
  const auto [n, k] = weight_shape(layer.config());
  const DType x_dtype = call.quantized != nullptr ? call.key->dtype : input_dtype(layer.config());
  check_operand(layer, "x", call.x, x_dtype, k, "K");
  check_operand(layer, "y", call.y, out_dtype(layer.config()), n, "N");
  if (leading(call.x.shape) != leading(call.y.shape)) {
    fail(layer,
         "x has shape " + call.x.shape.text() + " and y " + call.y.shape.text() + ": their leading dimensions differ");
  }
  check_bias(layer, call.bias, n);
  const Rows x_rows = flatten(call.x.shape, call.x.strides);
  const Rows y_rows = flatten(call.y.shape, call.y.strides);
  const std::int64_t m = x_rows.count;
  if (m > 1 && y_rows.flat && y_rows.stride < n) {
    fail(layer, "y's row stride " + text(y_rows.stride) + " is less than N = " + text(n));
  }
  ActivationScales scales;
  if (call.quantized != nullptr) {
    scales = activation_scales(*call.key, k, block_offset_k);
    check_scale_tensor(layer, call.quantized->scale, "x's scale", DType::kF32, m, scales);
    if (!call.key->symmetric) {
      check_scale_tensor(layer, call.quantized->zero_point, "x's zero point", DType::kInt32, m,
                         {1, scales.one_for_all});
    }
  }
  if (m == 0) return;
  const OperandCopies& copies = copies_for(kernel);
  check_memory(layer, copies, call, context);

  const std::int64_t x_row_bytes = k * size_bytes(x_dtype), y_row_bytes = n * size_bytes(call.y.dtype);
  const bool convert_bias = call.bias.defined() && !aligned_f32(call.bias);
  Staging staging;
  const std::int64_t x_at = x_rows.flat ? 0 : staging.reserve(m * x_row_bytes);
  const std::int64_t y_at = y_rows.flat ? 0 : staging.reserve(m * y_row_bytes);
  const std::int64_t bias_at = convert_bias ? staging.reserve(n * 4) : 0;
  const bool has_zero_point = call.quantized != nullptr && !call.key->symmetric;
  const bool copy_scale = call.quantized != nullptr && !is_direct(call.quantized->scale, m * scales.columns);
  const bool copy_zero = has_zero_point && !is_direct(call.quantized->zero_point, m);
  const std::int64_t scale_at = copy_scale ? staging.reserve(m * scales.columns * 4) : 0;
  const std::int64_t zero_at = copy_zero ? staging.reserve(m * 4) : 0;
  staging.allocate(context);

  ApplyArguments a;
  a.m = m;
  a.x = call.x.data;
  a.x_dtype = x_dtype;
  a.x_stride = x_rows.stride;
  a.y = call.y.data;
  a.y_dtype = call.y.dtype;
  a.y_stride = y_rows.stride;
  if (!x_rows.flat) {
    copies.gather_rows(call.x, staging.at<std::byte>(x_at), context);
    a.x = staging.at<std::byte>(x_at);
    a.x_stride = k;
  }
  if (!y_rows.flat) {
    a.y = staging.at<std::byte>(y_at);
    a.y_stride = n;
  }
  if (call.bias.defined()) {
    a.bias = static_cast<const float*>(call.bias.data);
    if (convert_bias) {
      copies.widen(call.bias, staging.at<float>(bias_at), n, context);
      a.bias = staging.at<float>(bias_at);
    }
  }
  if (call.quantized != nullptr) {
    a.x_scale_columns = scales.columns;
    a.x_scale = static_cast<const float*>(call.quantized->scale.data);
    if (copy_scale) {
      copies.gather(call.quantized->scale, staging.at<float>(scale_at), m * scales.columns, context);
      a.x_scale = staging.at<float>(scale_at);
    }
  }
  if (has_zero_point) {
    a.x_zero_point = static_cast<const std::int32_t*>(call.quantized->zero_point.data);
    if (copy_zero) {
      copies.gather(call.quantized->zero_point, staging.at<std::int32_t>(zero_at), m, context);
      a.x_zero_point = staging.at<std::int32_t>(zero_at);
    }
  }
  kernel.multiply(layer.config(), layer.packed(), a, context);
  if (!y_rows.flat) copies.scatter_rows(staging.at<std::byte>(y_at), call.y, context);
}

void check_context(const LinearKernel& kernel, const Layer& layer, const Context& context) {
  if (context.device().kind == kernel.info().device) return;
  fail(layer, std::string(kernel.name()) + " runs on " + std::string(name(kernel.info().device)) +
                  ", the context is for " + std::string(name(context.device().kind)));
}

void check_owner(const LinearKernel& kernel, const Layer& layer) {
  if (!layer.processed()) fail(layer, "its weights were not processed for a kernel yet");
  if (layer.kernel() != &kernel) {
    fail(layer, "its weights were processed for " + std::string(layer.kernel()->name()) + ", not for " +
                    std::string(kernel.name()));
  }
}

std::unique_ptr<PackedWeights> pack_checked(const LinearKernel& kernel, const Layer& layer, const LayerWeights& weights,
                                            Context& context) {
  std::vector<std::vector<std::byte>> storage;
  const bool may_be_remote = kernel.info().device == DeviceKind::kCuda;
  const LayerWeights here = may_be_remote ? weights_on_host(weights, storage) : weights;
  return kernel.pack(layer.config(), check_weights(layer.config(), here, layer.name()), context);
}

}  // namespace

void LinearKernel::check_unprocessed(const Layer& layer) const {
  if (layer.processed()) {
    fail(layer, "its weights were processed already, for " + std::string(layer.kernel_->name()));
  }
  if (const Support support = can_implement(layer.config_); !support) {
    fail(layer, std::string(name()) + " cannot implement it: " + support.reason());
  }
}

void LinearKernel::process_weights_after_loading(Layer& layer, Context& context) const {
  check_unprocessed(layer);
  check_context(*this, layer, context);
  layer.packed_ = pack_checked(*this, layer, layer.weights_, context);
  layer.kernel_ = this;
  layer.block_offset_k_ = layer.weights_.block_offset_k;
  layer.weights_ = {};
}

void LinearKernel::adopt_packed_weights(Layer& layer, std::span<const PackedSection> sections,
                                        std::shared_ptr<const void> memory) const {
  check_unprocessed(layer);
  const CheckedWeights weights = check_weights_without_codes(layer.config_, layer.weights_, layer.name());
  layer.packed_ = adopt(layer.config_, weights, sections, memory);
  layer.kernel_ = this;
  layer.block_offset_k_ = layer.weights_.block_offset_k;
  layer.weights_ = {};
}

std::unique_ptr<PackedWeights> LinearKernel::adopt(const LayerConfig&, const CheckedWeights&,
                                                   std::span<const PackedSection>,
                                                   const std::shared_ptr<const void>&) const {
  throw InvalidArgument(std::string(name()) + " keeps no packed weights in files");
}

void LinearKernel::apply_weights(const Layer& layer, ConstTensorView x, ConstTensorView bias, TensorView y,
                                 Context& context) const {
  check_owner(*this, layer);
  check_context(*this, layer, context);
  run(*this, layer, {x, nullptr, std::nullopt, bias, y}, layer.block_offset_k_, context);
}

void LinearKernel::apply_weights(const Layer& layer, const QuantizedActivation& x, ConstTensorView bias, TensorView y,
                                 Context& context) const {
  check_owner(*this, layer);
  check_context(*this, layer, context);
  const std::optional<QuantKey> key = input_quant_key(layer.config());
  if (!key) fail(layer, std::string(name()) + " takes no quantized activations for this layer");
  if (*key != x.quant_key) fail(layer, "x is quantized as " + x.quant_key.text() + ", the layer takes " + key->text());
  run(*this, layer, {x.data, &x, key, bias, y}, layer.block_offset_k_, context);
}

std::vector<std::uint8_t> LinearKernel::unpack(const Layer& layer) const {
  check_owner(*this, layer);
  return unpack(layer.config(), layer.packed());
}

Layer::Layer(LayerConfig config, LayerWeights weights, std::string name)
    : name_(std::move(name)), config_(std::move(config)), weights_(std::move(weights)) {}
Layer::~Layer() = default;
Layer::Layer(Layer&&) noexcept = default;
Layer& Layer::operator=(Layer&&) noexcept = default;

const PackedWeights& Layer::packed() const {
  if (packed_ == nullptr) fail(*this, "its weights were not processed for a kernel yet");
  return *packed_;
}

void Layer::refill(LayerWeights weights, Context& context) {
  if (packed_ == nullptr) fail(*this, "its weights were not processed for a kernel yet");
  check_context(*kernel_, *this, context);
  packed_ = pack_checked(*kernel_, *this, weights, context);
  block_offset_k_ = weights.block_offset_k;
}

}  // namespace scaledmm
