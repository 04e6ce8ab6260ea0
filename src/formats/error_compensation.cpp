#include "formats/error_compensation.hpp"

#include <Eigen/Cholesky>
#include <algorithm>
#include <array>
#include <numeric>

#include "formats/converted_weight.hpp"
#include "formats/row_matrix.hpp"
#include "numerics/formats.hpp"
#include "numerics/weight_scale.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

constexpr double kDamping = 0.01;      // of the mean diagonal, as in GPTQ
constexpr std::int64_t kRows = 64;     // of a weight that are rounded together
constexpr std::int64_t kColumns = 64;  // whose errors reach the columns behind them in one matrix product

using Matrix64 = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

ErrorCompensation prepare_compensation(std::span<const float> gram, std::int64_t k) {
  ErrorCompensation result;
  result.order.resize(static_cast<std::size_t>(k));
  std::iota(result.order.begin(), result.order.end(), std::int64_t{0});
  const auto at = [&](std::int64_t i, std::int64_t j) { return gram[static_cast<std::size_t>(i * k + j)]; };
  std::ranges::stable_sort(result.order, [&](std::int64_t a, std::int64_t b) { return at(a, a) > at(b, b); });

  // With the columns reversed, H = L L^T gives H^-1 = (L^-1)^T L^-1, and L^-1 turned back is the U wanted.
  double mean = 0;
  for (std::int64_t i = 0; i < k; ++i) mean += at(i, i) / static_cast<double>(k);
  const auto column = [&](std::int64_t i) { return result.order[static_cast<std::size_t>(k - 1 - i)]; };
  Matrix64 h(k, k);
  for (std::int64_t i = 0; i < k; ++i) {
    for (std::int64_t j = 0; j < k; ++j) h(i, j) = at(column(i), column(j));
    h(i, i) += mean > 0 ? kDamping * mean : 1.0;
  }
  const Eigen::LLT<Eigen::Ref<Matrix64>> factored(h);  // in place: h becomes L
  if (factored.info() != Eigen::Success) throw InvalidArgument("a Gram matrix is not positive semidefinite");
  Matrix64 inverse = Matrix64::Identity(k, k);
  for (std::int64_t begin = 0; begin < k; begin += kColumns) {  // above its diagonal a column of L^-1 is zero
    const std::int64_t left = k - begin, columns = std::min(kColumns, left);
    Eigen::Block<Matrix64> below = inverse.block(begin, begin, left, columns);
    h.bottomRightCorner(left, left).triangularView<Eigen::Lower>().solveInPlace(below);
  }
  result.factor.resize(static_cast<std::size_t>(k * k));
  Eigen::Map<RowMatrix>(result.factor.data(), k, k) = inverse.reverse().cast<float>();
  return result;
}

void round_with_compensation(ConstTensorView w, GroupShape group, const ErrorCompensation& inputs,
                             QuantizedWeight& weight) {
  const std::int64_t k = weight.k;
  const Eigen::Map<const RowMatrix> u(inputs.factor.data(), k, k);
  const std::array<float, 256> values = code_values(weight.dtype);
  for (std::int64_t first = 0; first < weight.n; first += kRows) {
    const std::int64_t rows = std::min(kRows, weight.n - first);
    RowMatrix rest(rows, k);  // the weights with what was taken over, columns in order
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < k; ++j) {
        rest(i, j) = load_f32(w.data, w.dtype, (first + i) * w.strides[0] + inputs.order[static_cast<std::size_t>(j)]);
      }
    }
    std::vector<ScaleRow> scales;
    for (std::int64_t i = 0; i < rows; ++i) scales.push_back(scale_row(weight, group, first + i));
    RowMatrix errors(rows, kColumns);
    for (std::int64_t begin = 0; begin < k; begin += kColumns) {
      const std::int64_t end = std::min(k, begin + kColumns);
      for (std::int64_t j = begin; j < end; ++j) {
        const std::int64_t column = inputs.order[static_cast<std::size_t>(j)];
        for (std::int64_t i = 0; i < rows; ++i) {
          const ScaleRow& of_row = scales[static_cast<std::size_t>(i)];
          const float scale = of_row.scales[column / of_row.columns];
          const std::uint8_t code = scale == 0.0f ? 0 : quantize_weight_value(rest(i, j), scale, weight.dtype);
          weight.bytes[static_cast<std::size_t>((first + i) * k + column)] = code;
          errors(i, j - begin) = (rest(i, j) - values[code] * scale) / u(j, j);
        }
        const std::int64_t left = end - j - 1;
        rest.middleCols(j + 1, left).noalias() -= errors.col(j - begin) * u.row(j).segment(j + 1, left);
      }
      subtract_product(errors.leftCols(end - begin), u.block(begin, end, end - begin, k - end),
                       rest.rightCols(k - end));
    }
  }
}

}  // namespace scaledmm
