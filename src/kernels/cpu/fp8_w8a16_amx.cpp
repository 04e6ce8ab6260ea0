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

// Few rows have four panels, hence four streams of codes from memory.
std::int64_t panels_at_once(std::int64_t rows) { return rows <= 16 ? 4 : 2; }

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

// The same of one half and four panels, w_panel bytes apart.
template <class After>
SCALEDMM_INLINE inline void multiply_step_of_four(const std::byte* x, const std::byte* w, std::int64_t w_panel,
                                                  const After& after) {
  _tile_loadd(SCALEDMM_X_0, x, kRowBytes);
  _tile_loadd(SCALEDMM_W_0, w, kRowBytes);
  _tile_dpbf16ps(SCALEDMM_SUM_00, SCALEDMM_X_0, SCALEDMM_W_0);
  _tile_zero(SCALEDMM_W_0);
  after(0);
  _tile_loadd(SCALEDMM_W_1, w + w_panel, kRowBytes);
  _tile_dpbf16ps(SCALEDMM_SUM_01, SCALEDMM_X_0, SCALEDMM_W_1);
  _tile_zero(SCALEDMM_W_1);
  after(1);
  _tile_loadd(SCALEDMM_W_0, w + 2 * w_panel, kRowBytes);
  _tile_dpbf16ps(SCALEDMM_SUM_02, SCALEDMM_X_0, SCALEDMM_W_0);
  _tile_zero(SCALEDMM_W_0);
  after(2);
  _tile_loadd(SCALEDMM_W_1, w + 3 * w_panel, kRowBytes);
  _tile_dpbf16ps(SCALEDMM_SUM_03, SCALEDMM_X_0, SCALEDMM_W_1);
  _tile_zero(SCALEDMM_W_1);
  _tile_zero(SCALEDMM_X_0);
  after(3);
}

// Part `part` of kHalves of one step of one panel. One line in kFetchLines is fetched, `ahead` bytes on: that is enough
// for the cache to fetch the rest on its own, and more would take the buffers that loads need.
template <int kHalves, int kFetchLines>
SCALEDMM_INLINE inline void widen_part(const Widener& widener, const std::uint8_t* codes, std::int64_t ahead,
                                       std::byte* wide, std::int64_t part) {
  constexpr std::int64_t kGroups = kStepGroups / kHalves;
  codes += part * kGroups * kGroupBytes;
  wide += part * kGroups * kWideBytes;
  SCALEDMM_UNROLL
  for (std::int64_t i = 0; i < kGroups; ++i) {
    if (i % kFetchLines == 0) _mm_prefetch(reinterpret_cast<const char*>(codes + i * kGroupBytes + ahead), _MM_HINT_T1);
    widen_group(widener, codes + i * kGroupBytes, wide + i * kWideBytes);
  }
}

// What is done with the sums of a scale block while the tiles multiply the next one.
enum class Adds : std::uint8_t { kNothing, kScaled, kScaledByRow };

// The sums of a scale block on their way to the totals, some rows behind each product of the next block: in one go, the
// tiles would stand still meanwhile. Few instructions, so that they fit beside the widening.
template <int kHalves, int kPanels, Adds kAdds>
class BlockAdder {
 public:
  BlockAdder(const Sums& sums, std::int64_t rows, const TileCall& call)
      : sums_(sums), totals_{call.totals, call.panel_sums}, last_row_(rows - 1), call_(call) {}

  // The sums are those of this block. A product plus -0 is the product.
  void begin(std::int64_t block) {
    block_ = block;
    row_ = 0;
    for (int p = 0; p < kPanels; ++p) {
      scales_[p] = _mm512_load_ps(call_.scales + p * call_.panel_scales + block * kPanelColumns);
      if constexpr (kAdds == Adds::kScaled) scales_[p] = _mm512_mul_ps(scales_[p], _mm512_set1_ps(call_.inverse_power));
      if (block > 0) continue;
      for (int i = 0; i < kRows; ++i) _mm512_store_ps(totals_.at(0, p) + i * kPanelColumns, _mm512_set1_ps(-0.0f));
    }
  }

  SCALEDMM_INLINE void add_some() {
    if (row_ == kRows) return;
    SCALEDMM_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) add_row(row_ + i);
    row_ += kRowsAtOnce;
  }
  void finish() {
    while (row_ < kRows) add_some();
  }

 private:
  static constexpr std::int64_t kRows = 16 * kHalves;
  static constexpr int kRowsAtOnce = 4 / kPanels;  // of a block of 128, all behind the products of the next

  SCALEDMM_INLINE void add_row(std::int64_t row) {
    SCALEDMM_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      float* total = totals_.at(0, p) + row * kPanelColumns;
      __m512 sum = _mm512_load_ps(sums_.at(0, p) + row * kPanelColumns);
      if constexpr (kAdds == Adds::kScaledByRow) {
        // The scale of a row may be so large that it overflows with a sum of multiplied weights.
        sum = _mm512_mul_ps(_mm512_mul_ps(sum, _mm512_set1_ps(call_.inverse_power)),
                            _mm512_set1_ps(call_.row_scale(std::min(row, last_row_), block_)));
      }
      _mm512_store_ps(total, _mm512_fmadd_ps(sum, scales_[p], _mm512_load_ps(total)));
    }
  }

  Sums sums_;
  Sums totals_;
  std::int64_t last_row_;
  const TileCall& call_;
  __m512 scales_[kPanels];
  std::int64_t block_ = 0;
  std::int64_t row_ = kRows;
};

// Weights are widened into a ring that stays in L1, two steps ahead of their product: a tile load waits until the
// stores of its data have left the store buffer. Every tile widens them anew, which hides behind two products a panel
// and step; widened weights that are kept would be loads from L2 and short chunks of K.
template <int kHalves, int kPanels, Adds kAdds>
void multiply_tile_as(DType weights, std::int64_t rows, const TileCall& call) {
  constexpr std::int64_t kPanelRing = kRing * kTileBytes;
  constexpr std::int64_t kStepCodes = kTileK * kPanelColumns;
  constexpr std::int64_t kFetchSteps = 16;
  constexpr int kFetchLines = kPanels == 4 ? 8 : 4;
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
      widen_part<1, kFetchLines>(widener, codes(i) + p * call.panel_codes, ahead, ring(i) + p * kPanelRing, 0);
    }
  }
  alignas(64) float near[kAdds == Adds::kNothing ? 1 : kHalves * kPanels * kTileFloats];
  const Sums sums{near, kHalves * kTileFloats};
  BlockAdder<kHalves, kPanels, kAdds> adder(sums, rows, call);
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
      const auto after = [&](int product) SCALEDMM_INLINE {
        const int p = product / kHalves;
        widen_part<kHalves, kFetchLines>(widener, from + p * call.panel_codes, fetched, to + p * kPanelRing,
                                         product % kHalves);
        if constexpr (kAdds != Adds::kNothing) adder.add_some();
      };
      if constexpr (kPanels == 4) {
        multiply_step_of_four(x0 + i * kTileBytes, w, kPanelRing, after);
      } else {
        multiply_step<kHalves, kPanels>(x0 + i * kTileBytes, x1 + i * kTileBytes, w, w + kPanelRing, after);
      }
    }
    if constexpr (kAdds != Adds::kNothing) {
      adder.finish();
      if (piece.ends_block && !(call.store != nullptr && &piece == &call.pieces.back())) {
        store_sums<kHalves, kPanels>(sums);
        adder.begin(piece.block);
        continue;
      }
    }
    end_piece<kHalves, kPanels>(piece, rows, call);
  }
  if constexpr (kAdds != Adds::kNothing) adder.finish();
}

template <int kHalves, int kPanels>
void multiply_tile_of(DType weights, std::int64_t rows, const TileCall& call) {
  if (call.scales == nullptr || call.pieces.size() == 1) {
    return multiply_tile_as<kHalves, kPanels, Adds::kNothing>(weights, rows, call);
  }
  if (call.row_scales_step == 0) return multiply_tile_as<kHalves, kPanels, Adds::kScaled>(weights, rows, call);
  multiply_tile_as<kHalves, kPanels, Adds::kScaledByRow>(weights, rows, call);
}

void multiply_tile(DType weights, Weights, std::int64_t rows, std::int64_t panels, const TileCall& call) {
  if (rows > 16) {
    if (panels == 2) return multiply_tile_of<2, 2>(weights, rows, call);
    return multiply_tile_of<2, 1>(weights, rows, call);
  }
  if (panels == 4) return multiply_tile_of<1, 4>(weights, rows, call);
  if (panels == 2) return multiply_tile_of<1, 2>(weights, rows, call);
  multiply_tile_of<1, 1>(weights, rows, call);
}

SCALEDMM_TARGET_END

}  // namespace

const fp8::TileKernels& fp8_tiles_amx() { return kTileKernels; }

const LinearKernel& fp8_w8a16_amx() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
