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
void configure_tiles();
void release_tiles();

constexpr TileKernels kTileKernels{
    .tile_rows = kTileRows,
    .row_unit = 16,
    .block_rows = 256,                                                      // 256 KiB of x for a chunk
    .packing = {.k_step = kTileK, .order = Order::kPairs, .chunk_k = 512},  // 32 KiB of bf16 weights in two panels
    .kept_panels = 2,
    .small_x_bytes = 1 << 20,  // half of an L2
    .x_bytes = 2,
    .kept_bytes = 2,
    .panels_at_once = panels_at_once,
    .pack_row = pack_bf16_tiles,
    .multiply = multiply_tile,
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
};

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,amx-tile,amx-bf16")
// clang-format on

constexpr std::int64_t kPrefetchBytes = 2048;
constexpr std::int64_t kGroupBytes = 64;
// With Weights::kCodes the widened weights of a step are read once: a ring of this many steps stays in L1.
constexpr std::int64_t kRing = 4;

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
      _mm_prefetch(reinterpret_cast<const char*>(codes + i * kGroupBytes + kPrefetchBytes), _MM_HINT_T0);
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

template <int kHalves, int kPanels>
void multiply_tile_as(const std::uint8_t* tables, Weights source, std::int64_t rows, const TileCall& call) {
  const Widener widener(tables);
  const Piece& last = call.pieces.back();
  const std::int64_t first = call.pieces.front().position;
  const std::int64_t steps = (last.position + last.steps - first) / kTileK;
  const std::byte* x0 = call.x + first * kTileBytes / kTileK;
  const std::byte* x1 = x0 + call.padded_k * kTileBytes / kTileK;
  const std::int64_t slots = source == Weights::kCodes ? kRing : steps;
  const std::int64_t panel_kept = source == Weights::kCodes ? kRing * kTileBytes : call.panel_kept;
  const auto widen_step = [&](std::int64_t i) {
    for (int p = 0; p < kPanels; ++p) {
      widener.widen(call.codes + p * call.panel_codes + i * kTileK * kPanelColumns,
                    call.kept + i % slots * kTileBytes + p * panel_kept);
    }
    stores_before_tile_loads();
  };
  // Widening is one step ahead, so that a tile load does not wait for the stores of its own step.
  if (source != Weights::kKept) widen_step(0);
  const auto multiply_at = [&](std::int64_t i) {
    if (source != Weights::kKept && i + 1 < steps) widen_step(i + 1);
    const std::byte* w = call.kept + i % slots * kTileBytes;
    multiply_step<kHalves, kPanels>(x0 + i * kTileBytes, x1 + i * kTileBytes, w, w + panel_kept);
  };
  std::int64_t step = 0;
  for (const Piece& piece : call.pieces) {
    const std::int64_t count = piece.steps / kTileK;
    multiply_piece<kHalves, kPanels>(piece, rows, call, step, count, multiply_at);
    step += count;
  }
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
