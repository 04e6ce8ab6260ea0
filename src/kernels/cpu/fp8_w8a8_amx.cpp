// fp8_w8a8_amx
//   y[m, n] = bias[n] + sum over K blocks b of sx[m, b] * sw[n, b] * sum over k in b of q[m, k] * w[n, k]
//   x [M, K] f32, bf16 or f16, quantized here per tensor, per token or per (1, K block), or codes with their scales;
//   w [N, K] e4m3fn, e4m3fnuz or e5m2; y [M, N] f32, bf16 or f16
// The tiles of fp8_w8a16_amx multiply the values of the codes in bf16, which holds them: products are exact, and the
// bound is 2^-24 (K + 2 blocks + 4) sum |a w s|. docs/quantization.md 3 and 4.
#include "kernels/cpu/fp8_w8a8.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

class Kernel final : public fp8::W8A8Kernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        "fp8_w8a8_amx",
        "CPUFP8W8A8ScaledMMLinearKernel, CPUFp8W8A8BlockScaledMMKernel",
        DeviceKind::kCpu,
        Isa::kAmx,
        "w8a8",
        {true, true, true, "f32", "exact products, f32 sums by 32 of K: 2^-24 (K + 2 blocks + 4) sum |a w s|"}};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    if (!device.cpu.avx512) return Support::no("the cpu has no usable avx512 with bw, dq and vl");
    if (!device.cpu.avx512_vbmi) return Support::no("the cpu has no usable avx512_vbmi, which widens the weights");
    if (!device.cpu.amx_bf16) return Support::no("the cpu has no usable amx_bf16");
    return Support::yes();
  }

 private:
  const fp8::TileKernels& tiles() const override { return fp8_tiles_amx(); }
};

}  // namespace

const LinearKernel& fp8_w8a8_amx() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
