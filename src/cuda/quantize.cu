// Activations to codes, bound by memory.
#include <atomic>
#include <type_traits>

#include "cuda/quantize.hpp"
#include "cuda/quantize_rows.cuh"
#include "cuda/quantize_tensor.cuh"

namespace scaledmm::cuda {
namespace {

constexpr int kThreads = 256;

// The next kernel on the stream may start its preparations, and this one waits for the results of the one before.
__device__ __forceinline__ void join_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Compute capability 9.0 and later start kernels while the one before them ends.
bool can_overlap() {
  constexpr int kDevices = 64;
  static std::atomic<int> majors[kDevices];
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return false;
  int major = majors[device];
  if (major == 0) {
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) return false;
    majors[device] = major;
  }
  return major >= 9;
}

// For kernels that begin with join_stream(). Errors are the runtime's last one.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, cudaStream_t stream,
            const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = can_overlap() ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

// One block a row.
template <class X, class Token, int kVectors>
__global__ void __launch_bounds__(1024) quantize_tokens(Activations x, Token token, Codes codes) {
  join_stream();
  quantize_short_row<WholeBlock, kVectors>(x.row<X>(blockIdx.x), blockIdx.x, token, codes);
}

template <class X, class Token>
__global__ void __launch_bounds__(1024) quantize_long_tokens(Activations x, Token token, Codes codes) {
  join_stream();
  quantize_long_row<WholeBlock>(x.row<X>(blockIdx.x), blockIdx.x, token, codes);
}

template <class X, class Token>
void launch_tokens(std::int64_t m, const Activations& x, const Token& token, const Codes& codes, cudaStream_t stream) {
  constexpr std::int64_t kSmallBatch = 512;  // rows that leave the card idle: many threads a row
  const auto rows = static_cast<unsigned>(m);
  const std::int64_t vectors = (codes.columns + kVector - 1) / kVector;
  const auto threads = [&](std::int64_t each) {  // whole warps
    return static_cast<unsigned>(((vectors + each - 1) / each + 31) / 32 * 32);
  };
  if constexpr (std::is_same_v<Token, TokenFp8>) {
    launch(quantize_long_tokens<X, Token>, rows, kThreads, stream, x, token, codes);
  } else if (vectors <= 1024 && m <= kSmallBatch) {
    launch(quantize_tokens<X, Token, 1>, rows, threads(1), stream, x, token, codes);
  } else if (vectors <= 4096) {
    launch(quantize_tokens<X, Token, 4>, rows, threads(4), stream, x, token, codes);
  } else {
    launch(quantize_long_tokens<X, Token>, rows, 1024, stream, x, token, codes);
  }
}

// --- one scale for all ---

struct KnownFp8 {
  Fp8Scale scale;
  DType dtype;
  __device__ ScaleFp8 operator()() const { return {scale, dtype}; }
};

// The scale of a whole tensor whose largest finite magnitude stands in memory.
struct TensorFp8 {
  const std::uint32_t* absmax;
  float* scale_out;
  DType dtype;
  __device__ __forceinline__ Fp8Scale scale() const {
    const Fp8Scale scale = dynamic_tensor_fp8(__uint_as_float(*absmax), dtype);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *scale_out = scale.scale;
    return scale;
  }
};
struct TensorE4m3 : TensorFp8 {
  __device__ __forceinline__ ScaleE4m3 operator()() const { return {scale()}; }
};
struct TensorOtherFp8 : TensorFp8 {
  __device__ ScaleFp8 operator()() const { return {scale(), dtype}; }
};

constexpr int kKnownVectors = 4, kKnownThreads = 128;

template <class X, class Known>
__global__ void __launch_bounds__(kKnownThreads) quantize_known(Activations x, Known known, Codes codes) {
  join_stream();
  const std::int64_t m = blockIdx.x;
  const Row<X> row = x.row<X>(m);
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.y) * kKnownVectors * kKnownThreads + threadIdx.x) * kVector;
  Vector<X> v[kKnownVectors];
#pragma unroll
  for (int i = 0; i < kKnownVectors; ++i) v[i] = row.load(first + i * kKnownThreads * kVector);
  const auto encode = known();
#pragma unroll
  for (int i = 0; i < kKnownVectors; ++i) {
    const std::int64_t column = first + i * kKnownThreads * kVector;
    if (column < codes.columns) codes.store(m, column, encode(v[i]));
  }
}

template <class X, class Known>
void launch_known(std::int64_t m, const Activations& x, const Known& known, const Codes& codes, cudaStream_t stream) {
  constexpr std::int64_t kColumns = kKnownVectors * kKnownThreads * kVector;
  const dim3 grid(static_cast<unsigned>(m), static_cast<unsigned>((codes.columns + kColumns - 1) / kColumns));
  launch(quantize_known<X, Known>, grid, kKnownThreads, stream, x, known, codes);
}

template <class X>
__global__ void __launch_bounds__(kThreads) find_finite_absmax(Activations x, std::uint32_t* absmax) {
  const Row<X> row = x.row<X>(blockIdx.x);
  std::uint32_t largest = 0;
  for (std::int64_t column = threadIdx.x * kVector; column < x.k; column += kThreads * kVector) {
    const Vector<X> v = row.load(column);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const std::uint32_t bits = __float_as_uint(magnitude(v[j]));
      largest = max(largest, is_finite(v[j]) ? bits : 0u);
    }
  }
  largest = of_all<WholeBlock>(largest, [](std::uint32_t all) { return all; });
  if (threadIdx.x == 0) atomicMax(absmax, largest);
}

// --- one scale a group of a row ---

struct GroupScales {
  void* data;
  bool is_e8m0;
  std::int64_t row_stride, column_stride;
  __device__ __forceinline__ void store(std::int64_t m, std::int64_t group, float scale) const {
    const std::int64_t at = m * row_stride + group * column_stride;
    if (is_e8m0) {  // a power of two, or NaN: 255
      static_cast<std::uint8_t*>(data)[at] = static_cast<std::uint8_t>(__float_as_uint(scale) >> 23);
    } else {
      static_cast<float*>(data)[at] = scale;
    }
  }
};

constexpr int kGroup = 128;  // the group of the kernel below
constexpr int kGroupThreads = 128;
constexpr int kGroupLanes = 8;
constexpr int kGroupVectors = kGroup / kVector / kGroupLanes;  // 2: a lane has columns 8 l and 64 + 8 l of its group
constexpr int kGroupsAtOnce = 2;
constexpr int kGroupsOfBlock = kGroupThreads / kGroupLanes * kGroupsAtOnce;

// Groups of 128 that begin at column 0, 8 lanes each.
template <class X>
__global__ void __launch_bounds__(kGroupThreads)
    quantize_groups_of_128(Activations x, bool ue8m0, GroupScales scales, Codes codes) {
  join_stream();
  const std::int64_t m = blockIdx.x;
  const Row<X> row = x.row<X>(m);
  const unsigned lane = threadIdx.x % kGroupLanes;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kGroupsOfBlock + threadIdx.x / kGroupLanes;
  const auto group_of = [&](int i) { return first + i * (kGroupThreads / kGroupLanes); };
  const auto column_of = [&](int i, int j) {
    return group_of(i) * kGroup + j * (kGroup / kGroupVectors) + lane * kVector;
  };
  Vector<X> v[kGroupsAtOnce][kGroupVectors];
#pragma unroll
  for (int i = 0; i < kGroupsAtOnce; ++i) {
#pragma unroll
    for (int j = 0; j < kGroupVectors; ++j) v[i][j] = row.load(column_of(i, j));
  }
#pragma unroll
  for (int i = 0; i < kGroupsAtOnce; ++i) {
    Absmax<X> statistic;
#pragma unroll
    for (int j = 0; j < kGroupVectors; ++j) statistic.add(v[i][j]);
    std::uint32_t bits = statistic.bits();
#pragma unroll
    for (int step = kGroupLanes / 2; step > 0; step /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, step));
    const float absmax = __uint_as_float(bits);
    const Fp8Scale scale = dynamic_group_fp8(absmax, DType::kE4M3FN, ue8m0);
    if (lane == 0 && group_of(i) * kGroup < x.k) scales.store(m, group_of(i), scale.scale);
    const DivideE4m3 encode = DivideE4m3::make(scale, absmax);
#pragma unroll
    for (int j = 0; j < kGroupVectors; ++j) {
      const std::int64_t column = column_of(i, j);
      if (column < codes.columns) codes.store(m, column, encode(v[i][j]));
    }
  }
}

// Any groups, one warp each. Columns behind K belong to the last one.
template <class X>
__global__ void __launch_bounds__(32) quantize_groups(Activations x, std::int64_t group, std::int64_t offset,
                                                      bool ue8m0, DType dtype, GroupScales scales, Codes codes) {
  const std::int64_t m = blockIdx.x, g = blockIdx.y;
  const Row<X> row = x.row<X>(m);
  const std::int64_t begin = max(g * group - offset, std::int64_t{0}), end = min((g + 1) * group - offset, x.k);
  std::uint32_t largest = 0;
  for (std::int64_t column = begin + threadIdx.x; column < end; column += 32) {
    largest = max(largest, __float_as_uint(magnitude(row.value(column))));
  }
  const Fp8Scale scale = dynamic_group_fp8(__uint_as_float(warp_max(largest)), dtype, ue8m0);
  if (threadIdx.x == 0) scales.store(m, g, scale.scale);
  const std::int64_t stop = end == x.k ? codes.columns : end;
  for (std::int64_t column = begin + threadIdx.x; column < stop; column += 32) {
    codes.data[m * codes.stride + column] = quantize_fp8(column < end ? row.value(column) : 0.0f, scale, dtype);
  }
}

// --- launches ---

template <class X>
cudaError_t quantize_int8(const QuantizeInt8& a, cudaStream_t stream) {
  const Activations x = activations(a.x);
  const Codes codes = codes_of(a.q, a.q_columns, a.q_stride, a.x.m);
  if (!a.is_static) {
    if (a.symmetric) {
      launch_tokens<X>(a.x.m, x, TokenInt8{a.scale_out}, codes, stream);
    } else {
      launch_tokens<X>(a.x.m, x, TokenInt8WithZeroPoint{a.scale_out, a.zero_point_out}, codes, stream);
    }
  } else {
    const Int8Scale scale =
        a.symmetric ? static_symmetric_int8(a.scale) : static_asymmetric_int8(a.scale, a.zero_point);
    launch_known<X>(a.x.m, x, KnownInt8{scale}, codes, stream);
  }
  return cudaGetLastError();
}

template <class X>
cudaError_t quantize_tensor(const QuantizeFp8& a, const Activations& x, const Codes& codes, cudaStream_t stream) {
  const bool is_flat = (a.x.m == 1 || (a.x.stride == a.x.k && a.q_stride == a.x.k)) && a.q_columns == a.x.k &&
                       a.x.k % kVector == 0 && x.is_aligned && codes.is_aligned;
  if (is_flat && a.dtype == DType::kE4M3FN) return launch_flat_tensor<X>(a, stream);
  const cudaError_t error = cudaMemsetAsync(a.absmax, 0, sizeof *a.absmax, stream);
  if (error != cudaSuccess) return error;
  find_finite_absmax<X><<<static_cast<unsigned>(a.x.m), kThreads, 0, stream>>>(x, a.absmax);
  const TensorFp8 tensor{a.absmax, static_cast<float*>(a.scale_out), a.dtype};
  if (a.dtype == DType::kE4M3FN) {
    launch_known<X>(a.x.m, x, TensorE4m3{tensor}, codes, stream);
  } else {
    launch_known<X>(a.x.m, x, TensorOtherFp8{tensor}, codes, stream);
  }
  return cudaGetLastError();
}

template <class X>
cudaError_t quantize_in_groups(const QuantizeFp8& a, const Activations& x, const Codes& codes, cudaStream_t stream) {
  const GroupScales scales{a.scale_out, a.scale_dtype == DType::kE8M0, a.scale_row_stride, a.scale_column_stride};
  const auto rows = static_cast<unsigned>(a.x.m);
  if (a.group == kGroup && a.group_offset == 0 && a.dtype == DType::kE4M3FN) {
    const std::int64_t groups = (codes.columns + kGroup - 1) / kGroup;
    const dim3 grid(rows, static_cast<unsigned>((groups + kGroupsOfBlock - 1) / kGroupsOfBlock));
    launch(quantize_groups_of_128<X>, grid, kGroupThreads, stream, x, a.ue8m0, scales, codes);
  } else {
    const std::int64_t groups = (a.group_offset + a.x.k + a.group - 1) / a.group;
    const dim3 grid(rows, static_cast<unsigned>(groups));
    quantize_groups<X><<<grid, 32, 0, stream>>>(x, a.group, a.group_offset, a.ue8m0, a.dtype, scales, codes);
  }
  return cudaGetLastError();
}

template <class X>
cudaError_t quantize_fp8(const QuantizeFp8& a, cudaStream_t stream) {
  const Activations x = activations(a.x);
  const Codes codes = codes_of(a.q, a.q_columns, a.q_stride, a.x.m);
  const bool is_e4m3 = a.dtype == DType::kE4M3FN;
  switch (a.scheme) {
    case Fp8Scheme::kDynamicTensor:
      return quantize_tensor<X>(a, x, codes, stream);
    case Fp8Scheme::kDynamicGroup:
      return quantize_in_groups<X>(a, x, codes, stream);
    case Fp8Scheme::kDynamicToken: {
      auto* scale = static_cast<float*>(a.scale_out);
      if (is_e4m3) {
        launch_tokens<X>(a.x.m, x, TokenE4m3{a.upper_bound, scale}, codes, stream);
      } else {
        launch_tokens<X>(a.x.m, x, TokenFp8{a.dtype, a.upper_bound, scale}, codes, stream);
      }
      return cudaGetLastError();
    }
    case Fp8Scheme::kStaticTensor:
      if (is_e4m3) {
        launch_known<X>(a.x.m, x, KnownE4m3{static_fp8(a.scale)}, codes, stream);
      } else {
        launch_known<X>(a.x.m, x, KnownFp8{static_fp8(a.scale), a.dtype}, codes, stream);
      }
      return cudaGetLastError();
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_quantize_int8(const QuantizeInt8& arguments, cudaStream_t stream) {
  if (arguments.x.dtype == DType::kF32) return quantize_int8<F32>(arguments, stream);
  return arguments.x.dtype == DType::kBF16 ? quantize_int8<Bf16>(arguments, stream)
                                           : quantize_int8<F16>(arguments, stream);
}

cudaError_t launch_quantize_fp8(const QuantizeFp8& arguments, cudaStream_t stream) {
  if (arguments.x.dtype == DType::kF32) return quantize_fp8<F32>(arguments, stream);
  return arguments.x.dtype == DType::kBF16 ? quantize_fp8<Bf16>(arguments, stream)
                                           : quantize_fp8<F16>(arguments, stream);
}

}  // namespace scaledmm::cuda
