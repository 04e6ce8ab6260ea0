#include "cli/smoke.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "cli/apply_where_it_runs.hpp"
#include "numerics/formats.hpp"
#include "numerics/fp8_scale.hpp"
#include "numerics/int8.hpp"

namespace scaledmm::cli {
namespace {

constexpr std::int64_t kRows = 3;

// One row of the weight as numbers.
void dequantize_row(const CheckedWeights& weights, std::int64_t n, std::vector<double>& row) {
  const std::uint8_t* const codes = weights.bytes + n * weights.row_pitch;
  for (std::int64_t k = 0; k < weights.k; ++k) {
    const double code = weights.dtype == DType::kInt8 ? static_cast<double>(static_cast<std::int8_t>(codes[k]))
                                                      : static_cast<double>(fp8_to_f32(codes[k], weights.dtype));
    row[static_cast<std::size_t>(k)] = code * static_cast<double>(weights.scale(n, k));
  }
}

// Rounding the activations to 8 bits costs about 1 % for INT8 and 3 % for FP8 when they are normal, rounding the output
// to 16 bits 0.1 %. Twice or three times that is a fault.
double error_bound(const LinearKernel& kernel, const LayerConfig& config) {
  constexpr double kInt8 = 0.03;
  constexpr double kFp8 = 0.08;
  constexpr double kOutput = 1.0 / 256;
  if (kernel.info().computes == "w8a16") return kOutput;
  if (std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config)) return kInt8;
  return std::get<FP8ScaledMMLinearLayerConfig>(config).activation_quant_key ? kFp8 : kOutput;
}

// The least positive number of f32, bf16 or f16, whose code is 1.
double least_positive(DType dtype) {
  const std::uint32_t code = 1;
  return static_cast<double>(load_f32(&code, dtype, 0));
}

// What an output may be off however small it is: rounded to its type, after a product with each scale was rounded to
// f32.
double least_error(const CheckedWeights& weights, DType out) {
  return least_positive(out) / 2 + static_cast<double>(weights.scale_columns) * least_positive(DType::kF32);
}

// Activations of the size that a static scale was made for; without one any size will do.
std::normal_distribution<float> activations(const CheckedWeights& weights) {
  constexpr float kDeviations = 4;  // of the normal distribution, to the largest code
  if (!weights.input_scale) return std::normal_distribution<float>(0, 1);
  const float largest = weights.dtype == DType::kInt8 ? static_cast<float>(kInt8Max) : fp8_quantized_max(weights.dtype);
  const float centre = -*weights.input_scale * static_cast<float>(weights.input_zero_point);
  return std::normal_distribution<float>(centre, *weights.input_scale * largest / kDeviations);
}

}  // namespace

SmokeResult smoke_check(const Checkpoint& checkpoint, const LayerRecord& record, const Linear& linear,
                        Context& context) {
  const CheckedWeights weights = check_weights(record.config, checkpoint.weights(record), record.name);
  const DType in = input_dtype(record.config);
  const DType out = out_dtype(record.config);

  std::vector<std::byte> x(static_cast<std::size_t>(kRows * record.k * size_bytes(in)));
  std::vector<double> x_values(static_cast<std::size_t>(kRows * record.k));
  std::mt19937 random(1);
  std::normal_distribution<float> normal = activations(weights);
  double x_square = 0;
  for (std::int64_t i = 0; i < kRows * record.k; ++i) {
    store_f32(normal(random), x.data(), in, i);
    const double value = load_f32(x.data(), in, i);
    x_values[static_cast<std::size_t>(i)] = value;
    x_square += value * value / static_cast<double>(kRows * record.k);
  }
  std::vector<std::byte> y(static_cast<std::size_t>(kRows * record.n * size_bytes(out)));
  apply_where_it_runs(linear, {x.data(), in, {kRows, record.k}}, {y.data(), out, {kRows, record.n}}, context);

  double error_square = 0;
  double expected_square = 0;
  const double least = least_error(weights, out);
  std::vector<double> row(static_cast<std::size_t>(record.k));
  const auto* bias = static_cast<const float*>(linear.bias().data);
  for (std::int64_t n = 0; n < record.n; ++n) {
    dequantize_row(weights, n, row);
    double row_square = 0;
    for (const double w : row) row_square += w * w;
    for (std::int64_t m = 0; m < kRows; ++m) {
      double sum = bias == nullptr ? 0 : static_cast<double>(bias[n]);
      const double* const values = x_values.data() + m * record.k;
      for (std::int64_t k = 0; k < record.k; ++k) sum += values[k] * row[static_cast<std::size_t>(k)];
      const double difference =
          std::max(0.0, std::abs(static_cast<double>(load_f32(y.data(), out, m * record.n + n)) - sum) - least);
      error_square += difference * difference;
      // An output may be small by chance; its error is not.
      expected_square += std::max(x_square * row_square, sum * sum);
    }
  }
  SmokeResult result;
  result.layer = record.name;
  result.scheme = record.scheme;
  result.kernel = linear.kernel().name();
  result.relative_error = std::sqrt(expected_square > 0 ? error_square / expected_square : error_square);
  result.bound = error_bound(linear.kernel(), record.config);
  return result;
}

}  // namespace scaledmm::cli
