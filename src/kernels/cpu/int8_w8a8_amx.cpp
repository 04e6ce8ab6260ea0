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

// codes[n / 16][p / 4][n % 16][p % 4], see int8_packing.hpp: sixteen p / 4 in a row are one tile
constexpr Int8Tile kTile{kInt8PanelN, kTileK, 4};

void multiply_tiles(const Int8Rectangle&);
void multiply_blocks(const Int8Rectangle&);
void configure_tiles();
void release_tiles();

constexpr Int8Method method_of(std::int64_t rows, std::int64_t panels) {
  return {.layout = CodeLayout::kTiles,
          .row_functions = int8_rows_avx512,
          .writes_behind = true,
          .rows = rows,
          .row_step = kTileRows,
          .panels = panels,
          .block_eighths = 4,
          .shared_block_eighths = 2,
          .multiply = multiply_tiles,
          .multiply_blocks = multiply_blocks,
          .enter = configure_tiles,
          .leave = release_tiles};
}

// 2 x 2 tiles of sums: each tile of codes and weights is used twice. Few rows have four panels, hence four streams of
// weights from memory, and read their codes half as often.
constexpr Int8Method kMethod = method_of(2 * kTileRows, 2);
constexpr Int8Method kFewRows = method_of(kTileRows, 4);

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
  Int8Method method(std::int64_t m) const override { return m > kTileRows ? kMethod : kFewRows; }
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

// Weights on their way to the second-level cache, line by line, evenly over the steps.
class WeightFetch {
 public:
  WeightFetch() = default;
  WeightFetch(const std::int8_t* from, std::int64_t bytes, std::int64_t steps)
      : next_(from), lines_(bytes / kTileK), steps_(steps) {}

  void step() {
    for (due_ += lines_; due_ >= steps_; due_ -= steps_) {
      _mm_prefetch(reinterpret_cast<const char*>(next_), _MM_HINT_T2);
      next_ += kTileK;
    }
  }

 private:
  const std::int8_t* next_ = nullptr;
  std::int64_t lines_ = 0;
  std::int64_t steps_ = 1;
  std::int64_t due_ = 0;
};

// Tiles of one rectangle: one step of K after the other of kHalves x kPanels tiles, 2 x 2 or 1 x 4 at most.
template <int kHalves, int kPanels>
class TileStream {
 public:
  TileStream(const Int8Rectangle& a, std::int64_t length)
      : x_(a.codes->row(a.first_row) + a.place * kTileRows),
        x_half_(a.codes->row_bytes * kTileRows),
        w_(a.weights->panel(a.first_panel) + a.place * kInt8PanelN),
        w_panel_(a.weights->packed_k * kInt8PanelN),
        streams_(a.streams),
        steps_left_(length / kTileK - kAheadSteps),
        y_(a.y),
        y_stride_bytes_(a.y_stride_bytes),
        y_rows_(a.totals == nullptr ? 0 : a.rows) {
    const std::int64_t steps = length / kTileK;
    if (streams_) {
      ahead_in_next_ =
          a.next_bytes == 0 ? kAheadSteps * kTileBytes : (kAheadSteps - steps) * kTileBytes + (a.next - w_);
    } else {
      fetch_ = WeightFetch(a.next, a.next_bytes, steps);
    }
  }

  // Calls after() behind each product. Each code and weight tile is zeroed right after its last use: where the sibling
  // thread leaves few physical tiles, fewer live ones are faster (1.4 to 1.9 times), and elsewhere it costs nothing.
  template <class After>
  void multiply(const After& after) {
    if constexpr (kHalves == 2) {
      multiply_two_rows(after);
    } else {
      multiply_one_row(after);
    }
    prefetch();
    x_ += kTileBytes;
    w_ += kTileBytes;
  }

 private:
  static constexpr std::int64_t kAheadSteps = 4;
  static constexpr std::int64_t kFetchStride = 8;  // the cache fetches the other lines on its own

  // Tile registers 0-3 hold sums, by row half and panel, 4-5 codes, 6-7 weights.
  template <class After>
  void multiply_two_rows(const After& after) {
    _tile_loadd(4, x_, kTileK);
    _tile_loadd(6, w_, kTileK);
    _tile_dpbssd(0, 4, 6);
    after();
    if constexpr (kPanels == 2) {
      _tile_loadd(7, w_ + w_panel_, kTileK);
      _tile_dpbssd(1, 4, 7);
      after();
    }
    _tile_zero(4);
    _tile_loadd(5, x_ + x_half_, kTileK);
    _tile_dpbssd(2, 5, 6);
    after();
    _tile_zero(6);
    if constexpr (kPanels == 2) {
      _tile_dpbssd(3, 5, 7);
      after();
      _tile_zero(7);
    }
    _tile_zero(5);
  }

  // Tile registers 0-3 hold sums, 4 codes, 5-7 weights in turn.
  template <class After>
  void multiply_one_row(const After& after) {
    _tile_loadd(4, x_, kTileK);
    _tile_loadd(5, w_, kTileK);
    _tile_dpbssd(0, 4, 5);
    after();
    _tile_zero(5);
    if constexpr (kPanels >= 2) {
      _tile_loadd(6, w_ + w_panel_, kTileK);
      _tile_dpbssd(1, 4, 6);
      after();
      _tile_zero(6);
    }
    if constexpr (kPanels >= 3) {
      _tile_loadd(7, w_ + 2 * w_panel_, kTileK);
      _tile_dpbssd(2, 4, 7);
      after();
      _tile_zero(7);
    }
    if constexpr (kPanels >= 4) {
      _tile_loadd(5, w_ + 3 * w_panel_, kTileK);
      _tile_dpbssd(3, 4, 5);
      after();
      _tile_zero(5);
    }
    _tile_zero(4);
  }

  // Of weights that are read once, one line in eight is fetched a little ahead. Where more rows keep those of this
  // rectangle in the cache, the ones of the next are on their way to it; and, of block scales, the rows of y to where
  // they will be written.
  void prefetch() {
    if (streams_) {
      const std::int8_t* from = w_ + (steps_left_ > 0 ? kAheadSteps * kTileBytes : ahead_in_next_);
      --steps_left_;
      for (int p = 0; p < kPanels; ++p, from += w_panel_) {
        for (std::int64_t line = 0; line < kTileBytes; line += kFetchStride * kTileK) {
          _mm_prefetch(reinterpret_cast<const char*>(from + line), _MM_HINT_T0);
        }
      }
    }
    fetch_.step();
    if (y_rows_ > 0) {
      __builtin_prefetch(y_, 1);
      y_ += y_stride_bytes_;
      --y_rows_;
    }
  }

  const std::byte* x_;
  std::int64_t x_half_;
  const std::int8_t* w_;
  std::int64_t w_panel_;
  bool streams_;
  std::int64_t steps_left_;
  std::int64_t ahead_in_next_ = 0;
  WeightFetch fetch_;
  const std::byte* y_;
  std::int64_t y_stride_bytes_;
  std::int64_t y_rows_;
};

template <int kHalves, int kPanels>
void zero_sums() {
  _tile_zero(0);
  if constexpr (kPanels >= 2) _tile_zero(1);
  if constexpr (kHalves == 2 || kPanels >= 3) _tile_zero(2);
  if constexpr (kHalves * kPanels == 4) _tile_zero(3);
}

template <int kHalves, int kPanels>
void store_sums(std::int32_t* sums, std::int64_t stride) {
  const std::int64_t row_bytes = stride * 4;
  // Where tiles 2 and 3 belong.
  std::int32_t* const rest = sums + (kHalves == 2 ? kTileRows * stride : 2 * kInt8PanelN);
  _tile_stored(0, sums, row_bytes);
  if constexpr (kPanels >= 2) _tile_stored(1, sums + kInt8PanelN, row_bytes);
  if constexpr (kHalves == 2 || kPanels >= 3) _tile_stored(2, rest, row_bytes);
  if constexpr (kHalves * kPanels == 4) _tile_stored(3, rest + kInt8PanelN, row_bytes);
}

// Outputs that wait are written between the steps: in one go, tiles and memory would stand still meanwhile.
template <int kHalves, int kPanels>
void multiply_as(const Int8Rectangle& a) {
  TileStream<kHalves, kPanels> stream(a, a.length);
  const std::int64_t steps = a.length / kTileK;
  const std::int64_t rows = a.pending == nullptr ? 0 : a.pending->sums.rows;
  std::int64_t row = 0;
  zero_sums<kHalves, kPanels>();
  for (std::int64_t step = 0, due = 0; step < steps; ++step) {
    stream.multiply([] {});
    for (due += rows; due >= steps; due -= steps) a.pending->write(row++);
  }
  store_sums<kHalves, kPanels>(a.sums, a.stride);
}

// The sums of one segment on their way to the totals, some registers at a time.
template <int kPanels>
class SegmentAdder {
 public:
  static constexpr std::int64_t kRegisters = kPanels == 3 ? 6 : 8;  // whole rows

  // Sums [rows][kPanels * 16], and the scales of their columns.
  SegmentAdder(const std::int32_t* sums, const float* sw, float* totals) : sums_(sums), totals_(totals) {
    for (int p = 0; p < kPanels; ++p) scales_[p] = _mm512_loadu_ps(sw + p * kInt8PanelN);
  }

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
  __m512 scales_[kPanels];
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
  TileStream<kHalves, kPanels> stream(a, weights.packed_k);
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
    for (std::int64_t step = 0; step < steps; ++step) stream.multiply(add_some);
    store_sums<kHalves, kPanels>(sums[s % 2], kPanels * kInt8PanelN);
  }
  SegmentAdder<kPanels> last(sums[(segments - 1) % 2], weights.scales_of(segments - 1) + first_column, a.totals);
  for (std::int64_t i = 0; i < kAdds; ++i) last.add();
}

void multiply_tiles(const Int8Rectangle& a) {
  if (a.rows > kTileRows) return a.panels == 2 ? multiply_as<2, 2>(a) : multiply_as<2, 1>(a);
  if (a.panels > 2) return a.panels == 4 ? multiply_as<1, 4>(a) : multiply_as<1, 3>(a);
  return a.panels == 2 ? multiply_as<1, 2>(a) : multiply_as<1, 1>(a);
}

void multiply_blocks(const Int8Rectangle& a) {
  if (a.rows > kTileRows) return a.panels == 2 ? multiply_blocks_as<2, 2>(a) : multiply_blocks_as<2, 1>(a);
  if (a.panels > 2) return a.panels == 4 ? multiply_blocks_as<1, 4>(a) : multiply_blocks_as<1, 3>(a);
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
