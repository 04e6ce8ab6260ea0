// The inner loops outside the linear layers. Each is compiled for several instruction sets and chosen when the program
// starts.
#pragma once

#include <bit>
#include <cstdint>

namespace llama {

inline float widen(std::uint16_t bf16) { return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16); }
void widen(const std::uint16_t* bf16, std::int64_t n, float* out);

inline constexpr std::int64_t kColumnBlock = 16;

// c[i, j] = sum over t of a[i, t] * b[t, j], in the order of t. Strides in floats, from row to row; of b also from a
// block of 16 columns to the next. Multiples of 8 rows are fast.
struct Product {
  std::int64_t rows;
  std::int64_t k;
  std::int64_t blocks;  // of columns
  const float* a;
  std::int64_t a_stride;
  const float* b;
  std::int64_t b_stride;
  std::int64_t b_block;
  float* c;
  std::int64_t c_stride;
};
void multiply(const Product& product);

// y = x / sqrt(mean(x^2) + eps) * weight
void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* y);

// x += y
void add(float* x, const float* y, std::int64_t n);

// y = gate / (1 + exp(-gate)) * up
void silu_multiply(const float* gate, const float* up, std::int64_t n, float* y);

// Pairs (x[i], x[i + half]) turn by an angle with these cosines and sines.
void rotate(float* x, const float* cosines, const float* sines, std::int64_t half);

// x = exp(x * scale) / sum of those, n >= 1.
void softmax(float* x, std::int64_t n, float scale);

struct LogitSummary {
  std::int32_t top = 0;  // the first of the largest
  float log_sum_exp = 0;
};
LogitSummary summarize(const float* logits, std::int64_t n);

}  // namespace llama
