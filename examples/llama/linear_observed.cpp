// A linear layer whose inputs are watched.
#include <utility>

#include "linear_op.hpp"

namespace llama {
namespace {

class ObservedLinear final : public LinearOp {
 public:
  ObservedLinear(std::unique_ptr<LinearOp> op, const LinearParts& parts, scaledmm::Calibration& calibration)
      : op_(std::move(op)), parts_(parts), calibration_(&calibration) {}

  void apply(const float* x, std::int64_t m, float* y, scaledmm::Context& context) const override {
    calibration_->add(parts_.names, {x, scaledmm::DType::kF32, {m, parts_.k}}, context);
    op_->apply(x, m, y, context);
  }

  std::string kernel() const override { return op_->kernel(); }

 private:
  std::unique_ptr<LinearOp> op_;
  LinearParts parts_;
  scaledmm::Calibration* calibration_;
};

}  // namespace

std::unique_ptr<LinearOp> observed(std::unique_ptr<LinearOp> op, const LinearParts& parts,
                                   scaledmm::Calibration& calibration) {
  return std::make_unique<ObservedLinear>(std::move(op), parts, calibration);
}

}  // namespace llama
