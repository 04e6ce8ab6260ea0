// The layers of a dense checkpoint with their weights left in bf16.
#include "bf16_matrix.hpp"
#include "dense_tensor.hpp"
#include "linear_op.hpp"

namespace llama {
namespace {

class Bf16Linear final : public LinearOp {
 public:
  explicit Bf16Linear(Bf16Matrix matrix) : matrix_(std::move(matrix)) {}
  void apply(const float* x, std::int64_t m, float* y, scaledmm::Context& context) const override {
    matrix_.multiply(x, m, y, context);
  }
  std::string kernel() const override { return "bf16 weights, OpenBLAS sgemm / own loop"; }

 private:
  Bf16Matrix matrix_;
};

}  // namespace

std::unique_ptr<LinearOp> load_bf16(const scaledmm::Checkpoint& checkpoint, const LinearParts& parts) {
  std::vector<std::uint16_t> values;
  std::int64_t n = 0;
  for (std::size_t i = 0; i < parts.names.size(); ++i) {
    const auto part = bf16_tensor(checkpoint, parts.names[i] + ".weight", {parts.widths[i], parts.k});
    values.insert(values.end(), part.begin(), part.end());
    n += parts.widths[i];
  }
  return std::make_unique<Bf16Linear>(Bf16Matrix(std::move(values), n, parts.k));
}

}  // namespace llama
