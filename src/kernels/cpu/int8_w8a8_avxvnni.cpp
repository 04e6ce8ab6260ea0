// int8_w8a8_avxvnni
//   t = f32(sum over k of (q[m, k] - zx[m]) * w[n, k]) * sx[m];  y[m, n] = bias ? fma(t, sw[n], bias[n]) : t * sw[n]
//   x [M, K] f32, bf16 or f16, quantized here, or int8; w [N, K] int8, a scale per channel or per block; y [M, N] f32,
//   bf16, f16
// The VEX form of VPDPBUSD, for processors with AVX2 and AVX-VNNI but no AVX-512. It multiplies unsigned by signed
// bytes, so codes are stored plus 128, and 128 * sum of w is taken off each sum. The int32 sums may wrap on the way and
// come right again (K < 2^17), so y equals the reference bit for bit. Source: Intel SDM vol. 2, VPDPBUSD.
// docs/quantization.md 2 and 4.
#include <cstring>
#include <string>

#include "device/target.hpp"
#include "kernels/cpu/int8_kernel.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr std::int64_t kQuad = 4;  // products that VPDPBUSD sums into one lane

// codes[n / 16][p / 4][n % 16][p % 4], see int8_packing.hpp; N is padded so that four panels are always there
constexpr Int8Tile kTile{4 * kInt8PanelN, kQuad, kQuad};

template <int kRows, int kPanels>
void multiply_tile(const Int8Rectangle&);

template <int kRows, int kPanels>
constexpr Int8Method kMethodOf{.layout = CodeLayout::kOffsetBytes,
                               .offset = true,
                               .rows = kRows,
                               .panels = kPanels,
                               .least_panels = kPanels,
                               .block_eighths = 2,
                               .multiply = multiply_tile<kRows, kPanels>};

// A panel is two registers. 12 sums, 2 weights and a code of 16 registers; few rows take several panels, so that the
// chains of additions hide the latency of 5.
const Int8Method& method_of(std::int64_t m) {
  if (m == 1) return kMethodOf<1, 4>;
  return m <= 3 ? kMethodOf<3, 2> : kMethodOf<6, 1>;
}

class Kernel final : public Int8Kernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        .name = "int8_w8a8_avxvnni",
        .upstream = "CPUInt8ScaledMMLinearKernel",
        .device = DeviceKind::kCpu,
        .isa = Isa::kAvx512Vnni,  // the cap that takes it away: processors without AVX-512 have it beside the avx2 tier
        .computes = "w8a8",
        .guarantees = kGuarantees};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    const std::string tier(scaledmm::name(device.isa));
    if (!device.cpu.avx2) return Support::no("the cpu has no usable avx2 with fma and f16c, its tier is " + tier);
    if (!device.cpu.avx_vnni) return Support::no("the cpu has no usable avx_vnni, its tier is " + tier);
    return Support::yes();
  }

 private:
  const Int8Tile& tile() const override { return kTile; }
  Int8Method method(std::int64_t m) const override { return method_of(m); }
};

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE

SCALEDMM_TARGET_BEGIN("avx2,fma,avxvnni")
namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr std::int64_t kStepBytes = kInt8PanelN * kQuad;  // two registers of weights, one cache line
constexpr std::int64_t kStepsPerPrefetch = 8;
constexpr std::int64_t kAheadBytes = 2048;  // where weights are read once

inline __m256i load_weights(const std::int8_t* w) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)); }

inline __m256i broadcast_codes(const std::byte* x) {
  std::int32_t four_codes;
  std::memcpy(&four_codes, x, sizeof(four_codes));
  return _mm256_set1_epi32(four_codes);
}

template <int kRows, int kPanels, bool kStreams>
void multiply_rows(const Int8Rectangle& a) {
  constexpr int kRegisters = 2 * kPanels;
  const std::byte* x[kRows];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) x[r] = a.codes->row(a.first_row + r) + a.place;
  const std::int8_t* w[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) w[p] = a.weights->panel(a.first_panel + p) + a.place * kInt8PanelN;
  __m256i sum[kRows][kRegisters];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; ++c) sum[r][c] = _mm256_setzero_si256();
  }

  const std::int64_t steps = a.length / kQuad;
  const std::int64_t groups = (steps + kStepsPerPrefetch - 1) / kStepsPerPrefetch;
  // Where many rows keep the weights of a rectangle in the cache: the lines of the next one.
  const std::int8_t* next = a.next;
  const std::int64_t next_lines = (a.next_bytes / kStepBytes + groups - 1) / groups;
#pragma GCC unroll 1
  for (std::int64_t step = 0; step < steps; ++step) {
    if (!kStreams && step % kStepsPerPrefetch == 0) {
      for (std::int64_t i = 0; i < next_lines; ++i, next += kStepBytes) {
        _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const std::int8_t* at = w[p] + step * kStepBytes;
      if (kStreams) _mm_prefetch(reinterpret_cast<const char*>(at + kAheadBytes), _MM_HINT_T0);
      const __m256i low = load_weights(at), high = load_weights(at + kStepBytes / 2);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const __m256i codes = broadcast_codes(x[r] + step * kQuad);
        sum[r][2 * p] = _mm256_dpbusd_avx_epi32(sum[r][2 * p], codes, low);
        sum[r][2 * p + 1] = _mm256_dpbusd_avx_epi32(sum[r][2 * p + 1], codes, high);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; ++c) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(a.sums + r * a.stride) + c, sum[r][c]);
    }
  }
}

template <int kRows, int kPanels>
void multiply_tile(const Int8Rectangle& a) {
  if constexpr (kRows > 1) {
    if (a.rows < kRows) return multiply_tile<kRows - 1, kPanels>(a);
  }
  if (a.streams) return multiply_rows<kRows, kPanels, true>(a);
  multiply_rows<kRows, kPanels, false>(a);
}

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
SCALEDMM_TARGET_END

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {

const LinearKernel& int8_w8a8_avxvnni() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
