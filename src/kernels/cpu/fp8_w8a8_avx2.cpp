// fp8_w8a8_avx2
//   y[m, n] = bias[n] + sum over K blocks b of sx[m, b] * sw[n, b] * sum over k in b of q[m, k] * w[n, k]
//   x [M, K] f32, bf16 or f16, quantized here per tensor, per token or per (1, K block), or codes with their scales;
//   w [N, K] e4m3fn, e4m3fnuz or e5m2; y [M, N] f32, bf16 or f16
// The tiles of fp8_w8a16_avx2 multiply the values of the codes in f32: products are exact, sums run in K order, and the
// bound is 2^-24 (K + 2 blocks + 4) sum |a w s|. docs/quantization.md 3 and 4.
#include "kernels/cpu/fp8_w8a8.hpp"

namespace scaledmm::native {
namespace {

class Kernel final : public fp8::W8A8Kernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        "fp8_w8a8_avx2",
        "CPUFP8W8A8ScaledMMLinearKernel, CPUFp8W8A8BlockScaledMMKernel",
        DeviceKind::kCpu,
        Isa::kAvx2,
        "w8a8",
        {true, true, true, "f32", "exact products, f32 sums in K order: 2^-24 (K + 2 blocks + 4) sum |a w s|"}};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    if (!device.cpu.avx2) return Support::no("the cpu has no usable avx2 with fma and f16c");
    return Support::yes();
  }

 private:
  const fp8::TileKernels& tiles() const override { return fp8_tiles_avx2(); }
};

}  // namespace

const LinearKernel& fp8_w8a8_avx2() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::native
