// cuBLASLt on the same operands: y = x w^T, algorithm by its heuristic with 64 MB of workspace.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string>

#include "device_data.hpp"

namespace scaledmm::bench {

enum class PeerKind { kFp8, kFp8Fast, kFp8RowWise, kInt8, kBfloat16 };

class CublasLtPeer {
 public:
  // Null where the heuristic knows no algorithm. M of INT8 is padded to a multiple of 16, as the library asks for.
  static std::unique_ptr<CublasLtPeer> create(cublasLtHandle_t handle, PeerKind kind, std::int64_t m, std::int64_t n,
                                              std::int64_t k, const float* sx, const float* sw);
  ~CublasLtPeer();

  // x [M, K], w [N, K], both contiguous; y [M, N]: bf16, or int32 for INT8.
  void run(const void* x, const void* w, void* y, const Buffer& workspace, cudaStream_t stream) const;
  std::int64_t y_bytes() const { return y_bytes_; }
  std::int64_t padded_m() const { return m_; }
  // What the heuristic chose, as the numbers of cublasLt's enumerations.
  std::string algorithm() const;

 private:
  CublasLtPeer() = default;
  cublasLtHandle_t handle_ = nullptr;
  bool int8_ = false;
  std::int64_t m_ = 0, y_bytes_ = 0;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace scaledmm::bench
