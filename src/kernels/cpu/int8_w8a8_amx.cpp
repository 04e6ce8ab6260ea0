// int8_w8a8_amx
//   t = f32(sum over k of (q[m, k] - zx[m]) * w[n, k]) * sx[m];  y[m, n] = bias ? fma(t, sw[n], bias[n]) : t * sw[n]
//   x [M, K] f32, bf16 or f16, quantized here, or int8; w [N, K] int8, a scale per channel or per block; y [M, N] f32,
//   bf16, f16
// TDPBSSD adds signed products in int32 without saturation; K < 2^17, so sums cannot wrap and y equals the reference
// bit for bit. Source: Intel SDM vol. 2, TDPBSSD, LDTILECFG. docs/quantization.md 2 and 4.
#include <cstring>
#include <string>

#include "device/target.hpp"
#include "kernels/cpu/int8_packing.hpp"
#include "kernels/cpu/int8_product.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr std::int64_t kTileRows = 16;  // of every tile: codes, weights (4 of K each) and sums
constexpr std::int64_t kTileK = 64;     // bytes of a tile row: what one TDPBSSD takes of K
constexpr std::int64_t kTileBytes = kTileRows * kTileK;
constexpr std::int64_t kPanels = 2;  // 2 x 2 tiles of sums: each tile of codes and weights is used twice

// codes[n / 16][p / 4][n % 16][p % 4], see int8_packing.hpp: sixteen p / 4 in a row are one tile
constexpr Int8Tile kTile{kInt8PanelN, kTileK, 4};

void multiply_tiles(const Int8Rectangle&);
void configure_tiles();
void release_tiles();

constexpr Int8Method kMethod{.layout = CodeLayout::kTiles,
                             .row_functions = int8_rows_avx512,
                             .rows = 2 * kTileRows,
                             .row_step = kTileRows,
                             .panels = kPanels,
                             .block_eighths = 4,
                             .multiply = multiply_tiles,
                             .enter = configure_tiles,
                             .leave = release_tiles};

class Kernel final : public LinearKernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        .name = "int8_w8a8_amx",
        .upstream = "CPUInt8ScaledMMLinearKernel",
        .device = DeviceKind::kCpu,
        .isa = Isa::kAmx,
        .computes = "w8a8",
        .guarantees = {.accumulator = "int32", .exactness = "integer sums exact; equal to the reference bit for bit"}};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    const std::string tier(scaledmm::name(device.isa));
    if (!device.cpu.avx512) return Support::no("the cpu has no usable avx512 (f, bw, dq, vl), its tier is " + tier);
    if (!device.cpu.amx_int8) return Support::no("the cpu has no usable amx int8, its tier is " + tier);
    return Support::yes();
  }
  Support can_implement(const LayerConfig& config) const override { return can_implement_int8(config); }
  std::optional<QuantKey> input_quant_key(const LayerConfig& config) const override {
    return int8_input_quant_key(config);
  }
  std::unique_ptr<PackedWeights> pack(const LayerConfig&, const CheckedWeights& weights,
                                      Context& context) const override {
    return pack_int8(weights, kTile, context);
  }
  void multiply(const LayerConfig& config, const PackedWeights& packed, const ApplyArguments& arguments,
                Context& context) const override {
    multiply_int8(config, static_cast<const Int8Weights&>(packed), arguments, kMethod, context);
  }
  std::vector<std::uint8_t> unpack(const LayerConfig&, const PackedWeights& packed) const override {
    return unpack_int8(static_cast<const Int8Weights&>(packed));
  }
  std::string packed_layout() const override { return int8_layout(kTile); }
  std::unique_ptr<PackedWeights> adopt(const LayerConfig&, const CheckedWeights& weights,
                                       std::span<const PackedSection> sections,
                                       const std::shared_ptr<const void>& memory) const override {
    return adopt_int8(weights, kTile, sections, memory);
  }
};

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE

SCALEDMM_TARGET_BEGIN("avx2,fma,amx-tile,amx-int8")
namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

struct alignas(64) TilePalette {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TilePalette) == 64);

// The whole structure is named as an operand: g++ 12's _tile_loadconfig names 8 bytes, and stores to the rest may be
// dropped.
inline void load_palette(const TilePalette& palette) {
#ifdef SCALEDMM_EMULATE
  _tile_loadconfig(&palette);
#else
  asm volatile("ldtilecfg %0" : : "m"(palette));
#endif
}

void configure_tiles() {
  TilePalette palette;
  for (int t = 0; t < 8; ++t) {
    palette.row_bytes[t] = kTileK;
    palette.rows[t] = kTileRows;
  }
  load_palette(palette);
}

void release_tiles() { _tile_release(); }

// Tiles of one rectangle: codes from x[0], x[1], weights from w[0], w[1], one tile further each step of K.
struct TileStream {
  explicit TileStream(const Int8Rectangle& a)
      : steps(a.length / kTileK),
        panels(a.streams ? a.panels : 0),
        next(a.next),
        next_lines(a.streams ? 0 : (a.next_bytes / kTileK + steps - 1) / steps) {
    for (int i = 0; i < 2; ++i) {
      // A second tile that is not there is not read.
      const std::int64_t row = i * kTileRows < a.rows ? i * kTileRows : 0;
      const std::int64_t panel = i < a.panels ? i : 0;
      x[i] = a.codes->row(a.first_row + row) + a.place * kTileRows;
      w[i] = a.weights->panel(a.first_panel + panel) + a.place * kInt8PanelN;
    }
  }

  // Weights that are read once are fetched a little ahead. Where many rows keep those of this rectangle in the cache,
  // the ones of the next are on their way to the second-level cache.
  void prefetch() {
    constexpr std::int64_t kAhead = 4 * kTileBytes;
    for (std::int64_t i = 0; i < panels; ++i) {
      for (std::int64_t line = 0; line < kTileBytes; line += kTileK) {
        _mm_prefetch(reinterpret_cast<const char*>(w[i] + kAhead + line), _MM_HINT_T0);
      }
    }
    for (std::int64_t i = 0; i < next_lines; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
      next += kTileK;
    }
  }

  void advance() {
    for (int i = 0; i < 2; ++i) {
      x[i] += kTileBytes;
      w[i] += kTileBytes;
    }
  }

  const std::byte* x[2];
  const std::int8_t* w[2];
  std::int64_t steps;
  std::int64_t panels;  // of weights that are fetched a little ahead
  const std::int8_t* next;
  std::int64_t next_lines;
};

// Tile registers 0-3 hold sums, 4-5 codes, 6-7 weights. Each code and weight tile is zeroed right after its last use:
// where the sibling thread leaves few physical tiles, fewer live ones are faster (1.4 to 1.9 times), and elsewhere it
// costs nothing.
void multiply_2x2(const Int8Rectangle& a) {
  TileStream s(a);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t step = 0; step < s.steps; ++step) {
    _tile_loadd(4, s.x[0], kTileK);
    _tile_loadd(6, s.w[0], kTileK);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, s.w[1], kTileK);
    _tile_dpbssd(1, 4, 7);
    _tile_zero(4);
    _tile_loadd(5, s.x[1], kTileK);
    _tile_dpbssd(2, 5, 6);
    _tile_zero(6);
    _tile_dpbssd(3, 5, 7);
    _tile_zero(5);
    _tile_zero(7);
    s.prefetch();
    s.advance();
  }
  const std::int64_t row_bytes = a.stride * 4;
  _tile_stored(0, a.sums, row_bytes);
  _tile_stored(1, a.sums + kInt8PanelN, row_bytes);
  _tile_stored(2, a.sums + kTileRows * a.stride, row_bytes);
  _tile_stored(3, a.sums + kTileRows * a.stride + kInt8PanelN, row_bytes);
}

void multiply_1x2(const Int8Rectangle& a) {
  TileStream s(a);
  _tile_zero(0);
  _tile_zero(1);
  for (std::int64_t step = 0; step < s.steps; ++step) {
    _tile_loadd(4, s.x[0], kTileK);
    _tile_loadd(6, s.w[0], kTileK);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(6, s.w[1], kTileK);
    _tile_dpbssd(1, 4, 6);
    _tile_zero(4);
    _tile_zero(6);
    s.prefetch();
    s.advance();
  }
  _tile_stored(0, a.sums, a.stride * 4);
  _tile_stored(1, a.sums + kInt8PanelN, a.stride * 4);
}

void multiply_2x1(const Int8Rectangle& a) {
  TileStream s(a);
  _tile_zero(0);
  _tile_zero(2);
  for (std::int64_t step = 0; step < s.steps; ++step) {
    _tile_loadd(6, s.w[0], kTileK);
    _tile_loadd(4, s.x[0], kTileK);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(4, s.x[1], kTileK);
    _tile_dpbssd(2, 4, 6);
    _tile_zero(4);
    _tile_zero(6);
    s.prefetch();
    s.advance();
  }
  _tile_stored(0, a.sums, a.stride * 4);
  _tile_stored(2, a.sums + kTileRows * a.stride, a.stride * 4);
}

void multiply_1x1(const Int8Rectangle& a) {
  TileStream s(a);
  _tile_zero(0);
  for (std::int64_t step = 0; step < s.steps; ++step) {
    _tile_loadd(4, s.x[0], kTileK);
    _tile_loadd(6, s.w[0], kTileK);
    _tile_dpbssd(0, 4, 6);
    _tile_zero(4);
    _tile_zero(6);
    s.prefetch();
    s.advance();
  }
  _tile_stored(0, a.sums, a.stride * 4);
}

void multiply_tiles(const Int8Rectangle& a) {
  if (a.rows > kTileRows) return a.panels == 2 ? multiply_2x2(a) : multiply_2x1(a);
  return a.panels == 2 ? multiply_1x2(a) : multiply_1x1(a);
}

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
SCALEDMM_TARGET_END

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {

const LinearKernel& int8_w8a8_amx() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
