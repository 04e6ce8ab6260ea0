// gather_rows, scatter_rows, gather_scalars: a caller's strided operands to and from packed memory.
// sum_columns: what zero points are multiplied with.
#include "cuda/rows.hpp"
#include "numerics/formats.hpp"

namespace scaledmm::cuda {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t row_offset(const StridedRows& rows, std::int64_t row) {
  std::int64_t offset = 0;
  for (int i = rows.dimensions - 1; i >= 0; --i) {
    offset += row % rows.sizes[i] * rows.stride_bytes[i];
    row /= rows.sizes[i];
  }
  return offset;
}

template <class Word>
__device__ bool copy_words(const std::byte* from, std::byte* to, std::int64_t bytes) {
  const auto bits = reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) |
                    static_cast<std::uintptr_t>(bytes);
  if (bits % sizeof(Word) != 0) return false;
  const std::int64_t words = bytes / static_cast<std::int64_t>(sizeof(Word));
  for (std::int64_t i = threadIdx.x; i < words; i += blockDim.x) {
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  }
  return true;
}

template <bool kGather>
__global__ void copy_rows(StridedRows strided, std::byte* packed, std::int64_t row_bytes, std::int64_t packed_pitch) {
  const std::int64_t row = blockIdx.x;
  auto* there = static_cast<std::byte*>(strided.data) + row_offset(strided, row);
  std::byte* here = packed + row * packed_pitch;
  const std::byte* from = kGather ? there : here;
  std::byte* to = kGather ? here : there;
  copy_words<uint4>(from, to, row_bytes) || copy_words<std::uint32_t>(from, to, row_bytes) ||
      copy_words<std::uint16_t>(from, to, row_bytes) || copy_words<std::uint8_t>(from, to, row_bytes);
  if constexpr (kGather) {
    for (std::int64_t i = row_bytes + threadIdx.x; i < packed_pitch; i += blockDim.x) here[i] = std::byte{0};
  }
}

__global__ void gather_elements(StridedRows from, DType dtype, bool repeats, std::uint32_t* out, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const auto* element = static_cast<const std::byte*>(from.data) + row_offset(from, repeats ? 0 : i);
  if (dtype == DType::kF32 || dtype == DType::kInt32) {
    out[i] = *reinterpret_cast<const std::uint32_t*>(element);
  } else {
    const std::uint16_t bits = *reinterpret_cast<const std::uint16_t*>(element);
    out[i] = std::bit_cast<std::uint32_t>(dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits));
  }
}

// One block a row.
__global__ void sum_rows(const std::int8_t* w, std::int64_t k, std::int64_t pitch, std::int32_t* out) {
  __shared__ std::int32_t total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  const std::int8_t* row = w + blockIdx.x * pitch;
  std::int32_t sum = 0;
  for (std::int64_t i = threadIdx.x; i < k; i += kThreads) sum += row[i];
  atomicAdd(&total, sum);
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

unsigned blocks_of(std::int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t launch_gather_rows(const StridedRows& from, void* packed, std::int64_t rows, std::int64_t row_bytes,
                               std::int64_t packed_pitch, cudaStream_t stream) {
  auto* to = static_cast<std::byte*>(packed);
  copy_rows<true><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(from, to, row_bytes, packed_pitch);
  return cudaGetLastError();
}

cudaError_t launch_scatter_rows(const void* packed, const StridedRows& to, std::int64_t rows, std::int64_t row_bytes,
                                cudaStream_t stream) {
  auto* source = static_cast<std::byte*>(const_cast<void*>(packed));
  copy_rows<false><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(to, source, row_bytes, row_bytes);
  return cudaGetLastError();
}

cudaError_t launch_gather_scalars(const StridedRows& from, DType dtype, bool repeats, void* out, std::int64_t count,
                                  cudaStream_t stream) {
  gather_elements<<<blocks_of(count), kThreads, 0, stream>>>(from, dtype, repeats, static_cast<std::uint32_t*>(out),
                                                             count);
  return cudaGetLastError();
}

cudaError_t launch_sum_columns(const std::int8_t* w, std::int64_t n, std::int64_t k, std::int64_t pitch,
                               std::int32_t* out, cudaStream_t stream) {
  sum_rows<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(w, k, pitch, out);
  return cudaGetLastError();
}

}  // namespace scaledmm::cuda
