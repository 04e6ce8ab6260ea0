#include "gemm_layer.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstring>

namespace scaledmm::bench {
namespace {

constexpr unsigned char kPoison = 0xf7;  // repeated: a finite value far from any result, in each output type

struct Reference {
  double exact;      // FP8: the output before rounding
  double magnitude;  // FP8: sum |x w| sx sw
  float value;       // INT8: the output before rounding to its type
};

__device__ double decode(std::uint8_t code) {
  return static_cast<float>(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

// One warp for each output of the rows rows[blockIdx.y].
__global__ void reference_kernel(cuda::GemmArguments a, const void* codes, std::int64_t n, std::int64_t k,
                                 std::int64_t pitch, bool int8, const int* rows, Reference* results) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (column >= n) return;
  const std::int64_t row = rows[blockIdx.y];
  const std::uint8_t* x = static_cast<const std::uint8_t*>(a.x) + row * a.x_pitch;
  const std::uint8_t* w = static_cast<const std::uint8_t*>(codes) + column * pitch;
  const float sx = a.x_scale[a.x_scale_per_token ? row : 0], sw = a.w_scale[a.w_scale_per_channel ? column : 0];
  Reference& result = results[blockIdx.y * n + column];
  if (int8) {
    const long long zero = a.x_zero_point ? a.x_zero_point[a.x_zero_point_per_token ? row : 0] : 0;
    long long sum = 0;
    for (std::int64_t i = lane; i < k; i += 32) {
      sum += (static_cast<std::int8_t>(x[i]) - zero) * static_cast<std::int8_t>(w[i]);
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
    const float t = __fmul_rn(__ll2float_rn(sum), sx);
    if (lane == 0) result = {0, 0, a.bias ? __fmaf_rn(t, sw, a.bias[column]) : __fmul_rn(t, sw)};
  } else {
    double sum = 0, magnitude = 0;
    for (std::int64_t i = lane; i < k; i += 32) {
      const double product = decode(x[i]) * decode(w[i]);
      sum += product;
      magnitude += fabs(product);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      sum += __shfl_down_sync(~0u, sum, offset);
      magnitude += __shfl_down_sync(~0u, magnitude, offset);
    }
    const double scale = static_cast<double>(sx) * sw;
    if (lane == 0) result = {sum * scale + (a.bias ? a.bias[column] : 0.0), magnitude * scale, 0};
  }
}

std::int64_t element_bytes(cuda::GemmOutput type) { return type == cuda::GemmOutput::kFloat32 ? 4 : 2; }

double load(cuda::GemmOutput type, const unsigned char* at) {
  if (type == cuda::GemmOutput::kFloat32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (type == cuda::GemmOutput::kFloat16) {
    __half_raw raw;
    raw.x = bits;
    return __half2float(__half(raw));
  }
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

float round_to(cuda::GemmOutput type, float value) {
  if (type == cuda::GemmOutput::kFloat16) return __half2float(__float2half_rn(value));
  if (type == cuda::GemmOutput::kBfloat16) return __bfloat162float(__float2bfloat16_rn(value));
  return value;
}

// Half of the distance between neighbours of `value` in the output type, relative.
double half_step(cuda::GemmOutput type) {
  return type == cuda::GemmOutput::kBfloat16 ? 0x1p-9 : type == cuda::GemmOutput::kFloat16 ? 0x1p-12 : 0x1p-25;
}

std::int64_t pitch_of(std::int64_t k, std::int64_t padding) { return (k + 15) / 16 * 16 + padding; }

}  // namespace

double fp8_bound(std::int64_t k, bool fast) {
  const double blocks = static_cast<double>((k + 127) / 128);
  // Without promotion every addition into the short accumulator may lose 2^-13 of it: kept apart from the contract.
  if (fast) return 0x1p-6;
  return 0x1p-24 * (static_cast<double>(k) + 4 * blocks + 8) + 0x1p-9;
}

GemmLayer::GemmLayer(const LayerShape& shape, std::uint64_t seed)
    : shape_(shape),
      x_pitch_(pitch_of(shape.k, shape.x_padding)),
      w_pitch_(pitch_of(shape.k, shape.w_padding)),
      y_stride_(shape.n + shape.y_padding),
      x_(shape.m * x_pitch_),
      x_scale_(shape.m * 4),
      w_scale_(shape.n * 4),
      bias_(shape.n * 4),
      zero_points_(shape.m * 4),
      y_(shape.m * y_stride_ * element_bytes(shape.y_type)) {
  fill_codes(shape.type, x_.data(), shape.m, shape.k, x_pitch_, seed);
  // Outputs of order one, whatever K is.
  const float typical = (shape.type == cuda::GemmType::kInt8 ? 28.0f : 100.0f) * std::sqrt(std::sqrt(float(shape.k)));
  fill_uniform(x_scale_.as<float>(), shape.m, 0.5f / typical, 1.5f / typical, seed + 1);
  fill_uniform(w_scale_.as<float>(), shape.n, 0.5f / typical, 1.5f / typical, seed + 2);
  fill_uniform(bias_.as<float>(), shape.n, -1.0f, 1.0f, seed + 3);
  fill_integers(zero_points_.as<std::int32_t>(), shape.m, -128, 127, seed + 4);
  for (int i = 0; i < shape.copies; ++i) {
    codes_.emplace_back(shape.n * w_pitch_);
    fill_codes(shape.type, codes_.back().data(), shape.n, shape.k, w_pitch_, seed + 5 + i);
    column_sums_.emplace_back(shape.zero_points ? shape.n * 4 : 4);
    if (shape.zero_points) {
      sum_columns(codes_.back().as<std::int8_t>(), shape.n, shape.k, w_pitch_, column_sums_.back().as<std::int32_t>());
    }
    weights_.emplace_back();
    check(cuda::prepare_gemm_weights(shape.type, codes_.back().data(), shape.n, shape.k, w_pitch_, &weights_.back()),
          "prepare_gemm_weights");
  }
  check(cudaDeviceSynchronize(), "fill");
}

cuda::GemmArguments GemmLayer::arguments(int copy) const {
  return {.weights = &weights_[copy],
          .x = x_.data(),
          .m = shape_.m,
          .x_pitch = x_pitch_,
          .x_scale = x_scale_.as<float>(),
          .x_scale_per_token = shape_.per_token,
          .w_scale = w_scale_.as<float>(),
          .w_scale_per_channel = shape_.per_channel,
          .bias = shape_.bias ? bias_.as<float>() : nullptr,
          .y = y_.data(),
          .y_type = shape_.y_type,
          .y_stride = y_stride_,
          .x_zero_point = shape_.zero_points ? zero_points_.as<std::int32_t>() : nullptr,
          .x_zero_point_per_token = shape_.zero_points == 2,
          .x_zero_point_any = false,
          .w_column_sum = shape_.zero_points ? column_sums_[copy].as<std::int32_t>() : nullptr,
          .accumulate = cuda::GemmAccumulate::kPromoted,
          .fused = nullptr,
          .overlap_previous = false};
}

void GemmLayer::poison() { check(cudaMemset(y_.data(), kPoison, y_.size()), "poison"); }

GemmLayer::Result GemmLayer::verify(int copy, int rows, double relative_bound) const {
  const bool int8 = shape_.type == cuda::GemmType::kInt8;
  std::vector<int> list;
  const int count = static_cast<int>(rows == 0 || rows > shape_.m ? shape_.m : rows);
  for (int i = 0; i < count; ++i) list.push_back(static_cast<int>(count == 1 ? 0 : i * (shape_.m - 1) / (count - 1)));
  Buffer list_buffer(list.size() * 4), result_buffer(list.size() * shape_.n * sizeof(Reference));
  check(cudaMemcpy(list_buffer.data(), list.data(), list.size() * 4, cudaMemcpyDefault), "copy rows");
  const dim3 grid(static_cast<unsigned>((shape_.n + 7) / 8), static_cast<unsigned>(list.size()));
  reference_kernel<<<grid, 256>>>(arguments(copy), codes_[copy].data(), shape_.n, shape_.k, w_pitch_, int8,
                                  list_buffer.as<int>(), result_buffer.as<Reference>());
  std::vector<Reference> expected(list.size() * shape_.n);
  check(cudaMemcpy(expected.data(), result_buffer.data(), result_buffer.size(), cudaMemcpyDefault), "reference");
  const std::int64_t size = element_bytes(shape_.y_type), row_bytes = y_stride_ * size;
  std::vector<unsigned char> line(row_bytes);
  Result result{true, 0, ""};
  for (std::size_t i = 0; i < list.size(); ++i) {
    check(cudaMemcpy(line.data(), y_.as<char>() + list[i] * row_bytes, row_bytes, cudaMemcpyDefault), "copy y");
    for (std::int64_t n = 0; n < shape_.n; ++n) {
      const Reference& reference = expected[i * shape_.n + n];
      const double y = load(shape_.y_type, line.data() + n * size);
      bool good;
      if (int8) {
        good = static_cast<float>(y) == round_to(shape_.y_type, reference.value);
        result.worst += !good;
      } else {
        const double error = std::abs(y - reference.exact) - half_step(shape_.y_type) * std::abs(y);
        good = error <= relative_bound * reference.magnitude;
        if (!(error <= result.worst * reference.magnitude)) result.worst = error / reference.magnitude;
      }
      if (!good && result.ok) {
        result = {false, result.worst,
                  "y[" + std::to_string(list[i]) + ", " + std::to_string(n) + "] = " + std::to_string(y) +
                      ", expected " + std::to_string(int8 ? reference.value : reference.exact)};
      }
    }
    for (std::int64_t b = shape_.n * size; b < row_bytes; ++b) {
      if (line[b] == kPoison) continue;
      if (result.ok) result = {false, result.worst, "padding of row " + std::to_string(list[i]) + " was written"};
    }
  }
  return result;
}

}  // namespace scaledmm::bench
