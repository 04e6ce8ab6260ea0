// int8_w8a8_avx512vnni
//   t = f32(sum over k of (q[m, k] - zx[m]) * w[n, k]) * sx[m];  y[m, n] = bias ? fma(t, sw[n], bias[n]) : t * sw[n]
//   x [M, K] f32, bf16 or f16, quantized here, or int8; w [N, K] int8, a scale per channel or per block; y [M, N] f32,
//   bf16, f16
// VPDPBUSD multiplies unsigned by signed bytes, so codes are stored plus 128, and 128 * sum of w is taken off each sum.
// The int32 sums may wrap on the way and come right again (K < 2^17), so y equals the reference bit for bit. Source:
// Intel SDM vol. 2, VPDPBUSD. docs/quantization.md 2 and 4.
#include <cstring>
#include <string>

#include "device/target.hpp"
#include "kernels/cpu/int8_kernel.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr std::int64_t kTileM = 6;       // 6 rows x 4 panels are 24 sums; with 4 weights and a code, 29 of 32 registers
constexpr std::int64_t kTilePanels = 4;  // four streams of weights also keep memory busiest at M = 1
constexpr std::int64_t kQuad = 4;        // products that VPDPBUSD sums into one lane

// codes[n / 16][p / 4][n % 16][p % 4], see int8_packing.hpp
constexpr Int8Tile kTile{kTilePanels * kInt8PanelN, kQuad, kQuad};

void multiply_tile(const Int8Rectangle&);

constexpr Int8Method kMethod{.layout = CodeLayout::kOffsetBytes,
                             .row_functions = int8_rows_avx512,
                             .offset = true,
                             .rows = kTileM,
                             .panels = kTilePanels,
                             .least_panels = kTilePanels,
                             .block_eighths = 3,
                             .multiply = multiply_tile};

class Kernel final : public Int8Kernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{.name = "int8_w8a8_avx512vnni",
                                      .upstream = "CPUInt8ScaledMMLinearKernel, ZentorchInt8ScaledMMLinearKernel",
                                      .device = DeviceKind::kCpu,
                                      .isa = Isa::kAvx512Vnni,
                                      .computes = "w8a8",
                                      .guarantees = kGuarantees};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    const std::string tier(scaledmm::name(device.isa));
    if (!device.cpu.avx512) return Support::no("the cpu has no usable avx512 (f, bw, dq, vl), its tier is " + tier);
    if (!device.cpu.avx512_vnni) return Support::no("the cpu has no usable avx512vnni, its tier is " + tier);
    return Support::yes();
  }

 private:
  const Int8Tile& tile() const override { return kTile; }
  Int8Method method(std::int64_t) const override { return kMethod; }
};

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE

SCALEDMM_TARGET_BEGIN("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr std::int64_t kStepBytes = kInt8PanelN * kQuad;  // one register of weights, one cache line
constexpr std::int64_t kStepsPerPrefetch = 8;
constexpr std::int64_t kAheadBytes = 2048;  // in each of four streams, where weights are read once

inline __m512i load_weights(const std::int8_t* w) { return _mm512_loadu_si512(w); }

inline __m512i broadcast_codes(const std::byte* x) {
  std::int32_t four_codes;
  std::memcpy(&four_codes, x, sizeof(four_codes));
  return _mm512_set1_epi32(four_codes);
}

// Where many rows keep the weights of a rectangle in the cache: the lines of the next one that a group of steps
// prefetches.
struct Prefetch {
  const std::int8_t* at;
  std::int64_t lines;

  void group() {
    for (std::int64_t i = 0; i < lines; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
      at += kStepBytes;
    }
  }
};

template <int rows, bool streams>
void multiply_rows(const Int8Rectangle& a) {
  const std::byte* x[rows];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) x[r] = a.codes->row(a.first_row + r) + a.place;
  const std::int8_t* w[kTilePanels];
#pragma GCC unroll 4
  for (int p = 0; p < kTilePanels; ++p) w[p] = a.weights->panel(a.first_panel + p) + a.place * kInt8PanelN;
  __m512i sum[rows][kTilePanels];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kTilePanels; ++p) sum[r][p] = _mm512_setzero_si512();
  }

  const std::int64_t steps = a.length / kQuad;
  const std::int64_t groups = (steps + kStepsPerPrefetch - 1) / kStepsPerPrefetch;
  Prefetch prefetch{a.next, (a.next_bytes / kStepBytes + groups - 1) / groups};
#pragma GCC unroll 1
  for (std::int64_t step = 0; step < steps; ++step) {
    if (!streams && step % kStepsPerPrefetch == 0) prefetch.group();
    __m512i weights[kTilePanels];
#pragma GCC unroll 4
    for (int p = 0; p < kTilePanels; ++p) {
      weights[p] = load_weights(w[p] + step * kStepBytes);
      if (streams) _mm_prefetch(reinterpret_cast<const char*>(w[p] + step * kStepBytes + kAheadBytes), _MM_HINT_T0);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const __m512i codes = broadcast_codes(x[r] + step * kQuad);
#pragma GCC unroll 4
      for (int p = 0; p < kTilePanels; ++p) sum[r][p] = _mm512_dpbusd_epi32(sum[r][p], codes, weights[p]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kTilePanels; ++p) {
      _mm512_storeu_si512(a.sums + r * a.stride + p * kInt8PanelN, sum[r][p]);
    }
  }
}

template <int rows>
void multiply_rows(const Int8Rectangle& a) {
  if (a.streams) return multiply_rows<rows, true>(a);
  multiply_rows<rows, false>(a);
}

void multiply_tile(const Int8Rectangle& a) {
  switch (a.rows) {
    case 1:
      return multiply_rows<1>(a);
    case 2:
      return multiply_rows<2>(a);
    case 3:
      return multiply_rows<3>(a);
    case 4:
      return multiply_rows<4>(a);
    case 5:
      return multiply_rows<5>(a);
    default:
      return multiply_rows<6>(a);
  }
}

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
SCALEDMM_TARGET_END

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {

const LinearKernel& int8_w8a8_avx512vnni() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
