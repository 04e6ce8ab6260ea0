// Eight neighbouring activations: loading them, their statistics, their codes.
//
// Divisions. Dynamic FP8 codes are encode(x / s) and static INT8 codes rne(x / s), with x / s rounded to f32. Here q =
// x * (1 / s), within 2 ulp of the quotient, is corrected by fma: q -= (q s - x) (1 / s).
//   One correction gives x / s + e rounded, |e| < 2^-23 ulp. That has the code of the rounded quotient unless x / s
//   lies so close to the middle between a tie of e4m3fn, which has 5 significant bits, and its neighbour in f32. With
//   the significand S of s in [2^23, 2^24), the distance is a multiple of 2^-4 less S 2^-24, over S: too small only
//   where S is within 4 of a multiple of 2^20, and not one. Two corrections give the rounded quotient, but for an S of
//   all ones. Source: P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990,
//   theorem 7.1.
// For such an S, and where an intermediate value may leave the normal numbers, the division is done. The signs of zeros
// survive in this form of the correction, not in q += (x - q s) (1 / s).
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "numerics/fp8_scale.hpp"
#include "numerics/int8.hpp"

namespace scaledmm::cuda {

inline constexpr int kVector = 8;  // values that one thread takes at a time

struct F32 {
  static constexpr int kBytes = 4;
};
struct Bf16 {
  static constexpr int kBytes = 2;
};
struct F16 {
  static constexpr int kBytes = 2;
};

// The value of an element's bits; those of 16-bit types stand in the lower half.
__device__ __forceinline__ float widen(std::uint32_t bits, F32) { return __uint_as_float(bits); }
__device__ __forceinline__ float widen(std::uint32_t bits, Bf16) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ float widen(std::uint32_t bits, F16) {
  float value;
  asm("{.reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.f32.f16 %0, low;}" : "=f"(value) : "r"(bits));
  return value;
}

// 16 bytes that are read once. Not .nc: the kernel before this one may write them while this one starts.
__device__ __forceinline__ uint4 load_streaming(const std::byte* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// What the L2 shall do with a line that is read: replace it first, or keep it.
__device__ __forceinline__ std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ std::uint64_t evict_last_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint4 load_streaming(const std::byte* from, std::uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(policy));
  return v;
}

// Eight values as they stand in memory.
template <class X>
struct Vector {
  static constexpr int kWords = kVector * X::kBytes / 4;
  std::uint32_t words[kWords];

  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (X::kBytes == 4) return widen(words[i], X{});
    if constexpr (std::is_same_v<X, Bf16>)
      return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    return widen(words[i / 2] >> (i % 2 * 16), X{});
  }
};

// Row of `count` values; `is_aligned` when 16-byte loads may be made at columns that kVector divides.
template <class X>
struct Row {
  const std::byte* data;
  std::int64_t count;
  bool is_aligned;

  __device__ __forceinline__ std::uint32_t bits(std::int64_t column) const {
    if constexpr (X::kBytes == 4) return reinterpret_cast<const std::uint32_t*>(data)[column];
    return reinterpret_cast<const std::uint16_t*>(data)[column];
  }
  __device__ __forceinline__ float value(std::int64_t column) const { return widen(bits(column), X{}); }

  // Values past the end are 0.
  __device__ __forceinline__ Vector<X> load(std::int64_t column) const {
    Vector<X> v;
    if (is_aligned && column + kVector <= count) {
      const std::byte* from = data + column * X::kBytes;
#pragma unroll
      for (int i = 0; i < Vector<X>::kWords; i += 4) {
        const uint4 four = load_streaming(from + i * 4);
        v.words[i] = four.x;
        v.words[i + 1] = four.y;
        v.words[i + 2] = four.z;
        v.words[i + 3] = four.w;
      }
      return v;
    }
#pragma unroll
    for (int i = 0; i < Vector<X>::kWords; ++i) v.words[i] = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (column + i >= count) continue;
      if constexpr (X::kBytes == 4) {
        v.words[i] = bits(column + i);
      } else {
        v.words[i / 2] |= bits(column + i) << (i % 2 * 16);
      }
    }
    return v;
  }
};

// --- statistics: bit patterns of magnitudes, which order like the magnitudes, NaN above Inf ---

__device__ __forceinline__ std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) { return __vmaxu2(a, b); }

// The larger half of a word of two 16-bit patterns, as an f32 pattern.
template <class X>
__device__ __forceinline__ std::uint32_t widen_larger_half(std::uint32_t halves) {
  return __float_as_uint(widen(max(halves & 0xffffu, halves >> 16), X{}));
}

// The largest magnitude.
template <class X>
class Absmax {
 public:
  __device__ __forceinline__ void add(const Vector<X>& v) {
#pragma unroll
    for (int i = 0; i < Vector<X>::kWords; ++i) {
      if constexpr (X::kBytes == 4) {
        largest_ = max(largest_, v.words[i] & 0x7fffffffu);
      } else {
        largest_ = larger_halves(largest_, v.words[i] & 0x7fff7fffu);
      }
    }
  }
  __device__ __forceinline__ std::uint32_t bits() const {
    if constexpr (X::kBytes == 4) return largest_;
    return widen_larger_half<X>(largest_);
  }

 private:
  std::uint32_t largest_ = 0;
};

// The largest magnitudes of the values with a clear and with a set sign bit.
struct Extremes {
  std::uint32_t positive, negative;
};

template <class X>
class Range {
 public:
  __device__ __forceinline__ void add(const Vector<X>& v) {
#pragma unroll
    for (int i = 0; i < Vector<X>::kWords; ++i) {
      const std::uint32_t word = v.words[i];
      if constexpr (X::kBytes == 4) {
        positive_ = static_cast<std::uint32_t>(max(static_cast<int>(positive_), static_cast<int>(word)));
        negative_ = static_cast<std::uint32_t>(max(static_cast<int>(negative_), static_cast<int>(word ^ 0x80000000u)));
      } else {
        positive_ = __vmaxs2(positive_, word);
        negative_ = __vmaxs2(negative_, word ^ 0x80008000u);
      }
    }
  }
  __device__ __forceinline__ Extremes extremes() const {
    if constexpr (X::kBytes == 4) return {positive_, negative_};
    return {widen_larger_half<X>(positive_), widen_larger_half<X>(negative_)};
  }

 private:
  std::uint32_t positive_ = 0;
  std::uint32_t negative_ = 0;
};

// --- codes ---

struct Divisor {
  float value, inverse;
  bool is_hard;  // the corrections may not do

  // `largest`: no dividend is larger.
  __device__ __forceinline__ static Divisor make(float value, float inverse, float largest) {
    constexpr std::uint32_t kNear = 4, kStep = 1u << 20;
    const std::uint32_t rest = __float_as_uint(value) % kStep;
    const bool is_near = rest - 1 < kNear || rest >= kStep - kNear;  // all ones too
    const bool is_normal = inverse >= std::numeric_limits<float>::min() && is_finite(inverse);
    return {value, inverse, is_near || !is_normal || !is_finite(largest * inverse)};
  }
  __device__ __forceinline__ float correct(float q, float x) const {
    return __fmaf_rn(-__fmaf_rn(q, value, -x), inverse, q);
  }
};

// Two e4m3fn codes, the first in the lower byte: rounded to nearest even, saturated, NaN 0x7f.
__device__ __forceinline__ std::uint32_t encode_pair(float low, float high) {
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

__device__ __forceinline__ uint2 encode_e4m3(const float (&t)[kVector]) {
  return {encode_pair(t[0], t[1]) | encode_pair(t[2], t[3]) << 16, encode_pair(t[4], t[5]) | encode_pair(t[6], t[7])
                                                                                                 << 16};
}

// Codes of finite values by division; all NaN where the scale is.
struct DivideE4m3 {
  Divisor divisor;

  // `absmax` may be larger than what the scale was made from, where that is bounded.
  __device__ static DivideE4m3 make(const Fp8Scale& scale, float absmax) {
    return {Divisor::make(scale.scale, scale.inverse, absmax)};
  }
  template <class X>
  __device__ __forceinline__ uint2 operator()(const Vector<X>& v) const {
    float t[kVector];
    if (!divisor.is_hard) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) t[i] = divisor.correct(v[i] * divisor.inverse, v[i]);
    } else if (is_finite(divisor.value)) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) t[i] = __fdiv_rn(v[i], divisor.value);
    } else {
      return {0x7f7f7f7fu, 0x7f7f7f7fu};
    }
    return encode_e4m3(t);
  }
};

// Codes under one scale for all, any values: a product, unless the scale says otherwise.
struct ScaleE4m3 {
  Fp8Scale scale;

  template <class X>
  __device__ __forceinline__ uint2 operator()(const Vector<X>& v) const {
    float t[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) t[i] = v[i] * scale.inverse;
    if (scale.divides) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) t[i] = __fdiv_rn(v[i], scale.scale);
    }
    if (scale.inf_is_nan) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) t[i] = is_finite(v[i]) ? t[i] : kNaN;
    }
    return encode_e4m3(t);
  }
};

__device__ __forceinline__ std::uint32_t pack_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                    std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// e4m3fnuz and e5m2, by the scalar functions.
struct ScaleFp8 {
  Fp8Scale scale;
  DType dtype;

  template <class X>
  __device__ uint2 operator()(const Vector<X>& v) const {
    std::uint64_t codes = 0;
#pragma unroll 1
    for (int i = kVector - 1; i >= 0; --i) {
      const std::uint32_t word = v.words[i * X::kBytes / 4];
      const std::uint32_t bits = X::kBytes == 4 ? word : word >> (i % 2 * 16) & 0xffffu;
      codes = codes << 8 | quantize_fp8(widen(bits, X{}), scale, dtype);
    }
    return {static_cast<std::uint32_t>(codes), static_cast<std::uint32_t>(codes >> 32)};
  }
};

// Adding 1.5 * 2^23 makes f32 round to whole numbers, which then stand in the lower bits. For magnitudes below 2^22.
inline constexpr float kWholeNumbers = 12582912.0f;

__device__ __forceinline__ int whole_bits(float value) { return __float_as_int(value + kWholeNumbers); }

// clamp(a), clamp(b), clamp(c), clamp(d) to int8, the first in the lowest byte.
__device__ __forceinline__ std::uint32_t saturate_bytes(int a, int b, int c, int d) {
  std::uint32_t high, all;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(d), "r"(c));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(b), "r"(a), "r"(high));
  return all;
}

__device__ __forceinline__ uint2 saturate_bytes(const int (&steps)[kVector]) {
  return {saturate_bytes(steps[0], steps[1], steps[2], steps[3]),
          saturate_bytes(steps[4], steps[5], steps[6], steps[7])};
}

__device__ __forceinline__ int add_saturated(int a, int b) {
  int sum;
  asm("add.sat.s32 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

// Symmetric codes of a row whose scale was made from it: no magnitude passes 127 steps. 0 where the scale is NaN.
struct RowInt8 {
  Int8Scale scale;

  template <class X>
  __device__ __forceinline__ uint2 operator()(const Vector<X>& v) const {
    if (!is_finite(scale.scale)) return {0, 0};
    std::uint32_t t[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      t[i] = static_cast<std::uint32_t>(whole_bits(v[i] * scale.prescale * scale.inverse));
    }
    return {pack_bytes(t[0], t[1], t[2], t[3]), pack_bytes(t[4], t[5], t[6], t[7])};
  }
};

// The same with a zero point: magnitudes stay below 2^9 steps.
struct RowInt8WithZeroPoint {
  Int8Scale scale;

  template <class X>
  __device__ __forceinline__ uint2 operator()(const Vector<X>& v) const {
    if (!is_finite(scale.scale)) return {0, 0};
    const int offset = scale.zero_point - whole_bits(0.0f);
    int steps[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) steps[i] = whole_bits(v[i] * scale.prescale * scale.inverse) + offset;
    return saturate_bytes(steps);
  }
};

// Static codes of any values. NaN: the zero point.
struct StaticInt8 {
  Int8Scale scale;
  Divisor divisor;  // where the scale divides

  __device__ static StaticInt8 make(const Int8Scale& scale) {
    if (!scale.divides) return {scale, {}};
    return {scale, Divisor::make(scale.scale, 1.0f / scale.scale, scale.scale * kMostSteps)};
  }
  template <class X>
  __device__ __forceinline__ uint2 operator()(const Vector<X>& v) const {
    int steps[kVector];
    if (!scale.divides) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        steps[i] = add_saturated(__float2int_rn(v[i] * scale.inverse), scale.zero_point);
      }
    } else if (!divisor.is_hard) {
      const float most = scale.scale * kMostSteps;  // codes saturate long before
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float x = clamp(v[i], most);
        steps[i] = __float2int_rn(divisor.correct(divisor.correct(x * divisor.inverse, x), x));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) steps[i] = __float2int_rn(__fdiv_rn(v[i], scale.scale));
    }
    return saturate_bytes(steps);
  }

 private:
  static constexpr float kMostSteps = 1024.0f;
  // NaN stays NaN.
  __device__ __forceinline__ static float clamp(float x, float most) {
    float low, result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(low) : "f"(x), "f"(most));
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(low), "f"(-most));
    return result;
  }
};

}  // namespace scaledmm::cuda
