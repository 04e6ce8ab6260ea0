// One e4m3fn scale for a whole tensor that lies in one piece, in one launch: a CTA an SM keeps what it can of its part
// of x in registers and shared memory (44 MB on 132 SMs), finds the largest finite magnitude of all with the others
// through memory, and encodes: what it kept without reading it again, the rest from its end on, of which the L2 still
// has some. So x is read 1 to 2 times, where two kernels read it twice.
#pragma once

#include "cuda/quantize_rows.cuh"

namespace scaledmm::cuda {

struct FlatTensor {
  const std::byte* x;
  std::uint8_t* q;
  std::int64_t vectors;     // of kVector values
  std::int64_t per_thread;  // vectors, at most
  std::int64_t in_shared;   // of these
  std::int64_t in_l2;       // of these, the last ones, which the L2 is asked to keep until they are read again
  float* scale_out;
  std::uint32_t* words;  // [3] at zero, left at zero: CTAs that have found their largest, that have seen all's, and it
};

template <class X>
class FlatTensorQuantizer {
 public:
  static constexpr int kThreads = 512;
  static constexpr int kBytes = kVector * X::kBytes;
  static constexpr int kHeld = X::kBytes == 2 ? 16 : 8;  // vectors of a thread in registers: 64 of them

  __device__ __forceinline__ FlatTensorQuantizer(const FlatTensor& tensor, uint4* shared)
      : t_(tensor), shared_(shared), first_(blockIdx.x * tensor.per_thread * kThreads + threadIdx.x) {}

  __device__ __forceinline__ void run() {
    Vector<X> held[kHeld];
    Absmax<X> largest;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) held[j] = load(j);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) largest.add(held[j]);
    const std::int64_t kept = kHeld + t_.in_shared;
    for (std::int64_t j = kHeld; j < kept; j += kBatch) {
      Vector<X> v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) v[i] = load(j + i);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        largest.add(v[i]);
        if (j + i < kept) put_aside(j + i - kHeld, v[i]);
      }
    }
    for (std::int64_t j = kept; j < t_.per_thread; j += kBatch) {
      Vector<X> v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) v[i] = load(j + i, j + i < t_.per_thread - t_.in_l2 ? once_ : again_);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) largest.add(v[i]);
    }
    std::uint32_t mine = largest.bits();
    if (!is_finite(__uint_as_float(mine))) mine = largest_finite();
    const ScaleE4m3 encode{dynamic_tensor_fp8(__uint_as_float(meet(mine)), DType::kE4M3FN)};
    if (blockIdx.x == 0 && threadIdx.x == 0) *t_.scale_out = encode.scale.scale;
    std::int64_t j = t_.per_thread;
    for (; j >= kept + kBatch; j -= kBatch) {
      Vector<X> v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) v[i] = load(j - 1 - i);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) store(j - 1 - i, encode(v[i]));
    }
    for (; j > kept; --j) store(j - 1, encode(load(j - 1)));
    for (; j > kHeld; --j) store(j - 1, encode(take_back(j - 1 - kHeld)));
#pragma unroll
    for (int i = 0; i < kHeld; ++i) store(i, encode(held[i]));
  }

 private:
  static constexpr int kBatch = 8;  // loads in flight
  static constexpr int kQuads = kBytes / 16;

  __device__ __forceinline__ std::int64_t index(std::int64_t j) const { return first_ + j * kThreads; }
  __device__ __forceinline__ bool exists(std::int64_t j) const { return j < t_.per_thread && index(j) < t_.vectors; }

  static __device__ __forceinline__ void set_quad(Vector<X>& v, int i, const uint4& four) {
    v.words[4 * i] = four.x;
    v.words[4 * i + 1] = four.y;
    v.words[4 * i + 2] = four.z;
    v.words[4 * i + 3] = four.w;
  }
  __device__ __forceinline__ Vector<X> load(std::int64_t j) const { return load(j, once_); }
  __device__ __forceinline__ Vector<X> load(std::int64_t j, std::uint64_t policy) const {
    Vector<X> v;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const uint4 four = exists(j) ? load_streaming(t_.x + index(j) * kBytes + 16 * i, policy) : uint4{};
      set_quad(v, i, four);
    }
    return v;
  }
  __device__ __forceinline__ void store(std::int64_t j, uint2 codes) const {
    if (exists(j)) *reinterpret_cast<uint2*>(t_.q + index(j) * kVector) = codes;
  }
  __device__ __forceinline__ void put_aside(std::int64_t slot, const Vector<X>& v) const {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      shared_[(slot * kQuads + i) * kThreads + threadIdx.x] = {v.words[4 * i], v.words[4 * i + 1], v.words[4 * i + 2],
                                                               v.words[4 * i + 3]};
    }
  }
  __device__ __forceinline__ Vector<X> take_back(std::int64_t slot) const {
    Vector<X> v;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) set_quad(v, i, shared_[(slot * kQuads + i) * kThreads + threadIdx.x]);
    return v;
  }

  // For threads that met a NaN or an Inf.
  __device__ std::uint32_t largest_finite() const {
    std::uint32_t largest = 0;
    for (std::int64_t j = 0; j < t_.per_thread; ++j) {
      const Vector<X> v = load(j);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        largest = max(largest, is_finite(v[i]) ? __float_as_uint(magnitude(v[i])) : 0u);
      }
    }
    return largest;
  }

  // The largest over all CTAs, which run at once (a cooperative launch).
  __device__ __forceinline__ std::uint32_t meet(std::uint32_t mine) const {
    std::uint32_t* words = t_.words;
    return of_all<WholeBlock>(mine, [words](std::uint32_t of_block) {
      atomicMax(words + 2, of_block);
      std::uint32_t done;
      asm volatile("fence.acq_rel.gpu;\nred.release.gpu.global.add.u32 [%0], 1;" ::"l"(words) : "memory");
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(words) : "memory");
      } while (done != gridDim.x);
      const std::uint32_t all = __ldcg(words + 2);
      std::uint32_t before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(words + 1) : "memory");
      if (before == gridDim.x - 1) {
        for (int i = 0; i < 3; ++i) __stcg(words + i, 0u);
      }
      return all;
    });
  }

  FlatTensor t_;
  uint4* shared_;
  std::int64_t first_;
  std::uint64_t once_ = evict_first_policy(), again_ = evict_last_policy();
};

template <class X>
__global__ void __launch_bounds__(FlatTensorQuantizer<X>::kThreads, 1) quantize_flat_tensor(FlatTensor tensor) {
  extern __shared__ uint4 shared[];
  FlatTensorQuantizer<X>(tensor, shared).run();
}

// x and q lie in one piece and are aligned.
template <class X>
cudaError_t launch_flat_tensor(const QuantizeFp8& a, cudaStream_t stream) {
  using Quantizer = FlatTensorQuantizer<X>;
  constexpr int kStaticBytes = 1024;  // what the kernel has besides
  int device = 0, processors = 0, shared_bytes = 0, l2_bytes = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device);
  if (error != cudaSuccess) return error;
  FlatTensor t{};
  t.x = static_cast<const std::byte*>(a.x.data);
  t.q = a.q;
  t.vectors = a.x.m * a.x.k / kVector;
  const std::int64_t blocks_of_one = (t.vectors + Quantizer::kThreads - 1) / Quantizer::kThreads;
  const auto blocks = static_cast<unsigned>(blocks_of_one < processors ? blocks_of_one : processors);
  t.per_thread = (blocks_of_one + blocks - 1) / blocks;
  const std::int64_t slot_bytes = Quantizer::kThreads * Quantizer::kBytes;
  const std::int64_t room = (shared_bytes - kStaticBytes) / slot_bytes, rest = t.per_thread - Quantizer::kHeld;
  t.in_shared = rest < 0 ? 0 : rest < room ? rest : room;
  const std::int64_t room_in_l2 = l2_bytes / 10 * 6 / (slot_bytes * blocks);  // codes pass through the L2, too
  t.in_l2 = rest < t.in_shared ? 0 : rest - t.in_shared < room_in_l2 ? rest - t.in_shared : room_in_l2;
  t.scale_out = static_cast<float*>(a.scale_out);
  t.words = a.counters;
  error = cudaFuncSetAttribute(quantize_flat_tensor<X>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(room * slot_bytes));
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = Quantizer::kThreads;
  config.dynamicSmemBytes = static_cast<std::size_t>(t.in_shared * slot_bytes);
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, quantize_flat_tensor<X>, t);
}

}  // namespace scaledmm::cuda
