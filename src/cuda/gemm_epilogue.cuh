// From sums to stored outputs, in the order of docs/quantization.md 4: one f32 rounding a step, one to the output type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/gemm.hpp"

namespace scaledmm::cuda {

// What the epilogue reads and writes. A step is 0 where one value serves all rows or columns.
struct GemmEpilogue {
  const float* sx;
  const float* sw;
  const float* bias;               // or null
  const std::int32_t* zx;          // or null
  const std::int32_t* column_sum;  // with zx
  void* y;
  std::int64_t y_stride;
  int m, n;
  int sx_step, sw_step, zx_step;
  GemmOutput y_type;
  bool wide;  // sum - zx * column_sum may leave int32
};

struct RowTerms {
  float scale;
  std::int32_t zero_point;
};

struct ColumnTerms {
  float scale;
  float bias;
  std::int32_t sum;
};

// Rows and columns outside y get the terms of the last one; nothing of them is stored.
__device__ __forceinline__ RowTerms row_terms(const GemmEpilogue& e, int row) {
  const int r = min(row, e.m - 1);
  return {__ldg(e.sx + static_cast<std::int64_t>(r) * e.sx_step), e.zx ? __ldg(e.zx + r * e.zx_step) : 0};
}

// The same of terms that this launch has written, those of row 0 at `base`.
__device__ __forceinline__ RowTerms fresh_row_terms(const GemmEpilogue& e, int row, int base) {
  const int r = base + min(row, e.m - 1);
  return {__ldcg(e.sx + static_cast<std::int64_t>(r) * e.sx_step), e.zx ? __ldcg(e.zx + r * e.zx_step) : 0};
}

// Without a bias -0 is added: x + -0 is x for every x, so the product keeps its bits.
__device__ __forceinline__ ColumnTerms column_terms(const GemmEpilogue& e, int column) {
  const int c = min(column, e.n - 1);
  return {__ldg(e.sw + c * e.sw_step), e.bias ? __ldg(e.bias + c) : -0.0f, e.zx ? __ldg(e.column_sum + c) : 0};
}

template <bool kWide>
__device__ __forceinline__ float corrected(float sum, const RowTerms&, const ColumnTerms&) {
  return sum;
}

// |sum of (x - zx) w| <= 255 * 128 * K, inside int32 for K <= 65793: there the correction may wrap on its way. kWide:
// not there.
template <bool kWide>
__device__ __forceinline__ float corrected(std::int32_t sum, const RowTerms& row, const ColumnTerms& column) {
  if constexpr (kWide) {
    return __ll2float_rn(sum - static_cast<std::int64_t>(row.zero_point) * column.sum);
  }
  return __int2float_rn(
      static_cast<std::int32_t>(static_cast<std::uint32_t>(sum) -
                                static_cast<std::uint32_t>(row.zero_point) * static_cast<std::uint32_t>(column.sum)));
}

template <bool kWide, typename Sum>
__device__ __forceinline__ float rescale(Sum sum, const RowTerms& row, const ColumnTerms& column) {
  return __fmaf_rn(__fmul_rn(corrected<kWide>(sum, row, column), row.scale), column.scale, column.bias);
}

// function(std::bool_constant<wide>), so that the test stands outside of the loops. FP8 sums are never wide.
template <typename Sum, typename Function>
__device__ __forceinline__ void with_width(const GemmEpilogue& e, Function function) {
  if constexpr (std::is_same_v<Sum, std::int32_t>) {
    if (e.wide) {
      function(std::true_type{});
      return;
    }
  }
  function(std::false_type{});
}

// Two outputs of a 2-byte type in one word, the first in the low half.
__device__ __forceinline__ std::uint32_t pack_pair(GemmOutput type, float first, float second) {
  std::uint32_t word;
  if (type == GemmOutput::kBfloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  }
  return word;
}

__device__ __forceinline__ void store_one(const GemmEpilogue& e, int row, int column, float value) {
  const std::int64_t offset = row * e.y_stride + column;
  if (e.y_type == GemmOutput::kFloat32) {
    static_cast<float*>(e.y)[offset] = value;
  } else {
    static_cast<std::uint16_t*>(e.y)[offset] = static_cast<std::uint16_t>(pack_pair(e.y_type, value, 0.0f));
  }
}

// kCount (2 or 4) outputs of one row from `column` on: one store where y's alignment allows, else one by one.
template <int kCount>
__device__ __forceinline__ void store_piece(const GemmEpilogue& e, int row, int column, const float (&value)[kCount]) {
  const int size = e.y_type == GemmOutput::kFloat32 ? 4 : 2;
  char* address = static_cast<char*>(e.y) + (row * e.y_stride + column) * size;
  if (column + kCount > e.n || reinterpret_cast<std::uintptr_t>(address) % (kCount * size) != 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (column + i < e.n) store_one(e, row, column + i, value[i]);
    }
    return;
  }
  if constexpr (kCount == 2) {
    if (size == 4) {
      *reinterpret_cast<float2*>(address) = {value[0], value[1]};
    } else {
      *reinterpret_cast<std::uint32_t*>(address) = pack_pair(e.y_type, value[0], value[1]);
    }
  } else {
    if (size == 4) {
      *reinterpret_cast<float4*>(address) = {value[0], value[1], value[2], value[3]};
    } else {
      *reinterpret_cast<uint2*>(address) = {pack_pair(e.y_type, value[0], value[1]),
                                            pack_pair(e.y_type, value[2], value[3])};
    }
  }
}

// The same for 4 packed outputs of 2 bytes.
__device__ __forceinline__ void store_words(const GemmEpilogue& e, int row, int column, const uint2& words) {
  std::uint16_t* address = static_cast<std::uint16_t*>(e.y) + row * e.y_stride + column;
  if (column + 4 <= e.n && reinterpret_cast<std::uintptr_t>(address) % 8 == 0) {
    *reinterpret_cast<uint2*>(address) = words;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t word = i < 2 ? words.x : words.y;
    if (column + i < e.n) address[i] = static_cast<std::uint16_t>(word >> 16 * (i % 2));
  }
}

__device__ __forceinline__ void add_words(float (&total)[4], const uint4& words) {
  total[0] += __uint_as_float(words.x);
  total[1] += __uint_as_float(words.y);
  total[2] += __uint_as_float(words.z);
  total[3] += __uint_as_float(words.w);
}
__device__ __forceinline__ void add_words(std::int32_t (&total)[4], const uint4& words) {
  total[0] += static_cast<std::int32_t>(words.x);
  total[1] += static_cast<std::int32_t>(words.y);
  total[2] += static_cast<std::int32_t>(words.z);
  total[3] += static_cast<std::int32_t>(words.w);
}

}  // namespace scaledmm::cuda
