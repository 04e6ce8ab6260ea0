// fp8_w8a16_avx512
//   y[m, n] = bias[n] + sum over K blocks b of sw[n, b] * sum over k in b of x[m, k] * w[n, k]
//   x [M, K] f32, bf16 or f16, used as f32; w [N, K] e4m3fn, e4m3fnuz or e5m2; y [M, N] f32, bf16 or f16
// The arithmetic of fp8_w8a16_avx2 with registers of 16: the same products and sums in the same order, so the same
// bits. Error before the last rounding: at most 2^-24 (K + blocks + 2) sum |x w sw|, for every finite x and denormals
// too.
//
// Codes become f32 as half-precision bits, 2^-8 times their value for e4m3fn; pack_f32_row puts the power of two into
// x. Source: Intel SDM vol. 2, VCVTPH2PS; OCP OFP8 1.0.
#include "device/target.hpp"
#include "kernels/cpu/fp8_product.hpp"
#include "kernels/cpu/fp8_w8a8.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

using namespace fp8;

// 8 rows by 2 panels: 16 accumulators for 10 loads, so FMA and not the load ports decide, with 16 registers to spare.
constexpr std::int64_t kTileRows = 8;

// Eight chains of additions hide the latency of two FMA units.
std::int64_t panels_at_once(std::int64_t rows) { return rows <= 2 ? 4 : 2; }

void multiply_tile(DType weights, Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call);

constexpr TileKernels kTileKernels{
    .tile_rows = kTileRows,
    .packing = {.chunk_k = 128},  // 16 KiB of f32 weights in two panels
    .kept_panels = 2,
    .panels_at_once = panels_at_once,
    .pack_row = pack_f32_row,
    .multiply = multiply_tile,
};

class Kernel final : public LinearKernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        "fp8_w8a16_avx512",
        "CPUFp8PerTensorScaledMMLinearKernel, CPUFp8BlockScaledMMKernel",
        DeviceKind::kCpu,
        Isa::kAvx512,
        "w8a16",
        {true, true, true, "f32", "exact products, f32 sums in K order: 2^-24 (K + blocks + 2) sum |x w sw|"}};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    if (!device.cpu.avx512) return Support::no("the cpu has no usable avx512 with bw, dq and vl");
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
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
// clang-format on

constexpr std::int64_t kPrefetchBytes = 1024;

// 16 codes to f32, times the power of two of the banner.
struct Widener {
  __m256i multiplier;  // a left shift by 7, or 8 for e5m2
  __m256i kept_bits;

  explicit Widener(DType weights)
      : multiplier(_mm256_set1_epi16(weights == DType::kE5M2 ? 1 << 8 : 1 << 7)),
        kept_bits(_mm256_set1_epi16(static_cast<std::int16_t>(weights == DType::kE5M2 ? -1 : ~0x4000))) {}

  __m512 widen(const std::uint8_t* codes) const {
    const __m256i bytes = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(codes)));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_mullo_epi16(bytes, multiplier), kept_bits));
  }
};

template <int kRows, int kPanels, Weights kSource>
void multiply_tile_as(DType dtype, const TileCall& call) {
  const Widener widener(dtype);
  const auto* x = reinterpret_cast<const float*>(call.x);
  const std::uint8_t* codes = call.codes;
  auto* kept = reinterpret_cast<float*>(call.kept);
  const std::int64_t panel_codes = call.panel_codes;
  const std::int64_t panel_kept = call.panel_kept / static_cast<std::int64_t>(sizeof(float));
  for (const Piece& piece : call.pieces) {
    __m512 sums[kRows][kPanels];
    SCALEDMM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      SCALEDMM_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const float* memory = call.sums + p * call.panel_sums + r * kPanelColumns;
        sums[r][p] = piece.begins_block ? _mm512_setzero_ps() : _mm512_load_ps(memory);
      }
    }
    for (std::int64_t k = 0; k < piece.steps; ++k) {
      __m512 weights[kPanels];
      SCALEDMM_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        if constexpr (kSource == Weights::kKept) {
          weights[p] = _mm512_load_ps(kept + p * panel_kept);
        } else {
          _mm_prefetch(reinterpret_cast<const char*>(codes + p * panel_codes + kPrefetchBytes), _MM_HINT_T0);
          weights[p] = widener.widen(codes + p * panel_codes);
          if constexpr (kSource == Weights::kCodesAndKeep) _mm512_store_ps(kept + p * panel_kept, weights[p]);
        }
      }
      SCALEDMM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const __m512 activation = _mm512_set1_ps(x[r]);
        SCALEDMM_UNROLL
        for (int p = 0; p < kPanels; ++p) sums[r][p] = _mm512_fmadd_ps(activation, weights[p], sums[r][p]);
      }
      x += kRows;
      codes += kPanelColumns;
      kept += kPanelColumns;
    }
    SCALEDMM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m512 row_scale = _mm512_set1_ps(call.row_scale(r, piece.block));
      SCALEDMM_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const std::int64_t offset = p * call.panel_sums + r * kPanelColumns;
        if (!piece.ends_block) {
          _mm512_store_ps(call.sums + offset, sums[r][p]);
          continue;
        }
        if (call.scales == nullptr) {
          _mm512_store_ps(call.totals + offset, sums[r][p]);
          continue;
        }
        const __m512 scale = _mm512_load_ps(call.scales + p * call.panel_scales + piece.block * kPanelColumns);
        const __m512 before = piece.block == 0 ? _mm512_setzero_ps() : _mm512_load_ps(call.totals + offset);
        _mm512_store_ps(call.totals + offset, _mm512_fmadd_ps(_mm512_mul_ps(sums[r][p], row_scale), scale, before));
      }
    }
  }
}

template <int kRows, int kPanels>
void multiply_tile_from(DType weights, Weights source, const TileCall& call) {
  if (source == Weights::kCodes) return multiply_tile_as<kRows, kPanels, Weights::kCodes>(weights, call);
  if constexpr (kPanels <= kTileKernels.kept_panels) {
    if (source == Weights::kKept) return multiply_tile_as<kRows, kPanels, Weights::kKept>(weights, call);
    return multiply_tile_as<kRows, kPanels, Weights::kCodesAndKeep>(weights, call);
  }
}

template <int kRows>
void multiply_tile_of(DType weights, Weights source, std::int64_t panels, const TileCall& call) {
  if constexpr (kRows <= 2) {
    if (panels == 4) return multiply_tile_from<kRows, 4>(weights, source, call);
  }
  if (panels == 2) return multiply_tile_from<kRows, 2>(weights, source, call);
  multiply_tile_from<kRows, 1>(weights, source, call);
}

void multiply_tile(DType weights, Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call) {
  using Function = void (*)(DType, Weights, std::int64_t, const TileCall&);
  static constexpr Function kByRows[kTileRows] = {multiply_tile_of<1>, multiply_tile_of<2>, multiply_tile_of<3>,
                                                  multiply_tile_of<4>, multiply_tile_of<5>, multiply_tile_of<6>,
                                                  multiply_tile_of<7>, multiply_tile_of<8>};
  kByRows[rows - 1](weights, source, panels, call);
}

SCALEDMM_TARGET_END

}  // namespace

const fp8::TileKernels& fp8_tiles_avx512() { return kTileKernels; }

const LinearKernel& fp8_w8a16_avx512() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
