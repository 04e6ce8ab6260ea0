// What the library and its CUDA module say to each other: plain structures and C functions, one table with a version.
// The library is compiled without CUDA's headers and opens the module when a GPU is asked for.
//
// Every function takes the device that it is for and leaves the thread's current device as it was. It returns nullptr,
// or the text of what failed: "cudaMalloc: out of memory (2)", valid until the thread's next failure. Functions with a
// stream only put work on it; they neither allocate nor wait, and may be captured into a graph.
#pragma once

#include <cstdint>

#include "scaledmm/dtype.hpp"

namespace scaledmm::cuda {

// Raised with every change of this file.
inline constexpr std::uint32_t kModuleVersion = 3;

using Failure = const char*;

struct Place {
  int device;
  void* stream;  // cudaStream_t
};

struct DeviceProperties {
  char name[256];
  int capability;  // major * 10 + minor
  int multiprocessors;
  std::int64_t memory_bytes;
};

inline constexpr int kMaxDimensions = 8;

// Rows of a tensor with any strides: row r, counted row-major through `dimensions` leading dimensions.
struct StridedRows {
  void* data;
  int dimensions;
  std::int64_t sizes[kMaxDimensions];
  std::int64_t stride_bytes[kMaxDimensions];
};

// f32, bf16 or f16 activations [m, k].
struct ActivationRows {
  const void* data;
  DType dtype;
  std::int64_t m, k;
  std::int64_t stride;  // elements
};

struct QuantizeInt8 {
  ActivationRows x;
  bool is_static;
  bool symmetric;
  float scale;              // static
  std::int32_t zero_point;  // static, asymmetric
  std::int8_t* q;           // rows q_stride apart; columns [k, q_columns) get the code of 0
  std::int64_t q_columns, q_stride;
  float* scale_out;              // dynamic: [m]
  std::int32_t* zero_point_out;  // dynamic, asymmetric: [m]
};

enum class Fp8Scheme : std::uint8_t { kStaticTensor, kDynamicTensor, kDynamicToken, kDynamicGroup };

struct QuantizeFp8 {
  ActivationRows x;
  Fp8Scheme scheme;
  DType dtype;                       // e4m3fn, e4m3fnuz or e5m2
  float scale;                       // static
  float upper_bound;                 // per token, of the absmax; infinite without one
  std::int64_t group, group_offset;  // the first group begins group_offset columns before column 0
  bool ue8m0;
  std::uint8_t* q;  // rows q_stride apart; columns [k, q_columns) get the code of 0
  std::int64_t q_columns, q_stride;
  // dynamic: [1], [m] or [m, groups]; f32, or e8m0 codes for groups with ue8m0.
  void* scale_out;
  DType scale_dtype;
  std::int64_t scale_row_stride, scale_column_stride;  // elements
  std::uint32_t* absmax;                               // per tensor: one word of scratch memory,
  std::uint32_t* counters;                             // and three at zero, which are left at zero
};

// Rows that a GEMM's own launch quantizes, per token or under one static scale, to the bits of the functions above:
// bf16 or f16, k a multiple of 8, every row aligned to 16 bytes.
struct FusedRows {
  ActivationRows x;
  bool is_static;
  bool symmetric;           // INT8
  float scale;              // static
  std::int32_t zero_point;  // static, asymmetric
  float upper_bound;        // FP8, dynamic: of the absmax; infinite without one
  // One row, which each CTA quantizes for itself: there is memory for kFusedCopies scales and zero points; the codes
  // stay inside.
  bool alone;
  std::uint32_t* counters;  // two words at zero, which are left at zero; for one launch at a time
};
inline constexpr std::int64_t kMaxFusedRows = 16;
inline constexpr std::int64_t kFusedCopies = 144;  // SMs of the largest card of compute capability 9.0

// y = x w^T, quantized operands; the formulas and requirements are run_gemm's in gemm.hpp.
struct Gemm {
  const void* weights;  // of prepare_gemm
  const void* x;
  std::int64_t m, x_pitch;
  const float* x_scale;
  bool x_scale_per_token;
  const float* w_scale;
  const float* bias;
  void* y;
  DType y_dtype;
  std::int64_t y_stride;
  const std::int32_t* x_zero_point;
  bool x_zero_point_per_token;
  bool x_zero_point_any;  // zero points may be any int32, not only codes
  const std::int32_t* w_column_sum;
  bool fast;               // FP8: sums stay in the tensor core's accumulator
  const FusedRows* fused;  // or null; then x and, if dynamic, x_scale and x_zero_point are memory that is filled
  bool x_is_new;           // the launch right before this one writes x
};

// The same by cuBLASLt, on codes padded with zeros: x [padded_m, k], w [n, k], n and k multiples of 16. FP8 sums are
// f32, INT8 sums int32. With `is_direct` (FP8, one scale each, no bias, y aligned, padded_m = m) y is written by the
// library, else sums [padded_m, n] are, and a kernel of ours scales them into the y of `y_columns` columns.
struct VendorGemm {
  bool is_int8;
  bool is_direct;
  const void* w;
  std::int64_t n, k;
  const void* x;
  std::int64_t m, padded_m;
  const float* x_scale;
  bool x_scale_per_token;
  const float* w_scale;  // [n]; is_direct: one value
  const float* bias;
  void* y;
  DType y_dtype;
  std::int64_t y_columns, y_stride;
  const std::int32_t* x_zero_point;
  bool x_zero_point_per_token;
  const std::int32_t* w_column_sum;
  void* sums;
  void* workspace;
  std::int64_t workspace_bytes;
};

struct ModuleApi {
  std::uint32_t version;

  Failure (*device_count)(int* count);
  Failure (*device_properties)(int device, DeviceProperties* properties);

  Failure (*allocate)(int device, std::int64_t bytes, void** memory);
  Failure (*release)(int device, void* memory);
  // Wait for all work of the device, then copy and wait.
  Failure (*copy_to_device)(int device, void* destination, const void* source, std::int64_t bytes);
  Failure (*copy_to_host)(int device, void* destination, const void* source, std::int64_t bytes);
  // The device whose memory this is, -1 for the host's.
  Failure (*memory_device)(const void* memory, int* device);

  Failure (*create_stream)(int device, void** stream);
  Failure (*destroy_stream)(int device, void* stream);
  Failure (*synchronize)(Place place);
  Failure (*is_captured)(Place place, bool* captured);
  Failure (*begin_capture)(Place place);
  // *graph is nullptr when the capture was invalid; the stream is usable again in any case.
  Failure (*end_capture)(Place place, void** graph);
  Failure (*launch_graph)(Place place, void* graph);
  Failure (*destroy_graph)(int device, void* graph);
  // A pair of time stamps.
  Failure (*create_timer)(int device, void** timer);
  Failure (*destroy_timer)(int device, void* timer);
  Failure (*start_timer)(Place place, void* timer);
  Failure (*stop_timer)(Place place, void* timer, float* microseconds);  // waits

  // packed[r] = row r, or the other way round; rows of row_bytes. Gathered rows stand packed_pitch bytes apart, and
  // zeros fill what is left between them.
  Failure (*gather_rows)(Place place, const StridedRows* from, void* packed, std::int64_t rows, std::int64_t row_bytes,
                         std::int64_t packed_pitch);
  Failure (*scatter_rows)(Place place, const void* packed, const StridedRows* to, std::int64_t rows,
                          std::int64_t row_bytes);
  // out[i] = element i, or element 0 for all i where `repeats`: f32 and int32 as they are, bf16 and f16 as f32.
  // Elements are rows of size_bytes(dtype).
  Failure (*gather_scalars)(Place place, const StridedRows* from, DType dtype, bool repeats, void* out,
                            std::int64_t count);
  // out[n] = sum over k of w[n, k].
  Failure (*sum_columns)(Place place, const std::int8_t* w, std::int64_t n, std::int64_t k, std::int64_t pitch,
                         std::int32_t* out);

  Failure (*quantize_int8)(Place place, const QuantizeInt8* arguments);
  Failure (*quantize_fp8)(Place place, const QuantizeFp8* arguments);

  // FP8 or INT8 weights on the device for `gemm`, on compute capability 9.0. They refer to the codes.
  Failure (*prepare_gemm)(int device, bool is_int8, const void* codes, std::int64_t n, std::int64_t k,
                          std::int64_t pitch, void** weights);
  void (*release_gemm)(void* weights);
  Failure (*gemm)(Place place, const Gemm* arguments);

  // Opens cuBLASLt, once: nullptr, or why it cannot be had.
  Failure (*open_vendor)();
  Failure (*vendor_gemm)(Place place, const VendorGemm* arguments);
};

}  // namespace scaledmm::cuda

// The module's one exported symbol.
extern "C" const scaledmm::cuda::ModuleApi* scaledmm_cuda_module();
