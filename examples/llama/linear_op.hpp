// y = x W^T, the one interface of the decoder's linear layers, and what may stand behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "scaledmm/checkpoint.hpp"

namespace llama {

class LinearOp {
 public:
  virtual ~LinearOp() = default;
  // x [m, k] and y [m, n], f32, packed.
  virtual void apply(const float* x, std::int64_t m, float* y, scaledmm::Context& context) const = 0;
  // What runs, for people: the library's kernel, or the baseline.
  virtual std::string kernel() const = 0;
};

// Layers of one checkpoint that take the same input; their outputs lie side by side. `widths` are their N.
struct LinearParts {
  std::vector<std::string> names;
  std::vector<std::int64_t> widths;
  std::int64_t k = 0;
};

// The layers of a dense checkpoint run in one of two ways. Both take f32 activations and compute in f32.
enum class DenseMath {
  kF32,   // weights widened to f32 when loaded; OpenBLAS
  kBF16,  // weights stay bf16; scaledmm::DenseLinear
};

// scaledmm::Linear, one for all parts where their scales allow it, else one each. `threads` load it. On a GPU x and y
// move there and back at each call.
std::unique_ptr<LinearOp> load_quantized(const scaledmm::Checkpoint& checkpoint, const LinearParts& parts,
                                         const scaledmm::Device& device, int threads);
std::unique_ptr<LinearOp> load_f32(const scaledmm::Checkpoint& checkpoint, const LinearParts& parts);
std::unique_ptr<LinearOp> load_bf16(const scaledmm::Checkpoint& checkpoint, const LinearParts& parts,
                                    scaledmm::Context& context);

// Runs `op`, and adds what it reads to `calibration`, which must outlive it.
std::unique_ptr<LinearOp> observed(std::unique_ptr<LinearOp> op, const LinearParts& parts,
                                   scaledmm::Calibration& calibration);

// OpenBLAS knows CPUs by family and model, and takes the loops of 2004 (Prescott, SSE3) for those that it does not
// know. There this starts the program again, with the loops that the CPU's instructions allow, unless OPENBLAS_CORETYPE
// is set. Errors: std::system_error.
void start_with_fitting_blas(char** argv);

// The name and the chosen core of the BLAS: "OpenBLAS 0.3.21 Haswell".
std::string blas_name();

}  // namespace llama
