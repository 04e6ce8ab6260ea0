#include "cli/bench_layer.hpp"

#include <algorithm>
#include <array>

#include "numerics/formats.hpp"
#include "scaledmm/device.hpp"

namespace scaledmm::cli {
namespace {

constexpr std::int64_t kColdBytes = std::int64_t{512} << 20;

GroupShape weight_group(const LayerConfig& config) {
  if (const auto* int8 = std::get_if<Int8ScaledMMLinearLayerConfig>(&config)) {
    return int8->weight_block.value_or(GroupShape::per_channel());
  }
  return std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.scale.group_shape;
}

DType weight_dtype(const LayerConfig& config) {
  if (std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config)) return DType::kInt8;
  return std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.dtype;
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

}  // namespace

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
    Layer& layer = copies_.emplace_back(config_, weights(codes_.data(), 0, shape_.n), "bench");
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

float BenchLayer::weight(std::int64_t n, std::int64_t k) const {
  const std::uint8_t code = codes_[static_cast<std::size_t>(n * shape_.k + k)];
  const std::int64_t columns = (shape_.k + block_k_ - 1) / block_k_;
  const float scale = scales_[static_cast<std::size_t>(n / block_n_ * columns + k / block_k_)];
  return scale *
         (is_int8() ? static_cast<float>(static_cast<std::int8_t>(code)) : fp8_to_f32(code, weight_dtype(config_)));
}

std::int64_t BenchLayer::weight_bytes() const {
  return static_cast<std::int64_t>(codes_.size() + scales_.size() * sizeof(float));
}

std::int64_t BenchLayer::resident_bytes() const {
  std::int64_t bytes = 0;
  for (const Layer& layer : copies_) bytes += layer.packed().size_bytes();
  return bytes;
}

}  // namespace scaledmm::cli
