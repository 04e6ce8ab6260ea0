#include "kernels/cuda/gpu_multiply.hpp"

#include <algorithm>
#include <limits>

#include "device/cuda_module.hpp"
#include "kernels/cuda/gpu_activations.hpp"

namespace scaledmm {
namespace {

constexpr int kFirstFp8Card = 89;
constexpr std::int64_t kWorkspaceBytes = 32 << 20;  // what the vendor recommends for Hopper
constexpr std::int64_t kVendorStepM = 16;
constexpr std::int64_t kLeastInt8M = 32;       // the library has no INT8 algorithm for 16 rows and fewer
constexpr std::int64_t kVendorAlignment = 16;  // bytes, of rows

// The library itself can scale, round and store y.
bool is_direct(const GpuWeights& w, const GpuActivations& x, const ApplyArguments& a) {
  const std::int64_t row_bytes = a.y_stride * size_bytes(a.y_dtype);
  const bool aligned = reinterpret_cast<std::uintptr_t>(a.y) % kVendorAlignment == 0 &&
                       row_bytes % kVendorAlignment == 0 && a.y_stride >= w.n;
  return aligned && a.bias == nullptr && w.one_scale && !x.scale_per_token && w.padded_n == w.n;
}

}  // namespace

void prepare_sm90(GpuWeights& weights, bool is_int8, const Context& context) {
  const cuda::ModuleApi& api = cuda_api();
  void* gemm = nullptr;
  check_cuda(api.prepare_gemm(context.device().index, is_int8, weights.codes.data(), weights.n, weights.k,
                              weights.pitch, &gemm));
  weights.gemm = {gemm, api.release_gemm};
}

void multiply_sm90(const LayerConfig& config, const GpuWeights& weights, bool fast, const ApplyArguments& a,
                   Context& context) {
  const ActivationNeeds needs{.rows = a.m, .own_copy = false, .may_fuse = true, .rest_bytes = 0};
  const GpuActivations x = quantize_on_gpu(config, weights, a, needs, context);
  cuda::Gemm gemm{};
  gemm.weights = weights.gemm.get();
  gemm.x = x.codes;
  gemm.m = a.m;
  gemm.x_pitch = x.pitch;
  gemm.x_scale = x.scale;
  gemm.x_scale_per_token = x.scale_per_token;
  gemm.w_scale = weights.scales.as<float>();
  gemm.bias = a.bias;
  gemm.y = a.y;
  gemm.y_dtype = a.y_dtype;
  gemm.y_stride = a.m == 1 ? weights.n : a.y_stride;
  gemm.x_zero_point = x.zero_point;
  gemm.x_zero_point_per_token = x.zero_point_per_token;
  gemm.x_zero_point_any = a.x_zero_point != nullptr;
  gemm.w_column_sum = weights.column_sums.as<std::int32_t>();
  gemm.fast = fast;
  gemm.fused = x.fused ? &*x.fused : nullptr;
  gemm.x_is_new = !x.fused && a.x_scale == nullptr;
  check_cuda(cuda_api().gemm(place_of(context), &gemm));
}

Support is_vendor_supported(const Device& device) {
  const Support capable = is_capability(device, kFirstFp8Card, std::numeric_limits<int>::max());
  if (!capable || !device.found) return capable;
  const cuda::Failure failure = cuda_api().open_vendor();
  return failure == nullptr ? Support::yes() : Support::no(failure);
}

void multiply_vendor(const LayerConfig& config, const GpuWeights& weights, const ApplyArguments& a, Context& context) {
  const bool is_int8 = std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config);
  const std::int64_t rounded_m = (a.m + kVendorStepM - 1) / kVendorStepM * kVendorStepM;
  const std::int64_t rows = is_int8 ? std::max(rounded_m, kLeastInt8M) : rounded_m;
  const std::int64_t sums_bytes = rows * weights.padded_n * 4;
  const ActivationNeeds needs{
      .rows = rows, .own_copy = true, .may_fuse = false, .rest_bytes = kWorkspaceBytes + sums_bytes};
  const GpuActivations x = quantize_on_gpu(config, weights, a, needs, context);
  cuda::VendorGemm gemm{};
  gemm.is_int8 = is_int8;
  gemm.is_direct = !is_int8 && is_direct(weights, x, a);
  gemm.w = weights.codes.data();
  gemm.n = weights.padded_n;
  gemm.k = weights.pitch;
  gemm.x = x.codes;
  gemm.m = a.m;
  gemm.padded_m = gemm.is_direct ? a.m : rows;
  gemm.x_scale = x.scale;
  gemm.x_scale_per_token = x.scale_per_token;
  gemm.w_scale = weights.scales.as<float>();
  gemm.bias = a.bias;
  gemm.y = a.y;
  gemm.y_dtype = a.y_dtype;
  gemm.y_columns = weights.n;
  gemm.y_stride = a.y_stride;
  gemm.x_zero_point = x.zero_point;
  gemm.x_zero_point_per_token = x.zero_point_per_token;
  gemm.w_column_sum = weights.column_sums.as<std::int32_t>();
  gemm.workspace = x.rest;
  gemm.workspace_bytes = kWorkspaceBytes;
  gemm.sums = x.rest + kWorkspaceBytes;
  check_cuda(cuda_api().vendor_gemm(place_of(context), &gemm));
}

}  // namespace scaledmm
