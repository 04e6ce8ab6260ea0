// fp8_w8a16_avx2
//   y[m, n] = bias[n] + sum over K blocks b of sw[n, b] * sum over k in b of x[m, k] * w[n, k]
//   x [M, K] f32, bf16 or f16, used as f32; w [N, K] e4m3fn, e4m3fnuz or e5m2; y [M, N] f32, bf16 or f16
// Products are exact inside FMA; sums are f32, in K order; scales are f32 and applied to f32 sums; one rounding to y.
// Error before that rounding: at most 2^-24 (K + blocks + 2) sum |x w sw|, for every finite x and denormals too.
//
// An e4m3 byte s eeee mmm, sign-extended to 16 bits, shifted left by 7 and with bit 14 cleared is the half-precision
// number of 2^-8 times its value (2^-7 for fnuz), denormals included; an e5m2 byte shifted left by 8 is its value.
// VCVTPH2PS is exact. The power of two is put into x.   Source: Intel SDM vol. 2, VCVTPH2PS; OCP OFP8 1.0.
#include "device/target.hpp"
#include "kernels/cpu/fp8_product.hpp"
#include "kernels/cpu/fp8_w8a8.hpp"

namespace scaledmm::native {
namespace {

using namespace fp8;

// 6 rows by 2 registers of columns: 12 accumulators, 2 weights and 1 broadcast activation in 16 registers.
constexpr std::int64_t kTileRows = 6;

// Four chains of additions for each of the two FMA units hide the latency of 4: few rows take several panels.
std::int64_t panels_at_once(std::int64_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

void multiply_tile(DType weights, Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call);

constexpr TileKernels kTileKernels{
    .tile_rows = kTileRows,
    .packing = {.chunk_k = 256},  // 16 KiB of f32 weights
    .panels_at_once = panels_at_once,
    .pack_row = pack_f32_row,
    .multiply = multiply_tile,
};

class Kernel final : public LinearKernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        "fp8_w8a16_avx2",
        "CPUFp8PerTensorScaledMMLinearKernel, CPUFp8BlockScaledMMKernel",
        DeviceKind::kCpu,
        Isa::kAvx2,
        "w8a16",
        {true, true, true, "f32", "exact products, f32 sums in K order: 2^-24 (K + blocks + 2) sum |x w sw|"}};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    if (!device.cpu.avx2) return Support::no("the cpu has no usable avx2 with fma and f16c");
    return Support::yes();
  }
  Support can_implement(const LayerConfig& config) const override { return fp8::can_implement_w8a16(config); }
  std::unique_ptr<PackedWeights> pack(const LayerConfig&, const CheckedWeights& weights,
                                      Context& context) const override {
    return fp8::pack(kTileKernels.packing, weights, context);
  }
  void multiply(const LayerConfig&, const PackedWeights& packed, const ApplyArguments& arguments,
                Context& context) const override {
    fp8::multiply(kTileKernels, static_cast<const PackedFp8&>(packed), arguments, context);
  }
  std::vector<std::uint8_t> unpack(const LayerConfig&, const PackedWeights& packed) const override {
    return fp8::unpack(static_cast<const PackedFp8&>(packed));
  }
  std::string packed_layout() const override { return fp8::packed_layout(kTileKernels.packing); }
  std::unique_ptr<PackedWeights> adopt(const LayerConfig&, const CheckedWeights& weights,
                                       std::span<const PackedSection> sections,
                                       const std::shared_ptr<const void>& memory) const override {
    return fp8::adopt(kTileKernels.packing, weights, sections, memory);
  }
};

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c")
// clang-format on

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kPrefetchBytes = 1024;

// 16 codes to f32, times the power of two of the banner.
template <bool kIsE5M2>
inline void widen(const std::uint8_t* codes, __m256& low, __m256& high) {
  const __m256i bytes = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m256i halves =
      kIsE5M2 ? _mm256_slli_epi16(bytes, 8) : _mm256_and_si256(_mm256_slli_epi16(bytes, 7), _mm256_set1_epi16(~0x4000));
  low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  // The upper half goes through memory on purpose: shuffles limit few rows, and VCVTPH2PS takes fewer with a memory
  // operand than after VEXTRACTI128. Zen 3, best of 3: 19 % less time at M = 1 in cache, 13 % at M = 4.
  __m256i stored = halves;
  __asm__("" : "+m"(stored));
  high = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(&stored) + 1));
}

template <int kRows, int kPanels, Weights kSource, bool kIsE5M2>
void multiply_tile_as(const TileCall& call) {
  const auto* x = reinterpret_cast<const float*>(call.x);
  const std::uint8_t* codes = call.codes;
  auto* kept = reinterpret_cast<float*>(call.kept);
  const std::int64_t panel_codes = call.panel_codes;
  for (const Piece& piece : call.pieces) {
    __m256 sums[kRows][2 * kPanels];
    SCALEDMM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      SCALEDMM_UNROLL
      for (int c = 0; c < 2 * kPanels; ++c) {
        const float* memory = call.sums + c / 2 * call.panel_sums + r * kPanelColumns + c % 2 * kLanes;
        sums[r][c] = piece.begins_block ? _mm256_setzero_ps() : _mm256_load_ps(memory);
      }
    }
    for (std::int64_t k = 0; k < piece.steps; ++k) {
      SCALEDMM_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        __m256 low;
        __m256 high;
        if constexpr (kSource == Weights::kKept) {
          low = _mm256_load_ps(kept);
          high = _mm256_load_ps(kept + kLanes);
        } else {
          _mm_prefetch(reinterpret_cast<const char*>(codes + p * panel_codes + kPrefetchBytes), _MM_HINT_T0);
          widen<kIsE5M2>(codes + p * panel_codes, low, high);
          if constexpr (kSource == Weights::kCodesAndKeep) {
            _mm256_store_ps(kept, low);
            _mm256_store_ps(kept + kLanes, high);
          }
        }
        SCALEDMM_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const __m256 activation = _mm256_broadcast_ss(x + r);
          sums[r][2 * p] = _mm256_fmadd_ps(activation, low, sums[r][2 * p]);
          sums[r][2 * p + 1] = _mm256_fmadd_ps(activation, high, sums[r][2 * p + 1]);
        }
      }
      x += kRows;
      codes += kPanelColumns;
      kept += kPanelColumns;
    }
    SCALEDMM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m256 row_scale = _mm256_set1_ps(call.row_scale(r, piece.block));
      SCALEDMM_UNROLL
      for (int c = 0; c < 2 * kPanels; ++c) {
        const std::int64_t offset = c / 2 * call.panel_sums + r * kPanelColumns + c % 2 * kLanes;
        if (!piece.ends_block) {
          _mm256_store_ps(call.sums + offset, sums[r][c]);
          continue;
        }
        if (call.scales == nullptr) {
          _mm256_store_ps(call.totals + offset, sums[r][c]);
          continue;
        }
        const __m256 scale =
            _mm256_load_ps(call.scales + c / 2 * call.panel_scales + piece.block * kPanelColumns + c % 2 * kLanes);
        const __m256 before = piece.block == 0 ? _mm256_setzero_ps() : _mm256_load_ps(call.totals + offset);
        _mm256_store_ps(call.totals + offset, _mm256_fmadd_ps(_mm256_mul_ps(sums[r][c], row_scale), scale, before));
      }
    }
  }
}

template <int kRows, int kPanels, bool kIsE5M2>
void multiply_tile_from(Weights source, const TileCall& call) {
  if (source == Weights::kCodes) return multiply_tile_as<kRows, kPanels, Weights::kCodes, kIsE5M2>(call);
  if constexpr (kPanels == 1) {
    if (source == Weights::kKept) return multiply_tile_as<kRows, 1, Weights::kKept, kIsE5M2>(call);
    return multiply_tile_as<kRows, 1, Weights::kCodesAndKeep, kIsE5M2>(call);
  }
}

template <bool kIsE5M2>
void multiply_tile_of(Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call) {
  switch (rows) {
    case 1:
      if (panels == 4) return multiply_tile_from<1, 4, kIsE5M2>(source, call);
      if (panels == 2) return multiply_tile_from<1, 2, kIsE5M2>(source, call);
      return multiply_tile_from<1, 1, kIsE5M2>(source, call);
    case 2:
      if (panels == 2) return multiply_tile_from<2, 2, kIsE5M2>(source, call);
      return multiply_tile_from<2, 1, kIsE5M2>(source, call);
    case 3:
      if (panels == 2) return multiply_tile_from<3, 2, kIsE5M2>(source, call);
      return multiply_tile_from<3, 1, kIsE5M2>(source, call);
    case 4:
      return multiply_tile_from<4, 1, kIsE5M2>(source, call);
    case 5:
      return multiply_tile_from<5, 1, kIsE5M2>(source, call);
    default:
      return multiply_tile_from<6, 1, kIsE5M2>(source, call);
  }
}

void multiply_tile(DType weights, Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call) {
  if (weights == DType::kE5M2) return multiply_tile_of<true>(source, rows, panels, call);
  multiply_tile_of<false>(source, rows, panels, call);
}

SCALEDMM_TARGET_END

}  // namespace

const fp8::TileKernels& fp8_tiles_avx2() { return kTileKernels; }

const LinearKernel& fp8_w8a16_avx2() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::native
