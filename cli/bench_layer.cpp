#include "cli/bench_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "numerics/formats.hpp"
#include "scaledmm/device.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/quantize.hpp"

namespace scaledmm::cli {
namespace {

constexpr std::int64_t kColdBytes = std::int64_t{512} << 20;
constexpr double kSampleSeconds = 0.25;  // per kind of sample
constexpr std::size_t kMinSamples = 5;
constexpr std::size_t kMaxSamples = 2000;
constexpr double kSlowSeconds = 2;  // a call that takes longer is timed once

// splitmix64
struct Random {
  std::uint64_t state;
  std::uint64_t next() {
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  // About normal, -126 to 126: the sum of four numbers of 6 bits.
  int bell() {
    const std::uint64_t z = next();
    return static_cast<int>((z & 63) + (z >> 8 & 63) + (z >> 16 & 63) + (z >> 24 & 63)) - 126;
  }
};

bool is_int8(const LayerConfig& config) { return std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config); }

GroupShape weight_group(const LayerConfig& config) {
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
    return int8->weight_block.value_or(GroupShape::per_channel());
  }
  return std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.scale.group_shape;
}

DType weight_dtype(const LayerConfig& config) {
  return is_int8(config) ? DType::kInt8 : std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.dtype;
}

void set_rows(LayerConfig& config, std::int64_t n) {
  std::visit([n](auto& concrete) { concrete.weight_shape.n = n; }, config);
}

std::vector<std::uint8_t> random_codes(DType dtype, std::int64_t count) {
  std::array<std::uint8_t, 256> code_of{};
  for (int i = -126; i <= 126; ++i) {
    code_of[static_cast<std::size_t>(i + 126)] =
        dtype == DType::kInt8 ? static_cast<std::uint8_t>(i) : f32_to_e4m3fn(static_cast<float>(i) / 16);
  }
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
  Random random{1};
  for (std::uint8_t& code : codes) code = code_of[static_cast<std::size_t>(random.bell() + 126)];
  return codes;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double Samples::quantile(double q) const {
  return us[static_cast<std::size_t>(std::lround(q * static_cast<double>(us.size() - 1)))];
}

// Activations and outputs of a call; the quantized form where the kernel takes one.
struct BenchLayer::Activations {
  std::int64_t m = 0;
  DType x_dtype = DType::kBF16;
  DType y_dtype = DType::kBF16;
  std::vector<std::byte> x;
  std::vector<std::byte> y;
  bool has_quantized = false;
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;
  QuantizedActivation quantized;

  ConstTensorView x_view(std::int64_t k) const { return {x.data(), x_dtype, {m, k}}; }
};

BenchLayer::BenchLayer(const LayerConfig& config, const LinearKernel& kernel, bool cold, Context& context)
    : config_(config), kernel_(&kernel), shape_(weight_shape(config)), block_k_(shape_.k) {
  const GroupShape group = weight_group(config);
  if (group.is_block()) {
    block_n_ = group.row;
    block_k_ = group.col;
  }
  codes_ = random_codes(weight_dtype(config), shape_.n * shape_.k);
  const std::int64_t scale_rows = (shape_.n + block_n_ - 1) / block_n_;
  const std::int64_t scale_columns = (shape_.k + block_k_ - 1) / block_k_;
  Random random{2};
  for (std::int64_t i = 0; i < scale_rows * scale_columns; ++i) {
    scales_.push_back(static_cast<float>(200 + random.bell()) * 1e-5f);
  }
  const std::int64_t wanted = cold ? std::max(kColdBytes, 4 * this_cpu().l3_bytes) : 1;
  std::int64_t packed = 0;
  do {
    Layer& layer = layers_.emplace_back(config_, weights(codes_.data(), 0, shape_.n), "bench");
    kernel_->process_weights_after_loading(layer, context);
    packed += std::max<std::int64_t>(layer.packed().size_bytes(), 1);
  } while (packed < wanted);
}

LayerWeights BenchLayer::weights(const std::uint8_t* codes, std::int64_t begin, std::int64_t count) const {
  LayerWeights views;
  const std::int64_t columns = (shape_.k + block_k_ - 1) / block_k_;
  const std::int64_t first = begin / block_n_;
  const std::int64_t rows = (begin + count + block_n_ - 1) / block_n_ - first;
  views.weight = {codes, weight_dtype(config_), {count, shape_.k}};
  views.weight_scale = {scales_.data() + first * columns, DType::kF32, {rows, columns}};
  views.block_offset_n = begin % block_n_;
  return views;
}

std::int64_t BenchLayer::weight_bytes() const {
  return static_cast<std::int64_t>(codes_.size() + scales_.size() * sizeof(float));
}

std::int64_t BenchLayer::resident_bytes() const {
  std::int64_t bytes = 0;
  for (const Layer& layer : layers_) bytes += layer.packed().size_bytes();
  return bytes;
}

LayerTimes BenchLayer::measure(std::int64_t m, Context& context) {
  Activations a;
  a.m = m;
  a.x_dtype = input_dtype(config_);
  a.y_dtype = out_dtype(config_);
  a.x.resize(static_cast<std::size_t>(m * shape_.k * size_bytes(a.x_dtype)));
  a.y.resize(static_cast<std::size_t>(m * shape_.n * size_bytes(a.y_dtype)));
  Random random{3};
  for (std::int64_t i = 0; i < m * shape_.k; ++i) {
    store_f32(static_cast<float>(random.bell()) / 32, a.x.data(), a.x_dtype, i);
  }
  if (const std::optional<QuantKey> key = kernel_->input_quant_key(config_)) {
    const GroupShape group = key->scale.group_shape;
    const std::int64_t columns = group.is_per_group() ? (shape_.k + group.col - 1) / group.col : 1;
    a.has_quantized = true;
    a.codes.resize(static_cast<std::size_t>(m * shape_.k));
    a.scales.resize(static_cast<std::size_t>(m * columns));
    const TensorView codes(a.codes.data(), key->dtype, {m, shape_.k});
    const TensorView scales(a.scales.data(), DType::kF32, columns == 1 ? Shape{m} : Shape{m, columns});
    if (key->dtype == DType::kInt8) {
      TensorView zero_points;
      if (!key->symmetric) {
        a.zero_points.resize(static_cast<std::size_t>(m));
        zero_points = {a.zero_points.data(), DType::kInt32, {m}};
      }
      scaled_int8_quant(a.x_view(shape_.k), {std::nullopt, std::nullopt, key->symmetric}, codes, scales, zero_points);
      a.quantized.zero_point = zero_points;
    } else {
      Fp8QuantOptions options;
      options.group = group;
      scaled_fp8_quant(a.x_view(shape_.k), options, codes, scales);
    }
    a.quantized.data = codes;
    a.quantized.scale = scales;
    a.quantized.quant_key = *key;
  }

  std::size_t turn = 0;
  const auto timed = [&](Samples& samples, bool quantized) {
    const Layer& layer = layers_[turn++ % layers_.size()];
    const TensorView y(a.y.data(), a.y_dtype, {m, shape_.n});
    const auto start = std::chrono::steady_clock::now();
    if (quantized) {
      kernel_->apply_weights(layer, a.quantized, {}, y, context);
    } else {
      kernel_->apply_weights(layer, a.x_view(shape_.k), {}, y, context);
    }
    samples.us.push_back(seconds_since(start) * 1e6);
    return samples.us.back() * 1e-6;
  };

  LayerTimes times;
  Samples warm_up;
  for (int i = 0; i < 2; ++i) {
    const double seconds = timed(warm_up, a.has_quantized && i == 0);
    check(a, context);
    if (seconds > kSlowSeconds) break;
  }
  double spent = 0;
  const double budget = kSampleSeconds * (a.has_quantized ? 2 : 1);
  const std::size_t least = warm_up.us.back() * 1e-6 > kSlowSeconds ? 1 : kMinSamples;
  while (times.apply.us.size() < least || (spent < budget && times.apply.us.size() < kMaxSamples)) {
    if (a.has_quantized) spent += timed(times.gemm, true);
    spent += timed(times.apply, false);
  }
  std::sort(times.apply.us.begin(), times.apply.us.end());
  std::sort(times.gemm.us.begin(), times.gemm.us.end());
  return times;
}

// Outputs at sampled rows and columns against the reference kernel, which is given those rows and those weights alone.
void BenchLayer::check(const Activations& activations, Context& context) const {
  constexpr std::int64_t kColumns = 8;
  const std::int64_t count = std::min(kColumns, shape_.n);
  std::vector<std::int64_t> rows = {0, activations.m / 2, activations.m - 1};
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  std::vector<std::byte> x;
  const std::size_t row_bytes = activations.x.size() / static_cast<std::size_t>(activations.m);
  for (const std::int64_t row : rows) {
    const auto at = activations.x.begin() + row * static_cast<std::int64_t>(row_bytes);
    x.insert(x.end(), at, at + static_cast<std::int64_t>(row_bytes));
  }
  for (const std::int64_t begin : {std::int64_t{0}, (shape_.n - count) / 2, shape_.n - count}) {
    check_columns(activations, rows, x, begin, count, context);
  }
}

void BenchLayer::check_columns(const Activations& activations, const std::vector<std::int64_t>& rows,
                               std::vector<std::byte> x, std::int64_t begin, std::int64_t count,
                               Context& context) const {
  const bool exact = is_int8(config_);
  const auto at = codes_.begin() + begin * shape_.k;
  std::vector<std::uint8_t> codes(at, at + count * shape_.k);
  const std::vector<float> expected = reference_outputs(codes, x, begin, count, context);
  std::vector<float> magnitudes(expected.size());
  if (!exact) {
    // The sum of |x w s|, which bounds the rounding of the sums: the same product without any sign bit.
    const auto width = static_cast<std::size_t>(size_bytes(activations.x_dtype));
    for (std::size_t i = width - 1; i < x.size(); i += width) x[i] &= std::byte{0x7f};
    for (std::uint8_t& code : codes) code &= 0x7f;
    magnitudes = reference_outputs(codes, x, begin, count, context);
  }
  // docs/quantization.md: f32 sums of up to three terms a product, then one rounding of the output.
  const double sums = 0x1p-24 * static_cast<double>(3 * shape_.k + 8);
  const double rounding = activations.y_dtype == DType::kF32    ? 0x1p-24
                          : activations.y_dtype == DType::kBF16 ? 0x1p-8
                                                                : 0x1p-11;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t row = rows[i / static_cast<std::size_t>(count)];
    const std::int64_t column = begin + static_cast<std::int64_t>(i) % count;
    const double got = load_f32(activations.y.data(), activations.y_dtype, row * shape_.n + column);
    const double want = expected[i];
    const double allowed = exact ? 0 : sums * static_cast<double>(magnitudes[i]) + rounding * std::abs(want);
    if (std::abs(got - want) <= allowed) continue;
    throw Error(fmt::format("kernel {}: output [{}, {}] is {}, the reference gives {} (allowed difference {:.3g})",
                            kernel_->name(), row, column, got, want, allowed));
  }
}

std::vector<float> BenchLayer::reference_outputs(const std::vector<std::uint8_t>& codes,
                                                 const std::vector<std::byte>& x, std::int64_t begin,
                                                 std::int64_t count, Context& context) const {
  const LinearKernel* const reference = find_kernel("reference");
  if (reference == nullptr) throw Unsupported("this build has no reference kernel to check the timed outputs with");
  LayerConfig config = config_;
  set_rows(config, count);
  if (auto* fp8 = std::get_if<FP8ScaledMMLinearLayerConfig>(&config)) {
    fp8->out_dtype = DType::kF32;
    // What the timed kernel computes counts: it may leave activations as they are where the layer would quantize them.
    if (kernel_->info().computes == "w8a16") fp8->activation_quant_key.reset();
  }
  const DType out = out_dtype(config);
  Layer layer(config, weights(codes.data(), begin, count), "bench check");
  reference->process_weights_after_loading(layer, context);
  const DType in = input_dtype(config);
  const std::int64_t m = static_cast<std::int64_t>(x.size()) / (shape_.k * size_bytes(in));
  std::vector<std::byte> y(static_cast<std::size_t>(m * count * size_bytes(out)));
  reference->apply_weights(layer, {x.data(), in, {m, shape_.k}}, {}, {y.data(), out, {m, count}}, context);
  std::vector<float> outputs(static_cast<std::size_t>(m * count));
  for (std::int64_t i = 0; i < m * count; ++i) outputs[static_cast<std::size_t>(i)] = load_f32(y.data(), out, i);
  return outputs;
}

}  // namespace scaledmm::cli
