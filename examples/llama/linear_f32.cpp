// The baseline: weights in f32, multiplied by OpenBLAS. Each of our threads makes one single-threaded call for its
// share of the outputs: OpenBLAS's own threads would keep a core busy between calls, which our threads need for
// attention.
#include <cblas.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "dense_tensor.hpp"
#include "linear_op.hpp"

namespace llama {
namespace {

class F32Linear final : public LinearOp {
 public:
  F32Linear(const scaledmm::Checkpoint& checkpoint, const LinearParts& parts) : k_(parts.k) {
    openblas_set_num_threads(1);
    for (std::size_t i = 0; i < parts.names.size(); ++i) {
      const std::vector<float> part = widened_tensor(checkpoint, parts.names[i] + ".weight", {parts.widths[i], k_});
      weights_.insert(weights_.end(), part.begin(), part.end());
      n_ += parts.widths[i];
    }
  }

  void apply(const float* x, std::int64_t m, float* y, scaledmm::Context& context) const override {
    constexpr std::int64_t kColumns = 16;  // of y, which a share is a multiple of: one cache line
    const std::int64_t shares = std::min<std::int64_t>(context.threads(), (n_ + kColumns - 1) / kColumns);
    const std::int64_t share = ((n_ + shares - 1) / shares + kColumns - 1) / kColumns * kColumns;
    context.parallel(shares, [&](std::int64_t task) {
      const std::int64_t begin = task * share;
      const std::int64_t columns = std::min(share, n_ - begin);
      if (columns <= 0) return;
      const auto count = static_cast<blasint>(columns);
      const auto k = static_cast<blasint>(k_);
      const float* w = weights_.data() + begin * k_;
      if (m == 1) {
        cblas_sgemv(CblasRowMajor, CblasNoTrans, count, k, 1, w, k, x, 1, 0, y + begin, 1);
      } else {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(m), count, k, 1, x, k, w, k, 0,
                    y + begin, static_cast<blasint>(n_));
      }
    });
  }

  std::string kernel() const override { return "OpenBLAS sgemm / sgemv"; }

 private:
  std::int64_t n_ = 0;
  std::int64_t k_;
  std::vector<float> weights_;
};

}  // namespace

std::unique_ptr<LinearOp> load_f32(const scaledmm::Checkpoint& checkpoint, const LinearParts& parts) {
  return std::make_unique<F32Linear>(checkpoint, parts);
}

void start_with_fitting_blas(char** argv) {
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || openblas_get_corename() != std::string("Prescott")) return;
  const scaledmm::CpuFeatures cpu = scaledmm::this_cpu().cpu;
  if (!cpu.avx2) return;
  setenv("OPENBLAS_CORETYPE", cpu.avx512 ? "SkylakeX" : "Haswell", 1);
  execv("/proc/self/exe", argv);
  throw std::system_error(errno, std::generic_category(), "cannot start again with another OPENBLAS_CORETYPE");
}

std::string blas_name() {
  const std::string config = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
  return config.substr(0, config.find(' ', config.find(' ') + 1)) + " " + openblas_get_corename();
}

}  // namespace llama
