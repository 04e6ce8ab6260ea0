// fp8_w8a16_amx
//   y[m, n] = bias[n] + sum over K blocks b of sw[n, b] * sum over k in b of x[m, k] * w[n, k]
//   x [M, K] bf16; w [N, K] e4m3fn, e4m3fnuz or e5m2, widened to bf16; y [M, N] f32, bf16 or f16
// TDPBF16PS multiplies bf16 exactly and adds up 16 odd and 16 even products in f32 before it adds them to the tile.
// Scales are f32 and applied to f32 sums. Error before the last rounding: at most 2^-24 (K + blocks + 2) sum |x w sw|.
// The instruction takes denormals as zero; pack_bf16_tiles keeps rows away from them. f32 and f16 activations are
// refused, not rounded.
//
// Weights are widened by VPERMI2B: two tables of 128 bytes give the low and the high byte of every code, exactly.
// Source: Intel SDM vol. 2, TDPBF16PS, VPERMI2B.
#include <algorithm>

#include "device/target.hpp"
#include "kernels/cpu/fp8_amx_tiles.hpp"
#include "kernels/cpu/fp8_product.hpp"
#include "kernels/cpu/fp8_w8a8.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

using namespace fp8;

// Two by two tiles of 16 rows and 16 columns: 1 tile load for each TDPBF16PS.
constexpr std::int64_t kTileRows = 32;
constexpr std::int64_t kTileK = 32;  // bf16 numbers of a tile row

// Four panels, hence four streams of codes, for few rows were not faster.
std::int64_t panels_at_once(std::int64_t) { return 2; }

void multiply_tile(DType weights, Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call);
void widen(DType weights, const Widening& widening);
void configure_tiles();
void release_tiles();

constexpr TileKernels kTileKernels{
    .tile_rows = kTileRows,
    .row_unit = 16,
    .packing = {.k_step = kTileK, .order = Order::kPairs, .chunk_k = 512},  // 32 KiB of bf16 weights in two panels
    .kept_panels = 2,
    .x_bytes = 2,
    .kept_bytes = 2,
    .panels_at_once = panels_at_once,
    .pack_row = pack_bf16_tiles,
    .multiply = multiply_tile,
    .widen = widen,
    .begin = configure_tiles,
    .end = release_tiles,
};

class Kernel final : public LinearKernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        "fp8_w8a16_amx",
        "CPUFp8PerTensorScaledMMLinearKernel, CPUFp8BlockScaledMMKernel",
        DeviceKind::kCpu,
        Isa::kAmx,
        "w8a16",
        {true, true, true, "f32", "exact products, f32 sums by 32 of K: 2^-24 (K + blocks + 2) sum |x w sw|"}};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    if (!device.cpu.avx512) return Support::no("the cpu has no usable avx512 with bw, dq and vl");
    if (!device.cpu.avx512_vbmi) return Support::no("the cpu has no usable avx512_vbmi, which widens the weights");
    if (!device.cpu.amx_bf16) return Support::no("the cpu has no usable amx_bf16");
    return Support::yes();
  }
  Support can_implement(const LayerConfig& config) const override { return fp8::can_implement_w8a16_bf16(config); }
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
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,amx-tile,amx-bf16")
// clang-format on

constexpr std::int64_t kPrefetchBytes = 8192;
constexpr std::int64_t kGroupBytes = 64;
constexpr std::int64_t kRing = 4;  // steps
constexpr std::int64_t kAhead = 2;

// The tables in registers.
struct Widener {
  __m512i low[2];
  __m512i high[2];
  __m512i sign;

  explicit Widener(const std::uint8_t* tables)
      : low{_mm512_loadu_si512(tables), _mm512_loadu_si512(tables + 64)},
        high{_mm512_loadu_si512(tables + 128), _mm512_loadu_si512(tables + 192)},
        sign(_mm512_set1_epi8(static_cast<char>(0x80))) {}

  // 32 k of a panel to a tile: 16 rows of pairs.
  void widen(const std::uint8_t* codes, std::byte* tile) const {
    SCALEDMM_UNROLL
    for (int i = 0; i < 8; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(codes + i * kGroupBytes + kPrefetchBytes), _MM_HINT_T1);
      const __m512i group = _mm512_load_si512(codes + i * kGroupBytes);
      const __m512i low_bytes = _mm512_permutex2var_epi8(low[0], group, low[1]);
      const __m512i magnitudes = _mm512_permutex2var_epi8(high[0], group, high[1]);
      const __m512i high_bytes = _mm512_ternarylogic_epi32(magnitudes, group, sign, 0xf8);  // magnitude | group & sign
      _mm512_store_si512(tile + 2 * i * kRowBytes, _mm512_unpacklo_epi8(low_bytes, high_bytes));
      _mm512_store_si512(tile + (2 * i + 1) * kRowBytes, _mm512_unpackhi_epi8(low_bytes, high_bytes));
    }
  }
};

// One step of 32 k. A tile that was zeroed costs nothing to rename, so each is
// zeroed right after its last use: with the core shared, that is 1.4 to 1.9 times as fast as loading all four first.
template <int kHalves, int kPanels>
inline void multiply_step(const std::byte* x0, const std::byte* x1, const std::byte* w0, const std::byte* w1) {
  _tile_loadd(SCALEDMM_X_0, x0, kRowBytes);
  _tile_loadd(SCALEDMM_W_0, w0, kRowBytes);
  _tile_dpbf16ps(SCALEDMM_SUM_00, SCALEDMM_X_0, SCALEDMM_W_0);
  if constexpr (kPanels == 2) {
    _tile_loadd(SCALEDMM_W_1, w1, kRowBytes);
    _tile_dpbf16ps(SCALEDMM_SUM_01, SCALEDMM_X_0, SCALEDMM_W_1);
  }
  _tile_zero(SCALEDMM_X_0);
  if constexpr (kHalves == 2) {
    _tile_loadd(SCALEDMM_X_1, x1, kRowBytes);
    _tile_dpbf16ps(SCALEDMM_SUM_10, SCALEDMM_X_1, SCALEDMM_W_0);
  }
  _tile_zero(SCALEDMM_W_0);
  if constexpr (kHalves == 2 && kPanels == 2) {
    _tile_dpbf16ps(SCALEDMM_SUM_11, SCALEDMM_X_1, SCALEDMM_W_1);
  }
  if constexpr (kHalves == 2) _tile_zero(SCALEDMM_X_1);
  if constexpr (kPanels == 2) _tile_zero(SCALEDMM_W_1);
}

// One step of 32 k of some panels, to `kept`.
template <int kPanels>
inline void widen_step(const Widener& widener, const std::uint8_t* codes, std::int64_t panel_codes, std::byte* kept,
                       std::int64_t panel_kept) {
  for (int p = 0; p < kPanels; ++p) widener.widen(codes + p * panel_codes, kept + p * panel_kept);
}

template <int kPanels>
inline void widen_step_at(const Widener& widener, const Widening& w, std::int64_t k) {
  widen_step<kPanels>(widener, w.codes + k * kPanelColumns, w.panel_codes, w.kept + k / kTileK * kTileBytes,
                      w.panel_kept);
}

// Calls step(i) for every step of the call, and adds up pieces.
template <int kHalves, int kPanels, class Step>
void multiply_pieces(std::int64_t rows, const TileCall& call, const Step& step) {
  std::int64_t first = 0;
  for (const Piece& piece : call.pieces) {
    const std::int64_t count = piece.steps / kTileK;
    multiply_piece<kHalves, kPanels>(piece, rows, call, first, count, step);
    first += count;
  }
}

// Weights that are read once are widened into a ring that stays in L1, so many steps ahead of their product: a tile
// load waits until the stores of its data have left the store buffer.
template <int kHalves, int kPanels>
void multiply_codes(const Widener& widener, std::int64_t rows, const TileCall& call) {
  const std::int64_t steps = call.length() / kTileK;
  const std::byte* x0 = call.x;
  const std::byte* x1 = x0 + steps * kTileBytes;
  constexpr std::int64_t kPanelRing = kRing * kTileBytes;
  const std::uint8_t* codes = call.codes;
  const auto widen = [&](std::int64_t i) {
    widen_step<kPanels>(widener, codes + i * kTileK * kPanelColumns, call.panel_codes,
                        call.kept + i % kRing * kTileBytes, kPanelRing);
    stores_before_tile_loads();
  };
  for (std::int64_t i = 0; i < std::min(kAhead, steps); ++i) widen(i);
  multiply_pieces<kHalves, kPanels>(rows, call, [&](std::int64_t i) {
    if (i + kAhead < steps) widen(i + kAhead);
    const std::byte* w = call.kept + i % kRing * kTileBytes;
    multiply_step<kHalves, kPanels>(x0 + i * kTileBytes, x1 + i * kTileBytes, w, w + kPanelRing);
  });
}

// Weights that were widened before. Between the products the vector units widen what comes next, evenly spread.
template <int kHalves, int kPanels, int kNextPanels>
void multiply_kept(const Widener& widener, std::int64_t rows, const TileCall& call) {
  const std::int64_t steps = call.length() / kTileK;
  const std::byte* x0 = call.x;
  const std::byte* x1 = x0 + steps * kTileBytes;
  const Widening& next = call.next;
  const std::int64_t to_widen = (next.end - next.begin) / kTileK;
  std::int64_t due = 0;
  std::int64_t k = next.begin;
  multiply_pieces<kHalves, kPanels>(rows, call, [&](std::int64_t i) {
    const std::byte* w = call.kept + i * kTileBytes;
    multiply_step<kHalves, kPanels>(x0 + i * kTileBytes, x1 + i * kTileBytes, w, w + call.panel_kept);
    if constexpr (kNextPanels > 0) {
      for (due += to_widen; due >= steps; due -= steps, k += kTileK) widen_step_at<kNextPanels>(widener, next, k);
    }
  });
  stores_before_tile_loads();
}

void widen(DType weights, const Widening& widening) {
  const Widener widener(bf16_tables(weights));
  for (std::int64_t k = widening.begin; k < widening.end; k += kTileK) {
    if (widening.panels == 2) {
      widen_step_at<2>(widener, widening, k);
    } else {
      widen_step_at<1>(widener, widening, k);
    }
  }
  stores_before_tile_loads();
}

template <int kHalves, int kPanels>
void multiply_tile_as(const std::uint8_t* tables, Weights source, std::int64_t rows, const TileCall& call) {
  const Widener widener(tables);
  if (source == Weights::kCodes) return multiply_codes<kHalves, kPanels>(widener, rows, call);
  if (call.next.panels == 2) return multiply_kept<kHalves, kPanels, 2>(widener, rows, call);
  if (call.next.panels == 1) return multiply_kept<kHalves, kPanels, 1>(widener, rows, call);
  multiply_kept<kHalves, kPanels, 0>(widener, rows, call);
}

void multiply_tile(DType weights, Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call) {
  const std::uint8_t* tables = bf16_tables(weights);
  if (rows > 16) {
    if (panels == 2) return multiply_tile_as<2, 2>(tables, source, rows, call);
    return multiply_tile_as<2, 1>(tables, source, rows, call);
  }
  if (panels == 2) return multiply_tile_as<1, 2>(tables, source, rows, call);
  multiply_tile_as<1, 1>(tables, source, rows, call);
}

SCALEDMM_TARGET_END

}  // namespace

const fp8::TileKernels& fp8_tiles_amx() { return kTileKernels; }

const LinearKernel& fp8_w8a16_amx() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
