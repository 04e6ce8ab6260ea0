// Rows of activations to codes by a group of threads, which read each row once, keep it in registers while its scale is
// found, and write it; longer rows are read twice.
#pragma once

#include "cuda/encode.cuh"
#include "cuda/module_api.hpp"

namespace scaledmm::cuda {

// Where codes go.
struct Codes {
  std::uint8_t* data;
  std::int64_t columns, stride;
  bool is_aligned;  // 8-byte stores may be made at columns that kVector divides

  __device__ __forceinline__ void store(std::int64_t row, std::int64_t column, uint2 codes) const {
    std::uint8_t* to = data + row * stride + column;
    if (is_aligned && column + kVector <= columns) {
      *reinterpret_cast<uint2*>(to) = codes;
      return;
    }
    const std::uint64_t all = codes.x | static_cast<std::uint64_t>(codes.y) << 32;
    for (int i = 0; i < kVector && column + i < columns; ++i) to[i] = static_cast<std::uint8_t>(all >> (8 * i));
  }
};

struct Activations {
  const std::byte* data;
  std::int64_t k, stride_bytes;
  bool is_aligned;

  template <class X>
  __device__ __forceinline__ Row<X> row(std::int64_t m) const {
    return {data + m * stride_bytes, k, is_aligned};
  }
};

// The threads that quantize a row together: all of a block, or its first kCount under a named barrier.
struct WholeBlock {
  static __device__ __forceinline__ unsigned count() { return blockDim.x; }
  static __device__ __forceinline__ void sync() { __syncthreads(); }
};
template <int kCount, int kBarrier>
struct FirstThreads {
  static __device__ __forceinline__ unsigned count() { return kCount; }
  static __device__ __forceinline__ void sync() {
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kCount) : "memory");
  }
};

__device__ __forceinline__ std::uint32_t warp_max(std::uint32_t value) { return __reduce_max_sync(~0u, value); }

__device__ __forceinline__ Extremes warp_max(const Extremes& extremes) {
  return {warp_max(extremes.positive), warp_max(extremes.negative)};
}

// Calls make(largest of all threads) on one thread and gives its result to all.
template <class Threads, class Value, class Make>
__device__ __forceinline__ auto of_all(const Value& value, const Make& make) {
  using Result = decltype(make(value));
  __shared__ Value of_warp[32];
  __shared__ alignas(Result) unsigned char memory[sizeof(Result)];
  auto* result = reinterpret_cast<Result*>(memory);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Value mine = warp_max(value);
  if (lane == 0) of_warp[warp] = mine;
  Threads::sync();
  if (warp == 0) {
    const Value all = warp_max(lane < Threads::count() / 32 ? of_warp[lane] : Value{});
    if (lane == 0) *result = make(all);
  }
  Threads::sync();
  return *result;
}

// --- one scale a row ---

// How a row gets its scale, writes it, and is encoded.
struct TokenE4m3 {
  float upper_bound;
  float* scale_out;
  template <class X>
  using Statistic = Absmax<X>;
  __device__ __forceinline__ DivideE4m3 operator()(std::int64_t m, std::uint32_t absmax_bits) const {
    const float absmax = __uint_as_float(absmax_bits);
    const Fp8Scale scale = dynamic_token_fp8(absmax, DType::kE4M3FN, upper_bound);
    scale_out[m] = scale.scale;
    return DivideE4m3::make(scale, absmax);
  }
};

struct TokenFp8 {
  DType dtype;
  float upper_bound;
  float* scale_out;
  template <class X>
  using Statistic = Absmax<X>;
  __device__ ScaleFp8 operator()(std::int64_t m, std::uint32_t absmax_bits) const {
    const Fp8Scale scale = dynamic_token_fp8(__uint_as_float(absmax_bits), dtype, upper_bound);
    scale_out[m] = scale.scale;
    return {scale, dtype};
  }
};

struct TokenInt8 {
  float* scale_out;
  template <class X>
  using Statistic = Absmax<X>;
  __device__ __forceinline__ RowInt8 operator()(std::int64_t m, std::uint32_t absmax_bits) const {
    const Int8Scale scale = dynamic_symmetric_int8(__uint_as_float(absmax_bits));
    scale_out[m] = scale.scale;
    return {scale};
  }
};

struct TokenInt8WithZeroPoint {
  float* scale_out;
  std::int32_t* zero_point_out;
  template <class X>
  using Statistic = Range<X>;
  __device__ __forceinline__ RowInt8WithZeroPoint operator()(std::int64_t m, const Extremes& extremes) const {
    const float least = -__uint_as_float(extremes.negative), largest = __uint_as_float(extremes.positive);
    const Int8Scale scale = dynamic_asymmetric_int8(least, largest);
    scale_out[m] = scale.scale;
    zero_point_out[m] = scale.zero_point;
    return {scale};
  }
};

template <class X>
__device__ __forceinline__ std::uint32_t result_of(const Absmax<X>& absmax) {
  return absmax.bits();
}
template <class X>
__device__ __forceinline__ Extremes result_of(const Range<X>& range) {
  return range.extremes();
}

// Row m of at most count() * kVectors * kVector columns, which stay in registers.
template <class Threads, int kVectors, class X, class Token>
__device__ __forceinline__ void quantize_short_row(const Row<X>& row, std::int64_t m, const Token& token,
                                                   const Codes& codes) {
  Vector<X> v[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::int64_t column = (i * Threads::count() + threadIdx.x) * kVector;
    v[i] = column < row.count ? row.load(column) : Vector<X>{};
  }
  typename Token::template Statistic<X> statistic;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) statistic.add(v[i]);
  const auto encode = of_all<Threads>(result_of(statistic), [&](const auto& all) { return token(m, all); });
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::int64_t column = (i * Threads::count() + threadIdx.x) * kVector;
    if (column < codes.columns) codes.store(m, column, encode(v[i]));
  }
}

template <class Threads, class X, class Encode>
__device__ __forceinline__ void encode_row(const Row<X>& row, std::int64_t m, const Encode& encode,
                                           const Codes& codes) {
  const std::int64_t step = Threads::count() * kVector;
#pragma unroll 4
  for (std::int64_t column = threadIdx.x * kVector; column < codes.columns; column += step) {
    codes.store(m, column, encode(row.load(column)));
  }
}

// Rows of any length, which are read twice.
template <class Threads, class X, class Token>
__device__ __forceinline__ void quantize_long_row(const Row<X>& row, std::int64_t m, const Token& token,
                                                  const Codes& codes) {
  typename Token::template Statistic<X> statistic;
  const std::int64_t step = Threads::count() * kVector;
#pragma unroll 4
  for (std::int64_t column = threadIdx.x * kVector; column < row.count; column += step) {
    statistic.add(row.load(column));
  }
  const auto encode = of_all<Threads>(result_of(statistic), [&](const auto& all) { return token(m, all); });
  encode_row<Threads>(row, m, encode, codes);
}

// --- one scale for all ---

struct KnownE4m3 {
  Fp8Scale scale;
  __device__ __forceinline__ ScaleE4m3 operator()() const { return {scale}; }
};
struct KnownInt8 {
  Int8Scale scale;
  __device__ __forceinline__ StaticInt8 operator()() const { return StaticInt8::make(scale); }
};

inline bool aligned(const void* data, std::int64_t stride_bytes, int bytes) {
  return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(stride_bytes)) % bytes == 0;
}

inline Activations activations(const ActivationRows& x) {
  const std::int64_t stride_bytes = x.stride * size_bytes(x.dtype);
  return {static_cast<const std::byte*>(x.data), x.k, stride_bytes, aligned(x.data, x.m > 1 ? stride_bytes : 0, 16)};
}

inline Codes codes_of(void* q, std::int64_t columns, std::int64_t stride, std::int64_t m) {
  return {static_cast<std::uint8_t*>(q), columns, stride, aligned(q, m > 1 ? stride : 0, kVector)};
}

}  // namespace scaledmm::cuda
