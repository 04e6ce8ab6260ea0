// fp8_w8a16_amx
//   y[m, n] = bias[n] + sum over K blocks b of sw[n, b] * sum over k in b of x[m, k] * w[n, k]
//   x [M, K] f32, bf16 or f16; w [N, K] e4m3fn, e4m3fnuz or e5m2, widened to bf16; y [M, N] f32, bf16 or f16
// TDPBF16PS multiplies bf16 exactly and adds up 16 odd and 16 even products in f32 before it adds them to the tile.
// f32 and f16 activations are p = 3 and 2 bf16 rows, which are they exactly; the sums of these are added in the end.
// Scales are f32 and applied to f32 sums. Error before the last rounding: 2^-24 (K + blocks + p + 1) sum |x w sw| at
// most. The instruction takes denormals as zero; rows are kept away from them when they are packed.
//
// Weights are widened by VPERMB: two tables of 64 bytes give the low and the high byte of every number, exactly.
// Source: Intel SDM vol. 2, TDPBF16PS, VPERMB.
#include <algorithm>

#include "device/target.hpp"
#include "kernels/cpu/fp8_amx_tiles.hpp"
#include "kernels/cpu/fp8_product.hpp"
#include "kernels/cpu/fp8_w8a8.hpp"
#include "kernels/cpu/fp8_widener.hpp"

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
    // A tile has the whole of K in one go where the second-level cache holds a few tiles of x beside the codes.
    .packing = {.k_step = kTileK, .order = Order::kPairs, .chunk_k = 4096},
    .kept_panels = 2,
    .group_panels = 32,
    .x_eighths = 2,
    .stores_outputs = true,
    .x_bytes = 2,
    .kept_bytes = 0,
    .parts = bf16::parts_of,
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
        {true, true, true, "f32", "exact products, f32 sums by 32 of K: 2^-24 (K + blocks + p + 1) sum |x w sw|"}};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    if (!device.cpu.avx512) return Support::no("the cpu has no usable avx512 with bw, dq and vl");
    if (!device.cpu.avx512_vbmi) return Support::no("the cpu has no usable avx512_vbmi, which widens the weights");
    if (!device.cpu.amx_bf16) return Support::no("the cpu has no usable amx_bf16");
    return Support::yes();
  }
  Support can_implement(const LayerConfig& config) const override {
    Support support = fp8::can_implement_w8a16(config);
    const std::int64_t parts = bf16::parts_of(input_dtype(config));
    if (!support || parts == 1 || !std::get<FP8ScaledMMLinearLayerConfig>(config).activation_quant_key) return support;
    return Support::yes_after("fp8_w8a8_amx", "input is " + std::string(scaledmm::name(input_dtype(config))) +
                                                  ", which takes " + std::to_string(parts) +
                                                  " bf16 products, and its codes take 1");
  }
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
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,prfchw,amx-tile,amx-bf16")
// clang-format on

constexpr std::int64_t kGroupBytes = 64;  // 4 k of 16 columns
constexpr std::int64_t kWideBytes = 128;  // the same widened
constexpr std::int64_t kStepGroups = 8;   // of one panel
constexpr std::int64_t kRing = 4;         // steps
constexpr std::int64_t kAhead = 2;

SCALEDMM_INLINE inline void widen_group(const Widener& widener, const std::uint8_t* codes, std::byte* kept) {
  __m512i first, second;
  widener.widen(codes, first, second);
  _mm512_store_si512(kept, first);
  _mm512_store_si512(kept + kRowBytes, second);
}

// One step of 32 k. A tile that was zeroed costs nothing to rename, so each is zeroed right after its last use: with
// the core shared, that is 1.4 to 1.9 times as fast as loading all four first. Calls after(i) behind product i, for
// what the vector units can do meanwhile: shuffles, shifts and logic take no time from the tiles, multiply-adds do.
template <int kHalves, int kPanels, class After>
SCALEDMM_INLINE inline void multiply_step(const std::byte* x0, const std::byte* x1, const std::byte* w0,
                                          const std::byte* w1, const After& after) {
  _tile_loadd(SCALEDMM_X_0, x0, kRowBytes);
  _tile_loadd(SCALEDMM_W_0, w0, kRowBytes);
  _tile_dpbf16ps(SCALEDMM_SUM_00, SCALEDMM_X_0, SCALEDMM_W_0);
  if constexpr (kHalves == 1) _tile_zero(SCALEDMM_W_0);
  after(0);
  if constexpr (kPanels == 2) {
    _tile_loadd(SCALEDMM_W_1, w1, kRowBytes);
    _tile_dpbf16ps(SCALEDMM_SUM_01, SCALEDMM_X_0, SCALEDMM_W_1);
    if constexpr (kHalves == 1) _tile_zero(SCALEDMM_W_1);
  }
  _tile_zero(SCALEDMM_X_0);
  if constexpr (kPanels == 2) after(1);
  if constexpr (kHalves == 2) {
    _tile_loadd(SCALEDMM_X_1, x1, kRowBytes);
    _tile_dpbf16ps(SCALEDMM_SUM_10, SCALEDMM_X_1, SCALEDMM_W_0);
    _tile_zero(SCALEDMM_W_0);
    after(kPanels);
    if constexpr (kPanels == 2) {
      _tile_dpbf16ps(SCALEDMM_SUM_11, SCALEDMM_X_1, SCALEDMM_W_1);
      _tile_zero(SCALEDMM_W_1);
    }
    _tile_zero(SCALEDMM_X_1);
    if constexpr (kPanels == 2) after(3);
  }
}

// Part `part` of kHalves of one step of one panel. One line in four is fetched, `ahead` bytes on: that is enough for
// the cache to fetch the rest on its own, and more would take the buffers that loads need.
template <int kHalves>
SCALEDMM_INLINE inline void widen_part(const Widener& widener, const std::uint8_t* codes, std::int64_t ahead,
                                       std::byte* wide, std::int64_t part) {
  constexpr std::int64_t kGroups = kStepGroups / kHalves;
  codes += part * kGroups * kGroupBytes;
  wide += part * kGroups * kWideBytes;
  SCALEDMM_UNROLL
  for (std::int64_t i = 0; i < kGroups; ++i) {
    if (i % 4 == 0) _mm_prefetch(reinterpret_cast<const char*>(codes + i * kGroupBytes + ahead), _MM_HINT_T1);
    widen_group(widener, codes + i * kGroupBytes, wide + i * kWideBytes);
  }
}

// Weights are widened into a ring that stays in L1, two steps ahead of their product: a tile load waits until the
// stores of its data have left the store buffer. Every tile widens them anew, which hides behind two products a panel
// and step; widened weights that are kept would be loads from L2 and short chunks of K.
template <int kHalves, int kPanels>
void multiply_tile_as(DType weights, std::int64_t rows, const TileCall& call) {
  constexpr std::int64_t kPanelRing = kRing * kTileBytes;
  constexpr std::int64_t kStepCodes = kTileK * kPanelColumns;
  constexpr std::int64_t kFetchSteps = 16;
  const Widener widener(fp8_numbering(weights));
  const std::int64_t steps = call.length() / kTileK;
  const std::byte* x0 = call.x;
  const std::byte* x1 = x0 + steps * kTileBytes;
  alignas(64) std::byte wide[kPanels * kPanelRing];
  const auto ring = [&](std::int64_t i) { return wide + i % kRing * kTileBytes; };
  const auto codes = [&](std::int64_t i) { return call.codes + i * kStepCodes; };
  // Behind the last codes of these panels come those of the same chunk of the next.
  const std::int64_t ahead = kFetchSteps * kStepCodes;
  const std::int64_t ahead_in_next = ahead - steps * kStepCodes + kPanels * call.panel_codes;
  for (std::int64_t i = 0; i < std::min(kAhead, steps); ++i) {
    for (int p = 0; p < kPanels; ++p) {
      widen_part<1>(widener, codes(i) + p * call.panel_codes, ahead, ring(i) + p * kPanelRing, 0);
    }
  }
  std::int64_t i = 0;
  for (const Piece& piece : call.pieces) {
    begin_piece<kHalves, kPanels>(piece, call);
    for (const std::int64_t end = i + piece.steps / kTileK; i < end; ++i) {
      stores_before_tile_loads();
      // At the end the last step is widened again, to a place of the ring that nothing reads.
      const std::int64_t widened = std::min(i + kAhead, steps - 1);
      const std::uint8_t* from = codes(widened);
      const std::int64_t fetched = widened + kFetchSteps < steps ? ahead : ahead_in_next;
      std::byte* to = ring(i + kAhead);
      const std::byte* w = ring(i);
      multiply_step<kHalves, kPanels>(
          x0 + i * kTileBytes, x1 + i * kTileBytes, w, w + kPanelRing, [&](int product) SCALEDMM_INLINE {
            const int p = product / kHalves;
            widen_part<kHalves>(widener, from + p * call.panel_codes, fetched, to + p * kPanelRing, product % kHalves);
          });
    }
    end_piece<kHalves, kPanels>(piece, rows, call);
  }
}

void multiply_tile(DType weights, Weights, std::int64_t rows, std::int64_t panels, const TileCall& call) {
  if (rows > 16) {
    if (panels == 2) return multiply_tile_as<2, 2>(weights, rows, call);
    return multiply_tile_as<2, 1>(weights, rows, call);
  }
  if (panels == 2) return multiply_tile_as<1, 2>(weights, rows, call);
  multiply_tile_as<1, 1>(weights, rows, call);
}

SCALEDMM_TARGET_END

}  // namespace

const fp8::TileKernels& fp8_tiles_amx() { return kTileKernels; }

const LinearKernel& fp8_w8a16_amx() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
