// int8_w8a8_amx
//   t = f32(sum over k of (q[m, k] - zx[m]) * w[n, k]) * sx[m];  y[m, n] = bias ? fma(t, sw[n], bias[n]) : t * sw[n]
//   x [M, K] f32, bf16 or f16, quantized here, or int8; w [N, K] int8, a scale per channel or per block; y [M, N] f32,
//   bf16, f16
// TDPBSSD adds signed products in int32 without saturation; K < 2^17, so sums cannot wrap and y equals the reference
// bit for bit. Source: Intel SDM vol. 2, TDPBSSD, LDTILECFG. docs/quantization.md 2 and 4.
#include <cstring>
#include <string>

#include "device/target.hpp"
#include "kernels/cpu/int8_kernel.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr std::int64_t kTileRows = 16;  // of every tile: codes, weights (4 of K each) and sums
constexpr std::int64_t kTileK = 64;     // bytes of a tile row: what one TDPBSSD takes of K
constexpr std::int64_t kTileBytes = kTileRows * kTileK;
constexpr std::int64_t kPanels = 2;  // 2 x 2 tiles of sums: each tile of codes and weights is used twice

// codes[n / 16][p / 4][n % 16][p % 4], see int8_packing.hpp: sixteen p / 4 in a row are one tile
constexpr Int8Tile kTile{kInt8PanelN, kTileK, 4};

void multiply_tiles(const Int8Rectangle&);
void multiply_blocks(const Int8Rectangle&);
void configure_tiles();
void release_tiles();

constexpr Int8Method kMethod{.layout = CodeLayout::kTiles,
                             .row_functions = int8_rows_avx512,
                             .rows = 2 * kTileRows,
                             .row_step = kTileRows,
                             .panels = kPanels,
                             .block_eighths = 4,
                             .multiply = multiply_tiles,
                             .multiply_blocks = multiply_blocks,
                             .enter = configure_tiles,
                             .leave = release_tiles};

class Kernel final : public Int8Kernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{.name = "int8_w8a8_amx",
                                      .upstream = "CPUInt8ScaledMMLinearKernel",
                                      .device = DeviceKind::kCpu,
                                      .isa = Isa::kAmx,
                                      .computes = "w8a8",
                                      .guarantees = kGuarantees};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    const std::string tier(scaledmm::name(device.isa));
    if (!device.cpu.avx512) return Support::no("the cpu has no usable avx512 (f, bw, dq, vl), its tier is " + tier);
    if (!device.cpu.amx_int8) return Support::no("the cpu has no usable amx int8, its tier is " + tier);
    return Support::yes();
  }

 private:
  const Int8Tile& tile() const override { return kTile; }
  Int8Method method(std::int64_t) const override { return kMethod; }
};

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prfchw,amx-tile,amx-int8")
// clang-format on
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
class TileStream {
 public:
  TileStream(const Int8Rectangle& a, std::int64_t length)
      : streams_(a.streams),
        next_(a.next),
        next_lines_(a.streams ? 0 : (a.next_bytes / kTileK + length / kTileK - 1) / (length / kTileK)),
        y_(a.y),
        y_stride_bytes_(a.y_stride_bytes),
        y_rows_(a.rows) {
    for (int i = 0; i < 2; ++i) {
      // A second tile that is not there is not read.
      const std::int64_t row = i * kTileRows < a.rows ? i * kTileRows : 0;
      const std::int64_t panel = i < a.panels ? i : 0;
      x_[i] = a.codes->row(a.first_row + row) + a.place * kTileRows;
      w_[i] = a.weights->panel(a.first_panel + panel) + a.place * kInt8PanelN;
    }
  }

  // One step of K. Tile registers 0-3 hold sums, by row half and panel, 4-5 codes, 6-7 weights. Each code and weight
  // tile is zeroed right after its last use: where the sibling thread leaves few physical tiles, fewer live ones are
  // faster (1.4 to 1.9 times), and elsewhere it costs nothing. Calls after() behind each product.
  template <int kHalves, int kPanels, class After>
  void multiply(const After& after) {
    _tile_loadd(4, x_[0], kTileK);
    _tile_loadd(6, w_[0], kTileK);
    _tile_dpbssd(0, 4, 6);
    after();
    if constexpr (kHalves == 1) _tile_zero(6);
    if constexpr (kPanels == 2) {
      _tile_loadd(7, w_[1], kTileK);
      _tile_dpbssd(1, 4, 7);
      after();
    }
    _tile_zero(4);
    if constexpr (kHalves == 2) {
      _tile_loadd(5, x_[1], kTileK);
      _tile_dpbssd(2, 5, 6);
      after();
      _tile_zero(6);
      if constexpr (kPanels == 2) {
        _tile_dpbssd(3, 5, 7);
        after();
      }
      _tile_zero(5);
    }
    if constexpr (kPanels == 2) _tile_zero(7);
    prefetch<kPanels>();
    for (int i = 0; i < 2; ++i) {
      x_[i] += kTileBytes;
      w_[i] += kTileBytes;
    }
  }

 private:
  // Weights that are read once are fetched a little ahead. Where many rows keep those of this rectangle in the cache,
  // the ones of the next are on their way to the second-level cache; and the rows of y to where they will be written.
  template <int kPanels>
  void prefetch() {
    constexpr std::int64_t kAhead = 4 * kTileBytes;
    if (streams_) {
      for (int i = 0; i < kPanels; ++i) {
        for (std::int64_t line = 0; line < kTileBytes; line += kTileK) {
          _mm_prefetch(reinterpret_cast<const char*>(w_[i] + kAhead + line), _MM_HINT_T0);
        }
      }
    }
    for (std::int64_t i = 0; i < next_lines_; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(next_), _MM_HINT_T2);
      next_ += kTileK;
    }
    if (y_rows_ > 0) {
      __builtin_prefetch(y_, 1);
      y_ += y_stride_bytes_;
      --y_rows_;
    }
  }

  const std::byte* x_[2];
  const std::int8_t* w_[2];
  bool streams_;
  const std::int8_t* next_;
  std::int64_t next_lines_;
  const std::byte* y_;
  std::int64_t y_stride_bytes_;
  std::int64_t y_rows_;
};

template <int kHalves, int kPanels>
void zero_sums() {
  _tile_zero(0);
  if constexpr (kPanels == 2) _tile_zero(1);
  if constexpr (kHalves == 2) _tile_zero(2);
  if constexpr (kHalves == 2 && kPanels == 2) _tile_zero(3);
}

template <int kHalves, int kPanels>
void store_sums(std::int32_t* sums, std::int64_t stride) {
  const std::int64_t row_bytes = stride * 4;
  _tile_stored(0, sums, row_bytes);
  if constexpr (kPanels == 2) _tile_stored(1, sums + kInt8PanelN, row_bytes);
  if constexpr (kHalves == 2) _tile_stored(2, sums + kTileRows * stride, row_bytes);
  if constexpr (kHalves == 2 && kPanels == 2) _tile_stored(3, sums + kTileRows * stride + kInt8PanelN, row_bytes);
}

template <int kHalves, int kPanels>
void multiply_as(const Int8Rectangle& a) {
  TileStream stream(a, a.length);
  zero_sums<kHalves, kPanels>();
  for (std::int64_t step = 0; step < a.length / kTileK; ++step) stream.multiply<kHalves, kPanels>([] {});
  store_sums<kHalves, kPanels>(a.sums, a.stride);
}

// The sums of one segment on their way to the totals, eight registers at a time.
template <int kPanels>
class SegmentAdder {
 public:
  static constexpr std::int64_t kRegisters = 8;

  // Sums [rows][kPanels * 16], and the scales of their columns.
  SegmentAdder(const std::int32_t* sums, const float* sw, float* totals)
      : sums_(sums), totals_(totals), scales_{_mm512_loadu_ps(sw), _mm512_loadu_ps(sw + (kPanels - 1) * kInt8PanelN)} {}

  void add() {
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) {
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums_ + i * kInt8PanelN));
      const __m512 total = _mm512_load_ps(totals_ + i * kInt8PanelN);
      _mm512_store_ps(totals_ + i * kInt8PanelN, _mm512_fmadd_ps(sum, scales_[i % kPanels], total));
    }
    sums_ += kRegisters * kInt8PanelN;
    totals_ += kRegisters * kInt8PanelN;
  }

 private:
  const std::int32_t* sums_;
  float* totals_;
  __m512 scales_[2];
};

// Block scales: while the tiles multiply one segment, the vector units add the sums of the one before to the totals.
// One after the other they take 1.4 times as long. Rows that are not there have totals too.
template <int kHalves, int kPanels>
void multiply_blocks_as(const Int8Rectangle& a) {
  constexpr std::int64_t kProducts = kHalves * kPanels;  // of a step, and tiles of sums
  constexpr std::int64_t kSums = kProducts * kTileRows * kInt8PanelN;
  constexpr std::int64_t kAdds = kSums / kInt8PanelN / SegmentAdder<kPanels>::kRegisters;
  alignas(64) std::int32_t sums[2][kSums];
  const Int8Weights& weights = *a.weights;
  const auto segments = static_cast<std::int64_t>(weights.segments.size());
  const std::int64_t first_column = a.first_panel * kInt8PanelN;
  TileStream stream(a, weights.packed_k);
  for (std::int64_t s = 0; s < segments; ++s) {
    const std::int64_t before = s == 0 ? 0 : s - 1;  // the first segment has none, and makes no additions
    SegmentAdder<kPanels> adder(sums[before % 2], weights.scales_of(before) + first_column, a.totals);
    const std::int64_t adds = s == 0 ? 0 : kAdds;
    const std::int64_t steps = weights.segments[static_cast<std::size_t>(s)].padded / kTileK;
    std::int64_t due = 0;
    const auto add_some = [&] {
      for (due += adds; due >= steps * kProducts; due -= steps * kProducts) adder.add();
    };
    zero_sums<kHalves, kPanels>();
    for (std::int64_t step = 0; step < steps; ++step) stream.multiply<kHalves, kPanels>(add_some);
    store_sums<kHalves, kPanels>(sums[s % 2], kPanels * kInt8PanelN);
  }
  SegmentAdder<kPanels> last(sums[(segments - 1) % 2], weights.scales_of(segments - 1) + first_column, a.totals);
  for (std::int64_t i = 0; i < kAdds; ++i) last.add();
}

void multiply_tiles(const Int8Rectangle& a) {
  if (a.rows > kTileRows) return a.panels == 2 ? multiply_as<2, 2>(a) : multiply_as<2, 1>(a);
  return a.panels == 2 ? multiply_as<1, 2>(a) : multiply_as<1, 1>(a);
}

void multiply_blocks(const Int8Rectangle& a) {
  if (a.rows > kTileRows) return a.panels == 2 ? multiply_blocks_as<2, 2>(a) : multiply_blocks_as<2, 1>(a);
  return a.panels == 2 ? multiply_blocks_as<1, 2>(a) : multiply_blocks_as<1, 1>(a);
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
