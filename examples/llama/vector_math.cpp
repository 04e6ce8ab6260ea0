#include "vector_math.hpp"

#include <cmath>
#include <cstring>
#include <limits>

// x86-64-v1, AVX2 with FMA. No AVX-512: sums in another order would calibrate other codes there.
#define LLAMA_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#define LLAMA_INLINE static inline __attribute__((always_inline))

namespace llama {
namespace {

// Eight lanes in the compiler's vector notation: one register of AVX2, two of SSE.
constexpr std::int64_t kLanes = 8;
using Floats = float __attribute__((vector_size(32)));
using Ints = std::int32_t __attribute__((vector_size(32)));

LLAMA_INLINE void load(Floats& v, const float* p) { std::memcpy(&v, p, sizeof v); }
LLAMA_INLINE void store(float* p, const Floats& v) { std::memcpy(p, &v, sizeof v); }

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
LLAMA_INLINE void exponential(Floats& v) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  v = v < -87.0F ? Floats{} - 87.0F : v;
  v = v > 88.0F ? Floats{} + 88.0F : v;
  const Floats shifted = v * kLog2E + kRound;
  const Floats n = shifted - kRound;
  const Floats r = (v - n * kLn2High) - n * kLn2Low;
  Floats p = Floats{} + 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  Ints exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  exponent = (exponent - std::bit_cast<std::int32_t>(kRound) + 127) << 23;
  Floats power;
  std::memcpy(&power, &exponent, sizeof power);
  v = p * power;
}

template <int kRows>
LLAMA_INLINE void tile(std::int64_t k, const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                       float* c, std::int64_t c_stride) {
  Floats sums[kRows][2] = {};
  for (std::int64_t t = 0; t < k; ++t) {
    Floats left;
    Floats right;
    load(left, b + t * b_stride);
    load(right, b + t * b_stride + kLanes);
    for (int i = 0; i < kRows; ++i) {
      const float scalar = a[i * a_stride + t];
      sums[i][0] += scalar * left;
      sums[i][1] += scalar * right;
    }
  }
  for (int i = 0; i < kRows; ++i) {
    store(c + i * c_stride, sums[i][0]);
    store(c + i * c_stride + kLanes, sums[i][1]);
  }
}

LLAMA_INLINE float largest(const float* x, std::int64_t n) {
  Floats tops = Floats{} + x[0];
  for (std::int64_t i = 0; i < n; i += kLanes) {
    Floats values;
    load_part(values, x + i, n - i, x[0]);
    tops = values > tops ? values : tops;
  }
  float top = tops[0];
  for (std::int64_t i = 1; i < kLanes; ++i) top = tops[i] > top ? tops[i] : top;
  return top;
}

}  // namespace

LLAMA_CLONES void widen(const std::uint16_t* bf16, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bf16[i]) << 16);
}

LLAMA_CLONES void multiply_tile(std::int64_t rows, std::int64_t k, const float* a, std::int64_t a_stride,
                                const float* b, std::int64_t b_stride, float* c, std::int64_t c_stride) {
  switch (rows) {
    case 1:
      return tile<1>(k, a, a_stride, b, b_stride, c, c_stride);
    case 2:
      return tile<2>(k, a, a_stride, b, b_stride, c, c_stride);
    case 3:
      return tile<3>(k, a, a_stride, b, b_stride, c, c_stride);
    default:
      return tile<4>(k, a, a_stride, b, b_stride, c, c_stride);
  }
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

LLAMA_CLONES void silu_multiply(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    Floats gates;
    Floats ups;
    load_part(gates, gate + i, n - i, 0);
    load_part(ups, up + i, n - i, 0);
    Floats inverse = -gates;
    exponential(inverse);
    store_part(y + i, gates / (1 + inverse) * ups, n - i);
  }
}

LLAMA_CLONES void rotate(float* x, const float* cosines, const float* sines, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cosines[i] - b * sines[i];
    x[i + half] = b * cosines[i] + a * sines[i];
  }
}

LLAMA_CLONES void softmax(float* x, std::int64_t n, float scale) {
  const float top = largest(x, n);
  Floats sums = {};
  for (std::int64_t i = 0; i < n; i += kLanes) {
    Floats values;
    load_part(values, x + i, n - i, -std::numeric_limits<float>::infinity());
    values = (values - top) * scale;
    exponential(values);
    sums += values;
    store_part(x + i, values, n - i);
  }
  const float inverse = 1 / sum(sums);
  for (std::int64_t i = 0; i < n; ++i) x[i] *= inverse;
}

LLAMA_CLONES LogitSummary summarize(const float* logits, std::int64_t n) {
  const float top = largest(logits, n);
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

}  // namespace llama
