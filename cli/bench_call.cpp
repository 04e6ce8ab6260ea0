#include "cli/bench_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "numerics/formats.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/quantize.hpp"
#include "scaledmm/registry.hpp"

namespace scaledmm::cli {
namespace {

constexpr double kSampleSeconds = 0.25;  // per kind of sample
constexpr std::size_t kMinSamples = 5;
constexpr std::size_t kMaxSamples = 2000;
constexpr double kSlowSeconds = 2;  // a call that takes longer is timed once

void set_rows(LayerConfig& config, std::int64_t n) {
  std::visit([n](auto& concrete) { concrete.weight_shape.n = n; }, config);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void Samples::sort() { std::sort(us.begin(), us.end()); }

double Samples::quantile(double q) const {
  return us[static_cast<std::size_t>(std::lround(q * static_cast<double>(us.size() - 1)))];
}

BenchCall::BenchCall(const BenchLayer& layer, std::int64_t m, Context& context)
    : layer_(&layer),
      context_(&context),
      m_(m),
      x_dtype_(input_dtype(layer.config())),
      y_dtype_(out_dtype(layer.config())) {
  const auto [n, k] = layer.shape();
  x_.resize(static_cast<std::size_t>(m * k * size_bytes(x_dtype_)));
  y_.resize(static_cast<std::size_t>(m * n * size_bytes(y_dtype_)));
  Random random{3};
  for (std::int64_t i = 0; i < m * k; ++i) store_f32(static_cast<float>(random.bell()) / 32, x_.data(), x_dtype_, i);
  if (const std::optional<QuantKey> key = layer.kernel().input_quant_key(layer.config())) quantize(*key);
}

void BenchCall::quantize(const QuantKey& key) {
  const std::int64_t k = layer_->shape().k;
  const GroupShape group = key.scale.group_shape;
  const std::int64_t columns = group.is_per_group() ? (k + group.col - 1) / group.col : 1;
  has_gemm_ = true;
  codes_.resize(static_cast<std::size_t>(m_ * k));
  scales_.resize(static_cast<std::size_t>(m_ * columns));
  const TensorView codes(codes_.data(), key.dtype, {m_, k});
  const TensorView scales(scales_.data(), DType::kF32, columns == 1 ? Shape{m_} : Shape{m_, columns});
  if (key.dtype == DType::kInt8) {
    TensorView zero_points;
    if (!key.symmetric) {
      zero_points_.resize(static_cast<std::size_t>(m_));
      zero_points = {zero_points_.data(), DType::kInt32, {m_}};
    }
    scaled_int8_quant(x_view(), {std::nullopt, std::nullopt, key.symmetric}, codes, scales, zero_points);
    quantized_.zero_point = zero_points;
  } else {
    Fp8QuantOptions options;
    options.group = group;
    scaled_fp8_quant(x_view(), options, codes, scales);
  }
  quantized_.data = codes;
  quantized_.scale = scales;
  quantized_.quant_key = key;
}

ConstTensorView BenchCall::x_view() const { return {x_.data(), x_dtype_, {m_, layer_->shape().k}}; }

float BenchCall::x(std::int64_t row, std::int64_t k) const {
  return load_f32(x_.data(), x_dtype_, row * layer_->shape().k + k);
}

float BenchCall::y(std::int64_t row, std::int64_t n) const {
  return load_f32(y_.data(), y_dtype_, row * layer_->shape().n + n);
}

double BenchCall::time(bool gemm) {
  const Layer& copy = layer_->copies()[turn_++ % layer_->copies().size()];
  const TensorView y(y_.data(), y_dtype_, {m_, layer_->shape().n});
  const auto start = std::chrono::steady_clock::now();
  if (gemm) {
    layer_->kernel().apply_weights(copy, quantized_, {}, y, *context_);
  } else {
    layer_->kernel().apply_weights(copy, x_view(), {}, y, *context_);
  }
  return seconds_since(start);
}

LayerTimes BenchCall::measure() {
  LayerTimes times;
  double last = 0;
  for (int i = 0; i < 2; ++i) {
    last = time(has_gemm_ && i == 0);
    check();
    if (last > kSlowSeconds) break;
  }
  double spent = 0;
  const double budget = kSampleSeconds * (has_gemm_ ? 2 : 1);
  const std::size_t least = last > kSlowSeconds ? 1 : kMinSamples;
  const auto sample = [&](Samples& samples, bool gemm) {
    const double seconds = time(gemm);
    samples.us.push_back(seconds * 1e6);
    spent += seconds;
  };
  while (times.apply.us.size() < least || (spent < budget && times.apply.us.size() < kMaxSamples)) {
    if (has_gemm_) sample(times.gemm, true);
    sample(times.apply, false);
  }
  times.apply.sort();
  times.gemm.sort();
  return times;
}

// The reference kernel is given the sampled rows and columns alone.
void BenchCall::check() const {
  constexpr std::int64_t kColumns = 8;
  const std::int64_t n = layer_->shape().n;
  const std::int64_t count = std::min(kColumns, n);
  std::vector<std::int64_t> rows = {0, m_ / 2, m_ - 1};
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  std::vector<std::byte> x;
  const std::size_t row_bytes = x_.size() / static_cast<std::size_t>(m_);
  for (const std::int64_t row : rows) {
    const auto at = x_.begin() + row * static_cast<std::int64_t>(row_bytes);
    x.insert(x.end(), at, at + static_cast<std::int64_t>(row_bytes));
  }
  for (const std::int64_t begin : {std::int64_t{0}, (n - count) / 2, n - count}) {
    check_columns(rows, x, begin, count);
  }
}

void BenchCall::check_columns(const std::vector<std::int64_t>& rows, std::vector<std::byte> x, std::int64_t begin,
                              std::int64_t count) const {
  const bool exact = layer_->is_int8();
  const std::int64_t k = layer_->shape().k;
  const auto at = layer_->codes().begin() + begin * k;
  std::vector<std::uint8_t> codes(at, at + count * k);
  const std::vector<float> expected = reference_outputs(codes, x, begin, count);
  std::vector<float> magnitudes(expected.size());
  if (!exact) {
    // The sum of |x w s|, which bounds the rounding of the sums: the same product without any sign bit.
    const auto width = static_cast<std::size_t>(size_bytes(x_dtype_));
    for (std::size_t i = width - 1; i < x.size(); i += width) x[i] &= std::byte{0x7f};
    for (std::uint8_t& code : codes) code &= 0x7f;
    magnitudes = reference_outputs(codes, x, begin, count);
  }
  // docs/quantization.md: f32 sums of up to three terms a product, then one rounding of the output.
  const double sums = 0x1p-24 * static_cast<double>(3 * k + 8);
  const double rounding = y_dtype_ == DType::kF32 ? 0x1p-24 : y_dtype_ == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t row = rows[i / static_cast<std::size_t>(count)];
    const std::int64_t column = begin + static_cast<std::int64_t>(i) % count;
    const double got = y(row, column);
    const double want = expected[i];
    const double allowed = exact ? 0 : sums * static_cast<double>(magnitudes[i]) + rounding * std::abs(want);
    if (std::abs(got - want) <= allowed) continue;
    throw Error(fmt::format("kernel {}: output [{}, {}] is {}, the reference gives {} (allowed difference {:.3g})",
                            layer_->kernel().name(), row, column, got, want, allowed));
  }
}

std::vector<float> BenchCall::reference_outputs(const std::vector<std::uint8_t>& codes, const std::vector<std::byte>& x,
                                                std::int64_t begin, std::int64_t count) const {
  const LinearKernel* const reference = find_kernel("reference");
  if (reference == nullptr) throw Unsupported("this build has no reference kernel to check the timed outputs with");
  LayerConfig config = layer_->config();
  set_rows(config, count);
  if (auto* fp8 = std::get_if<FP8ScaledMMLinearLayerConfig>(&config)) {
    fp8->out_dtype = DType::kF32;
    // What the timed kernel computes counts: it may leave activations as they are where the layer would quantize them.
    if (layer_->kernel().info().computes == "w8a16") fp8->activation_quant_key.reset();
  }
  const DType out = out_dtype(config);
  Layer layer(config, layer_->weights(codes.data(), begin, count), "bench check");
  reference->process_weights_after_loading(layer, *context_);
  const DType in = input_dtype(config);
  const std::int64_t m = static_cast<std::int64_t>(x.size()) / (layer_->shape().k * size_bytes(in));
  std::vector<std::byte> outputs_bytes(static_cast<std::size_t>(m * count * size_bytes(out)));
  reference->apply_weights(layer, {x.data(), in, {m, layer_->shape().k}}, {}, {outputs_bytes.data(), out, {m, count}},
                           *context_);
  std::vector<float> outputs(static_cast<std::size_t>(m * count));
  for (std::int64_t i = 0; i < m * count; ++i)
    outputs[static_cast<std::size_t>(i)] = load_f32(outputs_bytes.data(), out, i);
  return outputs;
}

}  // namespace scaledmm::cli
