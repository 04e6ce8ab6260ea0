// The part of cuBLASLt's C interface that is called, so that building needs neither its headers nor its library (half a
// gigabyte). Source: cuBLAS 13.0 documentation, "Using the cuBLASLt API". Where the vendor's header is at hand, the
// assertions at the end check the values against it.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

namespace scaledmm::cuda::cublaslt {

using Handle = void*;
using Descriptor = void*;
using Layout = void*;
using Preference = void*;

struct Algorithm {
  std::uint64_t data[8];
};

struct Heuristic {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

enum : int { kSuccess = 0 };
enum : int { kCompute32F = 68, kCompute32I = 72 };
enum : int { kTransposeA = 3, kScaleA = 17, kScaleB = 18 };  // of a descriptor
enum : int { kMaxWorkspaceBytes = 1 };                       // of a preference
enum : std::int32_t { kTransposed = 1 };

struct Library {
  int (*create)(Handle*);
  int (*create_descriptor)(Descriptor*, int compute, cudaDataType_t scale);
  int (*set_descriptor)(Descriptor, int attribute, const void* value, std::size_t bytes);
  int (*create_layout)(Layout*, cudaDataType_t type, std::uint64_t rows, std::uint64_t columns, std::int64_t stride);
  int (*create_preference)(Preference*);
  int (*destroy_preference)(Preference);
  int (*set_preference)(Preference, int attribute, const void* value, std::size_t bytes);
  int (*find)(Handle, Descriptor, Layout a, Layout b, Layout c, Layout d, Preference, int wanted, Heuristic* results,
              int* found);
  int (*multiply)(Handle, Descriptor, const void* alpha, const void* a, Layout, const void* b, Layout, const void* beta,
                  const void* c, Layout, void* d, Layout, const Algorithm*, void* workspace,
                  std::size_t workspace_bytes, cudaStream_t);
};

#if __has_include(<cublasLt.h>)
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(Heuristic, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(Heuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(kSuccess == int{CUBLAS_STATUS_SUCCESS} && kTransposed == std::int32_t{CUBLAS_OP_T});
static_assert(kCompute32F == int{CUBLAS_COMPUTE_32F} && kCompute32I == int{CUBLAS_COMPUTE_32I});
static_assert(kTransposeA == int{CUBLASLT_MATMUL_DESC_TRANSA} && kScaleA == int{CUBLASLT_MATMUL_DESC_A_SCALE_POINTER} &&
              kScaleB == int{CUBLASLT_MATMUL_DESC_B_SCALE_POINTER});
static_assert(kMaxWorkspaceBytes == int{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES});
#endif

}  // namespace scaledmm::cuda::cublaslt
