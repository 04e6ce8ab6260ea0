#include "device_data.hpp"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

namespace scaledmm::bench {
namespace {

// Standard deviation of codes whose largest of some thousand normal values is the type's largest code.
constexpr float kFp8Deviation = 100.0f;
constexpr float kInt8Deviation = 28.0f;
constexpr int kThreads = 256;

// SplitMix64 of a counter. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
__device__ std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = (seed << 40) + (index + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ float random_normal(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = random_bits(seed, index);
  const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
  const float v = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
  return sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
}

__global__ void fill_codes_kernel(bool int8, std::uint8_t* codes, std::int64_t rows, std::int64_t k, std::int64_t pitch,
                                  std::uint64_t seed) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= rows * pitch) return;
  const std::int64_t column = index % pitch;
  if (column >= k) {
    codes[index] = 0x7f;
  } else if (int8) {
    const float value = fminf(fmaxf(random_normal(seed, index) * kInt8Deviation, -128.0f), 127.0f);
    codes[index] = static_cast<std::uint8_t>(static_cast<std::int8_t>(__float2int_rn(value)));
  } else {
    codes[index] = __nv_cvt_float_to_fp8(random_normal(seed, index) * kFp8Deviation, __NV_SATFINITE, __NV_E4M3);
  }
}

__global__ void fill_uniform_kernel(float* values, std::int64_t count, float low, float high, std::uint64_t seed) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) values[i] = low + (high - low) * (static_cast<float>(random_bits(seed, i) >> 40) * 0x1p-24f);
}

__global__ void fill_bf16_kernel(__nv_bfloat16* values, std::int64_t count, std::uint64_t seed) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) values[i] = __float2bfloat16_rn(random_normal(seed, i));
}

__global__ void fill_integers_kernel(std::int32_t* values, std::int64_t count, int low, int high, std::uint64_t seed) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) values[i] = low + static_cast<int>(random_bits(seed, i) % static_cast<unsigned>(high - low + 1));
}

__global__ void sum_columns_kernel(const std::int8_t* w, std::int64_t n, std::int64_t k, std::int64_t pitch,
                                   std::int32_t* sums) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= n) return;
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < k; ++i) sum += w[row * pitch + i];
  sums[row] = sum;
}

unsigned blocks_for(std::int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

void fill_codes(cuda::GemmType type, void* codes, std::int64_t rows, std::int64_t k, std::int64_t pitch,
                std::uint64_t seed) {
  fill_codes_kernel<<<blocks_for(rows * pitch), kThreads>>>(type == cuda::GemmType::kInt8,
                                                            static_cast<std::uint8_t*>(codes), rows, k, pitch, seed);
  check(cudaGetLastError(), "fill_codes");
}

void fill_uniform(float* values, std::int64_t count, float low, float high, std::uint64_t seed) {
  fill_uniform_kernel<<<blocks_for(count), kThreads>>>(values, count, low, high, seed);
  check(cudaGetLastError(), "fill_uniform");
}

void fill_bf16(void* values, std::int64_t count, std::uint64_t seed) {
  fill_bf16_kernel<<<blocks_for(count), kThreads>>>(static_cast<__nv_bfloat16*>(values), count, seed);
  check(cudaGetLastError(), "fill_bf16");
}

void fill_integers(std::int32_t* values, std::int64_t count, int low, int high, std::uint64_t seed) {
  fill_integers_kernel<<<blocks_for(count), kThreads>>>(values, count, low, high, seed);
  check(cudaGetLastError(), "fill_integers");
}

void sum_columns(const std::int8_t* w, std::int64_t n, std::int64_t k, std::int64_t pitch, std::int32_t* sums) {
  sum_columns_kernel<<<blocks_for(n), kThreads>>>(w, n, k, pitch, sums);
  check(cudaGetLastError(), "sum_columns");
}

}  // namespace scaledmm::bench
