// Dense GEMMs of quantized rows for Hopper (sm_90a):   y[m, n] = sum over k of x[m, k] * w[n, k], then the epilogue.
//   FP8 (e4m3):  t = acc * sx[m];                                  y = bias ? fma(t, sw[n], bias[n]) : t * sw[n]
//   INT8:        t = f32(acc - zx[m] * column_sum[n]) * sx[m];     y = bias ? fma(t, sw[n], bias[n]) : t * sw[n]
// All of the epilogue is f32 with one rounding a step and one to the output type; INT8 sums are exact
// (docs/quantization.md 4).
//
// Guarantees
//   - The same call gives the same bits on every run: no atomics on values, one order of summation for each plan.
//   - INT8: the same bits for every M, plan and card.
//   - FP8: a row's bits depend on its codes, N, K and the weights only, whatever M is. Sums of 128 consecutive k
//     (accumulated by the tensor core) are added in f32 in the order of k; layers with long and few rows
//     (gemm_runs() = 2) add two runs of K that way and then their sums, so that two CTAs can share a tile.
//   - FP8, accumulate = kFast: the tensor core's short accumulator (about 13 bits) runs over all of K, or half of it,
//     as suits M.
// No call allocates, synchronises or needs a workspace; all may be captured into a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/module_api.hpp"

namespace scaledmm::cuda {

enum class GemmType { kFp8E4m3, kInt8 };
enum class GemmOutput { kBfloat16, kFloat16, kFloat32 };
enum class GemmAccumulate { kPromoted, kFast };  // INT8 ignores it: its sums are always exact

// Sums of INT8 products stay inside int32 for K up to here.
constexpr std::int64_t kMaxInt8K = 131071;

// Codes of the weights on the device and what is made of them once. The codes stay the caller's and must outlive it.
struct GemmWeights {
  GemmType type;
  const void* codes;                       // [N, K], rows `pitch` bytes apart; 16-byte aligned
  std::int64_t n, k;                       // K as in the checkpoint
  std::int64_t pitch;                      // bytes, a multiple of 16, at least K; the bytes behind K are never used
  int sm_count;                            // of the device that was current
  alignas(64) unsigned char maps[4][128];  // tensor maps, one for each height of tile
  int map_rows[4];
};

// Fills `weights` for the current device and loads the kernels, so that later calls can be captured.
// Errors: cudaErrorInvalidValue (alignment, N or K < 1, INT8 with K > kMaxInt8K, N or K near 2^31),
// cudaErrorInvalidDevice (compute capability is not 9.0), cudaErrorNotSupported (the driver knows no tensor maps).
cudaError_t prepare_gemm_weights(GemmType type, const void* codes, std::int64_t n, std::int64_t k, std::int64_t pitch,
                                 GemmWeights* weights);

struct GemmArguments {
  const GemmWeights* weights;
  const void* x;  // codes [M, K], rows x_pitch bytes apart; 16-byte aligned; written with `fused`
  std::int64_t m;
  std::int64_t x_pitch;  // bytes, a multiple of 16, at least K; the bytes behind K are never used
  const float* x_scale;  // [M] if per token, else one value
  bool x_scale_per_token;
  const float* w_scale;  // [N] if per channel, else one value
  bool w_scale_per_channel;
  const float* bias;  // [N] or null
  void* y;            // [M, N] of y_type, rows y_stride elements apart; any stride, aligned to its elements
  GemmOutput y_type;
  std::int64_t y_stride;
  const std::int32_t* x_zero_point;  // INT8: null (symmetric), [M] if per token, else one value; any int32 if
  bool x_zero_point_per_token;
  bool x_zero_point_any;             // this is set, else in the range of int8
  const std::int32_t* w_column_sum;  // INT8 with zero points: [N], sum over k of w[n, k]
  GemmAccumulate accumulate;
  const FusedRows* fused;  // or null; M <= kMaxFusedRows, 1 if alone (x is not written then)
  // The kernel before this one on the stream may still run while weights are fetched (programmatic dependent launch).
  // Set it unless that kernel writes the weights; everything else is read and written after that kernel has finished.
  bool overlap_previous;
  bool x_is_new;  // that kernel writes x, so that weights are all that can be fetched until it ends
};

// Runs of K whose sums FP8 layers add, promoted: 1 or 2.
int gemm_runs(std::int64_t n, std::int64_t k);

// Launches y = epilogue(x w^T) on `stream`. M = 0 does nothing.
// Errors: cudaErrorInvalidValue (a pointer that is missing or not aligned, a stride that is too small), or the
// launch's.
cudaError_t run_gemm(const GemmArguments& arguments, cudaStream_t stream);

// How run_gemm computes a shape. Benchmarks force plans; nobody else needs them.
struct GemmPlan {
  enum class Kernel { kTile, kSwap };
  Kernel kernel;
  int rows;      // rows of w (kSwap: a multiple of 8 up to 128) or x (kTile: 128) of one tile
  int cols;      // rows of x (kSwap: 8, 16, 32, 64 or 128) or w (kTile: 64 or 128; carry: 96, 112 or 128) of one tile
  int split;     // CTAs of a cluster that take a run of K each: 1 or 2
  int stages;    // depth of the ring of operands
  int boxes;     // kSwap: blocks of 128 of K in a stage
  bool turns;    // kTile, split 1, interval 0: the warpgroups of a CTA take tiles in turn, so that one stores while the
                 // other multiplies
  int interval;  // FP8: blocks of 128 of K between promotions: 1, or 0 for never
  int runs = 1;  // interval 1: of K; split 1 and runs 2 has the bits of split 2
  // kTile, split 1, interval 1: 0, or outputs are stored while the next tile is multiplied, by code for at least this
  // many pairs of blocks of 128 of K in a run: 2 or 8. y must be 2-byte, its rows and N multiples of 16 bytes; the same
  // plan with 0 and 128 columns runs for another.
  int carry = 0;
};

GemmPlan choose_gemm_plan(const GemmWeights& weights, std::int64_t m, GemmAccumulate accumulate, bool x_is_new = false);
cudaError_t run_gemm_plan(const GemmArguments& arguments, const GemmPlan& plan, cudaStream_t stream);

}  // namespace scaledmm::cuda
