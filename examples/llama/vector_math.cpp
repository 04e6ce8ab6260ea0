#include "vector_math.hpp"

#include <cmath>
#include <cstring>
#include <limits>

// x86-64-v1, AVX2 with FMA.
#define LLAMA_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
// AVX-512, for the loops that take most of the time. Every sum has the order that it has on AVX2: others would
// calibrate other codes.
#define LLAMA_WIDE __attribute__((target("arch=x86-64-v4")))
#define LLAMA_INLINE static inline __attribute__((always_inline))

namespace llama {
namespace {

// The compiler's vector notation. Eight lanes are one register of AVX2, two of SSE; sixteen are one of AVX-512.
template <int kBytes>
struct Vector;
template <>
struct Vector<32> {
  using Floats = float __attribute__((vector_size(32)));
  using Ints = std::int32_t __attribute__((vector_size(32)));
};
template <>
struct Vector<64> {
  using Floats = float __attribute__((vector_size(64)));
  using Ints = std::int32_t __attribute__((vector_size(64)));
};
using Floats = Vector<32>::Floats;
using WideFloats = Vector<64>::Floats;
constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kWideLanes = 16;

bool has_wide() {
  static const bool has = __builtin_cpu_supports("x86-64-v4") != 0;
  return has;
}

template <class V>
LLAMA_INLINE void load(V& v, const float* p) {
  std::memcpy(&v, p, sizeof v);
}
template <class V>
LLAMA_INLINE void store(float* p, const V& v) {
  std::memcpy(p, &v, sizeof v);
}

LLAMA_INLINE float sum(const Floats& v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

// The first `count` lanes from memory, `fill` in the others.
LLAMA_INLINE void load_part(Floats& v, const float* p, std::int64_t count, float fill) {
  if (count >= kLanes) return load(v, p);
  v = Floats{} + fill;
  for (std::int64_t i = 0; i < count; ++i) v[i] = p[i];
}

LLAMA_INLINE void store_part(float* p, const Floats& v, std::int64_t count) {
  if (count >= kLanes) return store(p, v);
  for (std::int64_t i = 0; i < count; ++i) p[i] = v[i];
}

// v = exp(v) = 2^n * exp(r), |r| <= ln(2) / 2, exp(r) by its Taylor polynomial of degree 7: 2e-7 relative. Below -87 it
// gives 1.6e-38, which no sum notices, above 88 exp(88).
template <class V>
LLAMA_INLINE void exponential(V& v) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  v = v < -87.0F ? V{} - 87.0F : v;
  v = v > 88.0F ? V{} + 88.0F : v;
  const V shifted = v * kLog2E + kRound;
  const V n = shifted - kRound;
  const V r = (v - n * kLn2High) - n * kLn2Low;
  V p = V{} + 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  typename Vector<sizeof(V)>::Ints exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  exponent = (exponent - std::bit_cast<std::int32_t>(kRound) + 127) << 23;
  V power;
  std::memcpy(&power, &exponent, sizeof power);
  v = p * power;
}

template <class V, int kRows, int kBlocks>
LLAMA_INLINE void tile(const Product& p, std::int64_t row, std::int64_t block) {
  constexpr int kVectorLanes = sizeof(V) / sizeof(float);
  constexpr int kVectors = kColumnBlock / kVectorLanes;  // of one block
  const float* a = p.a + row * p.a_stride;
  const float* b = p.b + block * p.b_block;
  V sums[kRows][kBlocks * kVectors] = {};
  for (std::int64_t t = 0; t < p.k; ++t) {
    V columns[kBlocks * kVectors];
    for (int j = 0; j < kBlocks * kVectors; ++j) {
      load(columns[j], b + t * p.b_stride + j / kVectors * p.b_block + j % kVectors * kVectorLanes);
    }
    for (int i = 0; i < kRows; ++i) {
      const float scalar = a[i * p.a_stride + t];
      for (int j = 0; j < kBlocks * kVectors; ++j) sums[i][j] += scalar * columns[j];
    }
  }
  float* c = p.c + row * p.c_stride + block * kColumnBlock;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kBlocks * kVectors; ++j) store(c + i * p.c_stride + j * kVectorLanes, sums[i][j]);
  }
}

// `kMost` rows at a time, as many as the registers hold.
template <class V, int kMost, int kBlocks>
LLAMA_INLINE void tiles(const Product& p, std::int64_t block) {
  std::int64_t row = 0;
  for (; row + kMost <= p.rows; row += kMost) tile<V, kMost, kBlocks>(p, row, block);
  for (; row < p.rows; ++row) tile<V, 1, kBlocks>(p, row, block);
}

template <class V>
LLAMA_INLINE float largest(const float* x, std::int64_t n) {
  constexpr std::int64_t kCount = sizeof(V) / sizeof(float);
  V tops = V{} + x[0];
  std::int64_t i = 0;
  for (; i + kCount <= n; i += kCount) {
    V values;
    load(values, x + i);
    tops = values > tops ? values : tops;
  }
  float top = x[0];
  for (std::int64_t lane = 0; lane < kCount; ++lane) top = tops[lane] > top ? tops[lane] : top;
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

LLAMA_INLINE void silu_multiply_from(std::int64_t i, const float* gate, const float* up, std::int64_t n, float* y) {
  for (; i < n; i += kLanes) {
    Floats gates, ups;
    load_part(gates, gate + i, n - i, 0);
    load_part(ups, up + i, n - i, 0);
    Floats inverse = -gates;
    exponential(inverse);
    store_part(y + i, gates / (1 + inverse) * ups, n - i);
  }
}

// x = exp((x - top) * scale) from element i on; `sums` grows by these.
LLAMA_INLINE void exponentials_from(std::int64_t i, float* x, std::int64_t n, float top, float scale, Floats& sums) {
  for (; i < n; i += kLanes) {
    Floats values;
    load_part(values, x + i, n - i, -std::numeric_limits<float>::infinity());
    values = (values - top) * scale;
    exponential(values);
    sums += values;
    store_part(x + i, values, n - i);
  }
}

LLAMA_INLINE void divide_by_sum(float* x, std::int64_t n, const Floats& sums) {
  const float inverse = 1 / sum(sums);
  for (std::int64_t i = 0; i < n; ++i) x[i] *= inverse;
}

LLAMA_CLONES void multiply_narrow(const Product& p) {
  for (std::int64_t block = 0; block < p.blocks; ++block) tiles<Floats, 4, 1>(p, block);
}
LLAMA_WIDE void multiply_wide(const Product& p) {
  std::int64_t block = 0;
  for (; block + 2 <= p.blocks; block += 2) tiles<WideFloats, 8, 2>(p, block);
  if (block < p.blocks) tiles<WideFloats, 8, 1>(p, block);
}

LLAMA_CLONES void silu_multiply_narrow(const float* gate, const float* up, std::int64_t n, float* y) {
  silu_multiply_from(0, gate, up, n, y);
}
LLAMA_WIDE void silu_multiply_wide(const float* gate, const float* up, std::int64_t n, float* y) {
  std::int64_t i = 0;
  for (; i + kWideLanes <= n; i += kWideLanes) {
    WideFloats gates, ups;
    load(gates, gate + i);
    load(ups, up + i);
    WideFloats inverse = -gates;
    exponential(inverse);
    store(y + i, gates / (1 + inverse) * ups);
  }
  silu_multiply_from(i, gate, up, n, y);
}

LLAMA_CLONES void softmax_narrow(float* x, std::int64_t n, float scale) {
  Floats sums = {};
  exponentials_from(0, x, n, largest<Floats>(x, n), scale, sums);
  divide_by_sum(x, n, sums);
}
LLAMA_WIDE void softmax_wide(float* x, std::int64_t n, float scale) {
  const float top = largest<WideFloats>(x, n);
  Floats sums = {};
  std::int64_t i = 0;
  for (; i + kWideLanes <= n; i += kWideLanes) {
    WideFloats values;
    load(values, x + i);
    values = (values - top) * scale;
    exponential(values);
    store(x + i, values);
    Floats half;
    load(half, x + i);
    sums += half;
    load(half, x + i + kLanes);
    sums += half;
  }
  exponentials_from(i, x, n, top, scale, sums);
  divide_by_sum(x, n, sums);
}

}  // namespace

LLAMA_CLONES void widen(const std::uint16_t* bf16, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bf16[i]) << 16);
}

LLAMA_CLONES void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* y) {
  Floats squares = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Floats values;
    load(values, x + i);
    squares += values * values;
  }
  float total = sum(squares);
  for (; i < n; ++i) total += x[i] * x[i];
  const float scale = 1 / std::sqrt(total / static_cast<float>(n) + eps);
  for (std::int64_t j = 0; j < n; ++j) y[j] = x[j] * scale * weight[j];
}

LLAMA_CLONES void add(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] += y[i];
}

LLAMA_CLONES void rotate(float* x, const float* cosines, const float* sines, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cosines[i] - b * sines[i];
    x[i + half] = b * cosines[i] + a * sines[i];
  }
}

LLAMA_CLONES LogitSummary summarize(const float* logits, std::int64_t n) {
  const float top = largest<Floats>(logits, n);
  Floats sums = {};
  for (std::int64_t i = 0; i < n; i += kLanes) {
    Floats values;
    load_part(values, logits + i, n - i, -std::numeric_limits<float>::infinity());
    values -= top;
    exponential(values);
    sums += values;
  }
  std::int64_t position = 0;
  while (position + 1 < n && logits[position] != top) ++position;
  return {static_cast<std::int32_t>(position), top + std::log(sum(sums))};
}

void multiply(const Product& product) { (has_wide() ? multiply_wide : multiply_narrow)(product); }

void silu_multiply(const float* gate, const float* up, std::int64_t n, float* y) {
  (has_wide() ? silu_multiply_wide : silu_multiply_narrow)(gate, up, n, y);
}

void softmax(float* x, std::int64_t n, float scale) { (has_wide() ? softmax_wide : softmax_narrow)(x, n, scale); }

}  // namespace llama
