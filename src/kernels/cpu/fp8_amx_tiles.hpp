// AMX tiles of the FP8 kernels: configuration, registers, and the way of f32 sums from tiles to totals. Two by two
// tiles of 16 rows and 16 columns: 1 tile load for each product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/target.hpp"
#include "kernels/cpu/fp8_product.hpp"

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,amx-tile")
// clang-format on
namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

using namespace fp8;

constexpr std::int64_t kRowBytes = 64;  // of every tile
constexpr std::int64_t kTileBytes = 1024;
constexpr std::int64_t kTileFloats = 256;

// Tile registers, by row half and panel. The intrinsics of g++ paste the digit.
#define SCALEDMM_SUM_00 0
#define SCALEDMM_SUM_01 1
#define SCALEDMM_SUM_10 2
#define SCALEDMM_SUM_11 3
#define SCALEDMM_X_0 4
#define SCALEDMM_X_1 5
#define SCALEDMM_W_0 6
#define SCALEDMM_W_1 7

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {kRowBytes, kRowBytes, kRowBytes, kRowBytes,
                                 kRowBytes, kRowBytes, kRowBytes, kRowBytes};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void configure_tiles() {
  static constexpr TileConfig kConfig{};
  _tile_loadconfig(&kConfig);
}

void release_tiles() { _tile_release(); }

// g++ 12 does not know that tile loads read memory: stores before them must not move behind them.
inline void stores_before_tile_loads() { __asm__ volatile("" ::: "memory"); }

// Where the sums of a piece go: [panel][row][16].
struct Sums {
  float* memory;
  std::int64_t panel;  // floats from panel to panel

  float* at(std::int64_t half, std::int64_t p) const { return memory + p * panel + half * kTileFloats; }
};

template <int kHalves, int kPanels>
void begin_sums(bool from_memory, const Sums& sums) {
  _tile_zero(SCALEDMM_SUM_00);
  if constexpr (kPanels == 2) _tile_zero(SCALEDMM_SUM_01);
  if constexpr (kHalves == 2) _tile_zero(SCALEDMM_SUM_10);
  if constexpr (kHalves == 2 && kPanels == 2) _tile_zero(SCALEDMM_SUM_11);
  if (!from_memory) return;
  _tile_loadd(SCALEDMM_SUM_00, sums.at(0, 0), kRowBytes);
  if constexpr (kPanels == 2) _tile_loadd(SCALEDMM_SUM_01, sums.at(0, 1), kRowBytes);
  if constexpr (kHalves == 2) _tile_loadd(SCALEDMM_SUM_10, sums.at(1, 0), kRowBytes);
  if constexpr (kHalves == 2 && kPanels == 2) _tile_loadd(SCALEDMM_SUM_11, sums.at(1, 1), kRowBytes);
}

template <int kHalves, int kPanels>
void store_sums(const Sums& sums) {
  _tile_stored(SCALEDMM_SUM_00, sums.at(0, 0), kRowBytes);
  if constexpr (kPanels == 2) _tile_stored(SCALEDMM_SUM_01, sums.at(0, 1), kRowBytes);
  if constexpr (kHalves == 2) _tile_stored(SCALEDMM_SUM_10, sums.at(1, 0), kRowBytes);
  if constexpr (kHalves == 2 && kPanels == 2) _tile_stored(SCALEDMM_SUM_11, sums.at(1, 1), kRowBytes);
}

// totals (+)= sums * row scale * scale, 4 instructions for 16 outputs: nothing in the loop depends on the block.
template <int kPanels, bool kFirst, bool kRowScales>
void add_to_totals(const Sums& sums, std::int64_t rows, std::int64_t block, const TileCall& call) {
  for (int p = 0; p < kPanels; ++p) {
    const __m512 scale = _mm512_load_ps(call.scales + p * call.panel_scales + block * kPanelColumns);
    const float* from = sums.at(0, p);
    float* totals = call.totals + p * call.panel_sums;
#pragma GCC unroll 4
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t i = row * kPanelColumns;
      __m512 sum = _mm512_load_ps(from + i);
      if constexpr (kRowScales) sum = _mm512_mul_ps(sum, _mm512_set1_ps(call.row_scale(row, block)));
      const __m512 total = kFirst ? _mm512_mul_ps(sum, scale) : _mm512_fmadd_ps(sum, scale, _mm512_load_ps(totals + i));
      _mm512_store_ps(totals + i, total);
    }
  }
}

// One piece of K: step(i) adds the products of step i to the tiles of sums. Sums of a whole scale block pass through L1
// on their way to the totals. Adding them one step late, so that the additions could overlap with the tiles of the next
// block, was not faster.
template <int kHalves, int kPanels, class Step>
void multiply_piece(const Piece& piece, std::int64_t rows, const TileCall& call, std::int64_t first_step,
                    std::int64_t steps, const Step& step) {
  constexpr std::int64_t kNearPanel = kHalves * kTileFloats;
  alignas(64) float near[kPanels * kNearPanel];
  const Sums unfinished{call.sums, call.panel_sums};
  begin_sums<kHalves, kPanels>(!piece.begins_block, unfinished);
  for (std::int64_t i = first_step; i < first_step + steps; ++i) step(i);
  if (!piece.ends_block) return store_sums<kHalves, kPanels>(unfinished);
  if (call.scales == nullptr) return store_sums<kHalves, kPanels>(Sums{call.totals, call.panel_sums});
  const Sums sums{near, kNearPanel};
  store_sums<kHalves, kPanels>(sums);
  const bool is_first = piece.block == 0;
  if (call.row_scales_step == 0) {
    if (is_first) return add_to_totals<kPanels, true, false>(sums, rows, piece.block, call);
    return add_to_totals<kPanels, false, false>(sums, rows, piece.block, call);
  }
  if (is_first) return add_to_totals<kPanels, true, true>(sums, rows, piece.block, call);
  add_to_totals<kPanels, false, true>(sums, rows, piece.block, call);
}

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
SCALEDMM_TARGET_END
