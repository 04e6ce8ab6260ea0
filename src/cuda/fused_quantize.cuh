// Quantization inside a GEMM's launch: a few rows of x become codes in memory while the weights are on their way.
//   shared: CTA b quantizes rows b, b + grid, ..., and all wait until every row is there (two words of memory count the
//           rows that are done and the CTAs that have seen them; the last of these leaves both at zero). The CTAs that
//           quantize come first in the grid and wait for nobody, so this needs no co-residence.
//   alone:  one row, which each CTA quantizes for itself into its own shared memory, where the tensor core reads it:
//   that
//           is sooner done than a round through the L2.
// Codes and scales have the bits of the quantizers of quantize.cu.
#pragma once

#include <type_traits>

#include "cuda/gemm.hpp"
#include "cuda/quantize_rows.cuh"
#include "cuda/sm90_async.cuh"

namespace scaledmm::cuda {

enum class Quantize { kNo, kShared, kAlone };

struct FusedQuantize {
  Activations x;
  Codes codes;
  DType dtype;
  bool is_static, symmetric;
  Fp8Scale fp8;              // static
  Int8Scale int8;            // static
  float upper_bound;         // FP8, dynamic
  float* scale;              // dynamic
  std::int32_t* zero_point;  // dynamic, asymmetric
  std::uint32_t* counters;   // [2]
};

// Eight values, or zeros behind the row's end. Only for rows that FusedRows takes.
template <class X>
__device__ __forceinline__ Vector<X> load_whole(const Row<X>& row, int column) {
  uint4 four{};
  if (column < row.count) four = load_streaming(row.data + column * X::kBytes);
  return {{four.x, four.y, four.z, four.w}};
}

// Little code matters more than few instructions: each CTA runs it once and waits for every line of it (unrolled, with
// ways for every alignment, it took 2 to 5 us more). So all vectors go through one loop, some loads ahead of it.
constexpr int kAhead = 4;

template <class Threads, class X, class Encode>
__device__ __forceinline__ void encode_row_compactly(const Row<X>& row, std::int64_t at, Vector<X> (&ahead)[kAhead],
                                                     const Encode& encode, const Codes& codes) {
  const int step = Threads::count() * kVector;
#pragma unroll 1
  for (int column = threadIdx.x * kVector; column < codes.columns; column += step) {
    const Vector<X> v = ahead[0];
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) ahead[i] = ahead[i + 1];
    ahead[kAhead - 1] = load_whole(row, column + kAhead * step);
    const uint2 all = column < row.count ? encode(v) : uint2{};
    *reinterpret_cast<uint2*>(codes.data + at * codes.stride + column) = all;
  }
}

template <class Threads, class X, class Token>
__device__ __forceinline__ void quantize_row_compactly(const Row<X>& row, std::int64_t at, Vector<X> (&ahead)[kAhead],
                                                       const Token& token, const Codes& codes) {
  typename Token::template Statistic<X> statistic;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) statistic.add(ahead[i]);
  const int step = Threads::count() * kVector;
#pragma unroll 4
  for (int column = threadIdx.x * kVector + kAhead * step; column < row.count; column += step) {
    statistic.add(load_whole(row, column));
  }
  const auto encode = of_all<Threads>(result_of(statistic), [&](const auto& all) { return token(at, all); });
  encode_row_compactly<Threads>(row, at, ahead, encode, codes);
}

template <class Threads, class X>
__device__ __forceinline__ void quantize_row(const FusedQuantize& q, float, const Row<X>& row,
                                             Vector<X> (&ahead)[kAhead], int at) {
  if (q.is_static) {
    encode_row_compactly<Threads>(row, at, ahead, KnownE4m3{q.fp8}(), q.codes);
  } else {
    quantize_row_compactly<Threads>(row, at, ahead, TokenE4m3{q.upper_bound, q.scale}, q.codes);
  }
}

template <class Threads, class X>
__device__ __forceinline__ void quantize_row(const FusedQuantize& q, std::int32_t, const Row<X>& row,
                                             Vector<X> (&ahead)[kAhead], int at) {
  if (q.is_static) {
    encode_row_compactly<Threads>(row, at, ahead, KnownInt8{q.int8}(), q.codes);
  } else if (q.symmetric) {
    quantize_row_compactly<Threads>(row, at, ahead, TokenInt8{q.scale}, q.codes);
  } else {
    quantize_row_compactly<Threads>(row, at, ahead, TokenInt8WithZeroPoint{q.scale, q.zero_point}, q.codes);
  }
}

template <typename Sum, class Threads, class X>
__device__ __forceinline__ void quantize_rows_of(const FusedQuantize& q, int first, int m) {
  const int column = threadIdx.x * kVector;
#pragma unroll 1
  for (int r = first; r < m; r += gridDim.x) {
    const Row<X> row = q.x.row<X>(r);
    Vector<X> ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = load_whole(row, column + i * Threads::count() * kVector);
    quantize_row<Threads>(q, Sum{}, row, ahead, r);
  }
}

// This CTA's rows of [0, m). Their codes are visible to the copy engine of whoever has synchronised with a thread that
// has passed Threads::sync() since.
template <typename Sum, class Threads>
__device__ __forceinline__ void quantize_rows(const FusedQuantize& q, int m) {
  if (static_cast<int>(blockIdx.x) >= m) return;
  if (q.dtype == DType::kBF16) {
    quantize_rows_of<Sum, Threads, Bf16>(q, blockIdx.x, m);
  } else {
    quantize_rows_of<Sum, Threads, F16>(q, blockIdx.x, m);
  }
  sm90::fence_memory_for_async();
}

// kAlone: the row, with zeros up to `columns`, to `codes` in shared memory; its scale and zero point to this CTA's
// place. All threads of Threads; the tensor core may read the codes behind their next Threads::sync().
template <typename Sum, class Threads>
__device__ __forceinline__ void quantize_alone(FusedQuantize q, std::uint8_t* codes, int columns) {
  q.codes = {codes, columns, 0, true};
  q.scale += blockIdx.x;
  q.zero_point += blockIdx.x;
  if (q.dtype == DType::kBF16) {
    quantize_rows_of<Sum, Threads, Bf16>(q, 0, 1);
  } else {
    quantize_rows_of<Sum, Threads, F16>(q, 0, 1);
  }
  sm90::fence_shared_for_async();
}

// By one thread of a CTA whose rows are done.
__device__ __forceinline__ void announce_rows(const FusedQuantize& q, int m) {
  if (static_cast<int>(blockIdx.x) >= m) return;
  const int rows = (m - 1 - static_cast<int>(blockIdx.x)) / static_cast<int>(gridDim.x) + 1;
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(q.counters), "r"(rows) : "memory");
}

// By one thread of each CTA, once; the other one later, when it is in nobody's way.
__device__ __forceinline__ void wait_for_rows(const FusedQuantize& q, int m) {
  std::uint32_t done = 0;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(q.counters) : "memory");
  } while (done != static_cast<std::uint32_t>(m));
  sm90::fence_memory_for_async();
}

__device__ __forceinline__ void leave_rows(const FusedQuantize& q) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(q.counters + 1) : "memory");
  if (before == gridDim.x - 1) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], 0;\nst.relaxed.gpu.global.u32 [%0 + 4], 0;" ::"l"(q.counters)
                 : "memory");
  }
}

}  // namespace scaledmm::cuda
