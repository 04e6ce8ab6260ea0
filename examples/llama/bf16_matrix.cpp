#include "bf16_matrix.hpp"

#include <cblas.h>

#include <algorithm>
#include <utility>

#include "vector_math.hpp"

namespace llama {
namespace {

// Up to here a pass over the weights for each row of x costs less than widening them in memory.
constexpr std::int64_t kFewRows = 2;
// Rows of W in one task: few enough that the threads finish together, and a widened panel stays in the L2 cache.
constexpr std::int64_t kVectorRows = 96;
constexpr std::int64_t kPanelFloats = 96 << 10;

}  // namespace

Bf16Matrix::Bf16Matrix(std::vector<std::uint16_t> values, std::int64_t n, std::int64_t k)
    : values_(std::move(values)), n_(n), k_(k) {
  openblas_set_num_threads(1);
}

void Bf16Matrix::multiply(const float* x, std::int64_t m, float* y, scaledmm::Context& context) const {
  if (m <= kFewRows) {
    context.parallel((n_ + kVectorRows - 1) / kVectorRows, [&](std::int64_t task) {
      const std::int64_t begin = task * kVectorRows;
      for (std::int64_t i = 0; i < m; ++i) {
        multiply_vector(row(begin), std::min(kVectorRows, n_ - begin), k_, x + i * k_, y + i * n_ + begin);
      }
    });
    return;
  }
  const std::int64_t panel_rows = std::max<std::int64_t>(16, kPanelFloats / k_ / 16 * 16);
  context.parallel((n_ + panel_rows - 1) / panel_rows, [&](std::int64_t task) {
    thread_local std::vector<float> panel;
    const std::int64_t begin = task * panel_rows;
    const std::int64_t rows = std::min(panel_rows, n_ - begin);
    panel.resize(static_cast<std::size_t>(rows * k_));
    widen(row(begin), rows * k_, panel.data());
    const auto k = static_cast<blasint>(k_);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(m), static_cast<blasint>(rows), k, 1, x,
                k, panel.data(), k, 0, y + begin, static_cast<blasint>(n_));
  });
}

}  // namespace llama
