#include "cublaslt_peer.hpp"

namespace scaledmm::bench {
namespace {

void check_lt(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "%s: cublas status %d\n", what, static_cast<int>(status));
  std::exit(1);
}

template <typename T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_lt(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value),
           "cublasLtMatmulDescSetAttribute");
}

}  // namespace

std::unique_ptr<CublasLtPeer> CublasLtPeer::create(cublasLtHandle_t handle, PeerKind kind, std::int64_t m,
                                                   std::int64_t n, std::int64_t k, const float* sx, const float* sw) {
  std::unique_ptr<CublasLtPeer> peer(new CublasLtPeer);
  const bool int8 = kind == PeerKind::kInt8, bf16 = kind == PeerKind::kBfloat16;
  const cudaDataType_t in = int8 ? CUDA_R_8I : bf16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
  const cudaDataType_t out = int8 ? CUDA_R_32I : CUDA_R_16BF;
  peer->handle_ = handle;
  peer->int8_ = int8;
  peer->m_ = int8 ? (m + 15) / 16 * 16 : m;
  peer->y_bytes_ = peer->m_ * n * (int8 ? 4 : 2);
  // Column-major: y^T [N, M] = w (stored [K, N], transposed) times x^T [K, M].
  check_lt(cublasLtMatmulDescCreate(&peer->operation_, int8 ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                                    int8 ? CUDA_R_32I : CUDA_R_32F),
           "cublasLtMatmulDescCreate");
  set(peer->operation_, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (!int8 && !bf16) {
    set(peer->operation_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, sw);
    set(peer->operation_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, sx);
    if (kind == PeerKind::kFp8RowWise) {
      set(peer->operation_, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
      set(peer->operation_, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    }
    set(peer->operation_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(kind != PeerKind::kFp8));
  }
  check_lt(cublasLtMatrixLayoutCreate(&peer->a_, in, k, n, k), "layout");
  check_lt(cublasLtMatrixLayoutCreate(&peer->b_, in, k, peer->m_, k), "layout");
  check_lt(cublasLtMatrixLayoutCreate(&peer->d_, out, n, peer->m_, n), "layout");
  cublasLtMatmulPreference_t preference;
  check_lt(cublasLtMatmulPreferenceCreate(&preference), "preference");
  const std::size_t workspace = 64 << 20;
  check_lt(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                sizeof workspace),
           "preference");
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, peer->operation_, peer->a_, peer->b_, peer->d_,
                                                               peer->d_, preference, 1, &result, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0) return nullptr;
  peer->algorithm_ = result.algo;
  return peer;
}

CublasLtPeer::~CublasLtPeer() {
  if (a_) cublasLtMatrixLayoutDestroy(a_);
  if (b_) cublasLtMatrixLayoutDestroy(b_);
  if (d_) cublasLtMatrixLayoutDestroy(d_);
  if (operation_) cublasLtMatmulDescDestroy(operation_);
}

std::string CublasLtPeer::algorithm() const {
  constexpr struct {
    const char* name;
    cublasLtMatmulAlgoConfigAttributes_t attribute;
    std::size_t bytes;
  } kParts[] = {{"id", CUBLASLT_ALGO_CONFIG_ID, 4},
                {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
                {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
                {"split", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
                {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
                {"option", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
                {"shape", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
                {"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
  std::string text;
  for (const auto& part : kParts) {
    std::int32_t value = 0;  // little-endian: also what two bytes are written into
    std::size_t written = 0;
    check_lt(cublasLtMatmulAlgoConfigGetAttribute(&algorithm_, part.attribute, &value, part.bytes, &written),
             "cublasLtMatmulAlgoConfigGetAttribute");
    text += (text.empty() ? "" : ", ") + std::string(part.name) + ' ' + std::to_string(value);
  }
  return text;
}

void CublasLtPeer::run(const void* x, const void* w, void* y, const Buffer& workspace, cudaStream_t stream) const {
  const float one = 1, zero = 0;
  const std::int32_t int_one = 1, int_zero = 0;
  check_lt(cublasLtMatmul(handle_, operation_, int8_ ? static_cast<const void*>(&int_one) : &one, w, a_, x, b_,
                          int8_ ? static_cast<const void*>(&int_zero) : &zero, y, d_, y, d_, &algorithm_,
                          workspace.data(), workspace.size(), stream),
           "cublasLtMatmul");
}

}  // namespace scaledmm::bench
