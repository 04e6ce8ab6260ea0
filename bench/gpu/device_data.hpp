// Buffers of the GPU benchmarks: normal random codes, scales, and the check of every CUDA call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cuda/gemm.hpp"

namespace scaledmm::bench {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Device memory of `size` bytes, owned.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size) : size_(size) { check(cudaMalloc(&data_, size ? size : 1), "cudaMalloc"); }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() { cudaFree(data_); }

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// Normal random codes as quantizing by the largest magnitude gives them: the bytes of rows behind k are poison (NaN in
// e4m3, large in int8), because nobody may use them.
void fill_codes(cuda::GemmType type, void* codes, std::int64_t rows, std::int64_t k, std::int64_t pitch,
                std::uint64_t seed);
// Uniform in [low, high).
void fill_uniform(float* values, std::int64_t count, float low, float high, std::uint64_t seed);
void fill_bf16(void* values, std::int64_t count, std::uint64_t seed);
// Integers in [low, high].
void fill_integers(std::int32_t* values, std::int64_t count, int low, int high, std::uint64_t seed);
void sum_columns(const std::int8_t* w, std::int64_t n, std::int64_t k, std::int64_t pitch, std::int32_t* sums);

}  // namespace scaledmm::bench
