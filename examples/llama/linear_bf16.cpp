// The layers of a dense checkpoint with their weights left in bf16.
#include "dense_tensor.hpp"
#include "linear_op.hpp"
#include "scaledmm/dense.hpp"

namespace llama {
namespace {

class Bf16Linear final : public LinearOp {
 public:
  explicit Bf16Linear(scaledmm::DenseLinear layer) : layer_(std::move(layer)) {}
  void apply(const float* x, std::int64_t m, float* y, scaledmm::Context& context) const override {
    layer_.apply({x, scaledmm::DType::kF32, {m, layer_.k()}}, {}, {y, scaledmm::DType::kF32, {m, layer_.n()}}, context);
  }
  std::string kernel() const override { return std::string(layer_.kernel()); }

 private:
  scaledmm::DenseLinear layer_;
};

}  // namespace

std::unique_ptr<LinearOp> load_bf16(const scaledmm::Checkpoint& checkpoint, const LinearParts& parts,
                                    scaledmm::Context& context) {
  std::vector<std::uint16_t> values;
  std::int64_t n = 0;
  for (std::size_t i = 0; i < parts.names.size(); ++i) {
    const auto part = bf16_tensor(checkpoint, parts.names[i] + ".weight", {parts.widths[i], parts.k});
    values.insert(values.end(), part.begin(), part.end());
    n += parts.widths[i];
  }
  return std::make_unique<Bf16Linear>(
      scaledmm::DenseLinear({values.data(), scaledmm::DType::kBF16, {n, parts.k}}, context));
}

}  // namespace llama
