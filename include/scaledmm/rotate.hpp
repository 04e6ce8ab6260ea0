// Rotating a dense model so that it quantizes better.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "scaledmm/calibration.hpp"

namespace scaledmm {

struct RotateOptions {
  std::uint64_t seed = 0;  // of the signs in the rotation
  // Of the source's inputs, held by the caller; given, the inputs of mlp.down_proj are smoothed.
  const Calibration* calibration = nullptr;
  std::function<void(std::size_t done, std::size_t total, std::string_view tensor)> progress;
  // Told before the long work, a line each: what of the folder is not copied.
  std::function<void(const std::string& warning)> warn;
};

// Writes a dense Llama-like checkpoint (model types llama, mistral, qwen2, qwen3) as another that computes the same:
// the gains of the norms go into the layers behind them, and an orthogonal matrix Q is folded into everything that
// writes or reads the residual stream, so that no channel of it stands out; R does the same for values, in each head. A
// head tied to the embedding becomes a tensor of its own, since the last norm's gain is only in the one. Ashkboos et
// al., QuaRot (2024). Q = diag(signs) (D (x) H): H the Hadamard matrix of the largest power of two in the size, D the
// orthonormal cosine transform of the odd factor. What down_proj reads is a product, through which no rotation folds,
// but scales do: with a calibration, column j of down_proj is multiplied and row j of up_proj divided by s_j = (G_jj /
// sum_i w_ij^2)^(1/4), of geometric mean 1. For outputs w x of which x is rounded with a step that follows its largest
// value, s minimises E[sum_j (x_j / s_j)^2] * sum_ij (w_ij s_j)^2, a bound on the squared error, as SmoothQuant's
// exponent 0.5 does for the largest values (Xiao et al., 2023). Tensors keep their dtypes. Computed in f32. Written
// under a temporary name and renamed at the end, as convert() does. Errors: CheckpointError for a missing tensor or a
// wrong shape; Unsupported for another model type, a source that is quantized, or a tensor that is none of a plain
// decoder's; InvalidArgument for a destination that exists, or a calibration of another model, without an input of
// a down_proj or with another K for it; IoError.
void rotate(const std::filesystem::path& source, const std::filesystem::path& destination,
            const RotateOptions& options = {});

}  // namespace scaledmm
