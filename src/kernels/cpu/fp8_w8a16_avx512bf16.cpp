// fp8_w8a16_avx512bf16
//   y[m, n] = bias[n] + sum over K blocks b of sw[n, b] * sum over k in b of x[m, k] * w[n, k]
//   x [M, K] f32, bf16 or f16; w [N, K] e4m3fn, e4m3fnuz or e5m2, widened to bf16; y [M, N] f32, bf16 or f16
// VDPBF16PS multiplies bf16 exactly and adds each product to an f32 sum, the odd one of a pair first. f32 and f16
// activations are p = 3 and 2 bf16 rows, which are they exactly; the sums of these are added in the end. Scales are f32
// and applied to f32 sums. Error before the last rounding: at most 2^-24 (K + blocks + p + 1) sum |x w sw|. The
// instruction takes denormals as zero; rows are kept away from them when they are packed.
//
// Weights are widened by VPERMB: two tables of 64 bytes give the low and the high byte of every number, exactly.
// Source: Intel SDM vol. 2, VDPBF16PS, VPERMB.
#include "device/target.hpp"
#include "kernels/cpu/bf16_parts.hpp"
#include "kernels/cpu/fp8_product.hpp"
#include "kernels/cpu/fp8_widener.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

using namespace fp8;

// 8 rows by 2 panels: 16 accumulators, beside 4 registers of tables and 4 of weights.
constexpr std::int64_t kTileRows = 8;
constexpr std::int64_t kGroupK = 4;  // k of the 64 codes that are widened together

std::int64_t panels_at_once(std::int64_t rows) { return rows <= 2 ? 4 : 2; }

void multiply_tile(DType weights, Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call);

constexpr TileKernels kTileKernels{
    .tile_rows = kTileRows,
    .packing = {.k_step = kGroupK, .order = Order::kPairs, .chunk_k = 256},  // 16 KiB of bf16 weights in two panels
    .kept_panels = 2,
    .x_bytes = 2,
    .kept_bytes = 2,
    .parts = bf16::parts_of,
    .panels_at_once = panels_at_once,
    .pack_row = pack_bf16_pairs,
    .multiply = multiply_tile,
};

class Kernel final : public LinearKernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        "fp8_w8a16_avx512bf16",
        "CPUFp8PerTensorScaledMMLinearKernel, CPUFp8BlockScaledMMKernel",
        DeviceKind::kCpu,
        Isa::kAvx512Bf16,
        "w8a16",
        {true, true, true, "f32", "exact products, f32 sums in K order: 2^-24 (K + blocks + p + 1) sum |x w sw|"}};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    if (!device.cpu.avx512) return Support::no("the cpu has no usable avx512 with bw, dq and vl");
    if (!device.cpu.avx512_bf16) return Support::no("the cpu has no usable avx512_bf16");
    if (!device.cpu.avx512_vbmi) return Support::no("the cpu has no usable avx512_vbmi, which widens the weights");
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
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16")
// clang-format on

constexpr std::int64_t kPrefetchBytes = 1024;
constexpr int kGroupBytes = 64;
constexpr int kPairRow = 32;  // bf16 numbers of 2 k and 16 columns

template <int kRows, int kPanels, Weights kSource>
void multiply_tile_as(const Fp8Numbering& numbering, const TileCall& call) {
  const Widener widener(numbering);
  const auto* x = reinterpret_cast<const std::int32_t*>(call.x);
  const std::uint8_t* codes = call.codes;
  auto* kept = reinterpret_cast<std::uint16_t*>(call.kept);
  const std::int64_t panel_codes = call.panel_codes;
  const std::int64_t panel_kept = call.panel_kept / static_cast<std::int64_t>(sizeof(*kept));
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
    for (std::int64_t k = 0; k < piece.steps; k += kGroupK) {
      __m512i pairs[2][kPanels];
      SCALEDMM_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        if constexpr (kSource == Weights::kKept) {
          pairs[0][p] = _mm512_load_si512(kept + p * panel_kept);
          pairs[1][p] = _mm512_load_si512(kept + p * panel_kept + kPairRow);
        } else {
          _mm_prefetch(reinterpret_cast<const char*>(codes + p * panel_codes + kPrefetchBytes), _MM_HINT_T0);
          widener.widen(codes + p * panel_codes, pairs[0][p], pairs[1][p]);
          if constexpr (kSource == Weights::kCodesAndKeep) {
            _mm512_store_si512(kept + p * panel_kept, pairs[0][p]);
            _mm512_store_si512(kept + p * panel_kept + kPairRow, pairs[1][p]);
          }
        }
      }
      SCALEDMM_UNROLL
      for (int i = 0; i < 2; ++i) {
        SCALEDMM_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const auto activations = (__m512bh)_mm512_set1_epi32(x[i * kRows + r]);
          SCALEDMM_UNROLL
          for (int p = 0; p < kPanels; ++p) {
            sums[r][p] = _mm512_dpbf16_ps(sums[r][p], activations, (__m512bh)pairs[i][p]);
          }
        }
      }
      x += 2 * kRows;
      codes += kGroupBytes;
      kept += 2 * kPairRow;
    }
    SCALEDMM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m512 row_scale = _mm512_set1_ps(call.row_scale(r, piece.block) * call.inverse_power);
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
void multiply_tile_from(const Fp8Numbering& numbering, Weights source, const TileCall& call) {
  if (source == Weights::kCodes) return multiply_tile_as<kRows, kPanels, Weights::kCodes>(numbering, call);
  if constexpr (kPanels <= kTileKernels.kept_panels) {
    if (source == Weights::kKept) return multiply_tile_as<kRows, kPanels, Weights::kKept>(numbering, call);
    return multiply_tile_as<kRows, kPanels, Weights::kCodesAndKeep>(numbering, call);
  }
}

template <int kRows>
void multiply_tile_of(const Fp8Numbering& numbering, Weights source, std::int64_t panels, const TileCall& call) {
  if constexpr (kRows <= 2) {
    if (panels == 4) return multiply_tile_from<kRows, 4>(numbering, source, call);
  }
  if (panels == 2) return multiply_tile_from<kRows, 2>(numbering, source, call);
  multiply_tile_from<kRows, 1>(numbering, source, call);
}

void multiply_tile(DType weights, Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call) {
  using Function = void (*)(const Fp8Numbering&, Weights, std::int64_t, const TileCall&);
  static constexpr Function kByRows[kTileRows] = {multiply_tile_of<1>, multiply_tile_of<2>, multiply_tile_of<3>,
                                                  multiply_tile_of<4>, multiply_tile_of<5>, multiply_tile_of<6>,
                                                  multiply_tile_of<7>, multiply_tile_of<8>};
  kByRows[rows - 1](fp8_numbering(weights), source, panels, call);
}

SCALEDMM_TARGET_END

}  // namespace

const LinearKernel& fp8_w8a16_avx512bf16() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
