// Operands in a GPU's memory, and what the tests on a GPU share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/cuda_module.hpp"
#include "exact.hpp"
#include "layer_builder.hpp"
#include "scaledmm/device_memory.hpp"
#include "scaledmm/registry.hpp"

namespace scaledmm {

// A matrix of the host and its copy on the GPU, with the same strides.
class GpuMatrix {
 public:
  GpuMatrix(const Device& device, Matrix matrix)
      : matrix_(std::move(matrix)),
        buffer_(device, matrix_.bytes.data(), static_cast<std::int64_t>(matrix_.bytes.size())) {}

  TensorView view() { return {buffer_.data(), matrix_.dtype, matrix_.shape(), Shape{matrix_.stride, 1}}; }
  ConstTensorView view() const { return {buffer_.data(), matrix_.dtype, matrix_.shape(), Shape{matrix_.stride, 1}}; }
  ConstTensorView vector() const { return {buffer_.data(), matrix_.dtype, {matrix_.columns}}; }
  void upload(const Matrix& matrix) {
    matrix_ = matrix;
    buffer_.copy_from_host(matrix_.bytes.data(), static_cast<std::int64_t>(matrix_.bytes.size()));
  }
  const Matrix& download() {
    buffer_.copy_to_host(matrix_.bytes.data(), static_cast<std::int64_t>(matrix_.bytes.size()));
    return matrix_;
  }

 private:
  Matrix matrix_;
  DeviceBuffer buffer_;
};

inline const Device* test_gpu() {
  const BackendStatus& backend = cuda_backend();
  return backend.available ? &backend.devices.front() : nullptr;
}

inline std::vector<const LinearKernel*> gpu_kernels() {
  std::vector<const LinearKernel*> result;
  for (const LinearKernel* kernel : kernels()) {
    if (kernel->info().device == DeviceKind::kCuda) result.push_back(kernel);
  }
  return result;
}

// NaN equals NaN here: its bits are the hardware's.
inline std::string first_other_value(const Matrix& y, const Matrix& expected) {
  for (std::int64_t m = 0; m < y.rows; ++m) {
    if (y.row(m) == expected.row(m)) continue;
    for (std::int64_t n = 0; n < y.columns; ++n) {
      const float got = y.at(m, n), wanted = expected.at(m, n);
      if (std::isnan(got) && std::isnan(wanted)) continue;
      if (got == wanted && std::signbit(got) == std::signbit(wanted)) continue;
      return "y[" + std::to_string(m) + ", " + std::to_string(n) + "] = " + std::to_string(got) + ", expected " +
             std::to_string(wanted);
    }
  }
  return {};
}

// What the tensor core may add to the bound of exact.hpp, 2^-9 of the sum of magnitudes. docs/quantization.md 4.
inline void add_tensor_core_bound(std::vector<Exact>& exact, std::int64_t k) {
  const double unit = std::ldexp(static_cast<double>(k + 12), -24);
  for (Exact& e : exact) e.bound += std::ldexp((e.bound - std::ldexp(std::fabs(e.value), -23)) / unit, -9);
}

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test_gpu() == nullptr) GTEST_SKIP() << cuda_backend().detail;
    context_.emplace(*test_gpu());
  }
  const Device& gpu() const { return *test_gpu(); }
  Context& context() { return *context_; }

  // y = x W^T (+ bias) on the GPU, everything moved there and back; rows of y are `pad` elements apart.
  Matrix apply_on_gpu(const Layer& layer, const Matrix& x, const Matrix* bias, std::int64_t pad = 0) {
    const GpuMatrix gpu_x(gpu(), x);
    GpuMatrix y(gpu(), Matrix(out_dtype(layer.config()), x.rows, weight_shape(layer.config()).n, pad));
    std::optional<GpuMatrix> gpu_bias;
    if (bias != nullptr) gpu_bias.emplace(gpu(), *bias);
    layer.kernel()->apply_weights(layer, gpu_x.view(), gpu_bias ? gpu_bias->vector() : ConstTensorView{}, y.view(),
                                  context());
    return y.download();
  }

 private:
  std::optional<Context> context_;
};

// A test for each kernel of the list that runs on GPUs.
class GpuKernelTest : public GpuTest, public testing::WithParamInterface<const LinearKernel*> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (const Support support = kernel().is_supported(gpu()); !support) GTEST_SKIP() << support.reason();
  }
  const LinearKernel& kernel() const { return *GetParam(); }

  bool accepts(const Scheme& scheme, std::int64_t n, std::int64_t k, DType x = DType::kBF16,
               DType y = DType::kF32) const {
    LayerConfig config = scheme.config;
    set_shape(config, n, k, x, y);
    return kernel().can_implement(config).ok();
  }

  // A scheme that the kernel takes.
  Scheme first_scheme() const {
    for (const Scheme& scheme : all_schemes()) {
      if (accepts(scheme, 64, 64)) return scheme;
    }
    throw std::logic_error(std::string(kernel().name()) + " takes no scheme");
  }

  template <class Check>
  void for_each_scheme(const Check& check) {
    for (const Scheme& scheme : all_schemes()) {
      if (!accepts(scheme, 64, 64)) continue;
      SCOPED_TRACE(scheme.name);
      check(scheme);
    }
  }

  // Empty, or how the outputs break the contract.
  std::string violation(const LayerData& data, const Matrix& x, const Matrix* bias, std::int64_t pad = 0) {
    const Matrix y = apply_on_gpu(data.process(kernel(), context()), x, bias, pad);
    if (std::holds_alternative<FP8ScaledMMLinearLayerConfig>(data.config)) {
      std::vector<Exact> exact = exact_fp8(data, x, bias, false);
      add_tensor_core_bound(exact, data.k());
      return first_outside(y, exact);
    }
    const LinearKernel& reference = native::reference();
    return first_other_value(y, apply(reference, data.process(reference, host_), x, bias, host_));
  }

  Context& host() { return host_; }

 private:
  Context host_;
};

}  // namespace scaledmm
