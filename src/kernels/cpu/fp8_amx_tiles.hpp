// AMX tiles of the FP8 kernels: configuration, registers, and the way of f32 sums from tiles to totals. Two by two
// tiles of 16 rows and 16 columns: 1 tile load for each product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/target.hpp"
#include "kernels/cpu/bf16_parts.hpp"
#include "kernels/cpu/fp8_product.hpp"
#include "kernels/cpu/row_stores_avx512.hpp"

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prfchw,amx-tile")
// clang-format on
namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

using namespace fp8;

constexpr std::int64_t kRowBytes = 64;  // of every tile
constexpr std::int64_t kTileBytes = 1024;
constexpr std::int64_t kTileFloats = 256;

// Tile registers, by row half and panel: two by two sums, or one by four. The intrinsics of g++ paste the digit.
#define SCALEDMM_SUM_00 0
#define SCALEDMM_SUM_01 1
#define SCALEDMM_SUM_02 2
#define SCALEDMM_SUM_03 3
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
  if constexpr (kPanels >= 2) _tile_zero(SCALEDMM_SUM_01);
  if constexpr (kPanels == 4) _tile_zero(SCALEDMM_SUM_02);
  if constexpr (kPanels == 4) _tile_zero(SCALEDMM_SUM_03);
  if constexpr (kHalves == 2) _tile_zero(SCALEDMM_SUM_10);
  if constexpr (kHalves == 2 && kPanels == 2) _tile_zero(SCALEDMM_SUM_11);
  if (!from_memory) return;
  _tile_loadd(SCALEDMM_SUM_00, sums.at(0, 0), kRowBytes);
  if constexpr (kPanels >= 2) _tile_loadd(SCALEDMM_SUM_01, sums.at(0, 1), kRowBytes);
  if constexpr (kPanels == 4) _tile_loadd(SCALEDMM_SUM_02, sums.at(0, 2), kRowBytes);
  if constexpr (kPanels == 4) _tile_loadd(SCALEDMM_SUM_03, sums.at(0, 3), kRowBytes);
  if constexpr (kHalves == 2) _tile_loadd(SCALEDMM_SUM_10, sums.at(1, 0), kRowBytes);
  if constexpr (kHalves == 2 && kPanels == 2) _tile_loadd(SCALEDMM_SUM_11, sums.at(1, 1), kRowBytes);
}

template <int kHalves, int kPanels>
void store_sums(const Sums& sums) {
  _tile_stored(SCALEDMM_SUM_00, sums.at(0, 0), kRowBytes);
  if constexpr (kPanels >= 2) _tile_stored(SCALEDMM_SUM_01, sums.at(0, 1), kRowBytes);
  if constexpr (kPanels == 4) _tile_stored(SCALEDMM_SUM_02, sums.at(0, 2), kRowBytes);
  if constexpr (kPanels == 4) _tile_stored(SCALEDMM_SUM_03, sums.at(0, 3), kRowBytes);
  if constexpr (kHalves == 2) _tile_stored(SCALEDMM_SUM_10, sums.at(1, 0), kRowBytes);
  if constexpr (kHalves == 2 && kPanels == 2) _tile_stored(SCALEDMM_SUM_11, sums.at(1, 1), kRowBytes);
}

// to = totals (+)= sums * power * row scale * scale, 4 instructions for 16 outputs of W8A16, 6 of W8A8: nothing in the
// loop depends on the block.
template <int kPanels, bool kFirst, bool kRowScales>
void add_to_totals(const Sums& sums, std::int64_t rows, std::int64_t block, const TileCall& call, const Sums& to) {
  const __m512 power = _mm512_set1_ps(call.inverse_power);
  for (int p = 0; p < kPanels; ++p) {
    __m512 scale = _mm512_load_ps(call.scales + p * call.panel_scales + block * kPanelColumns);
    if constexpr (!kRowScales) scale = _mm512_mul_ps(scale, power);
    const float* from = sums.at(0, p);
    const float* totals = call.totals + p * call.panel_sums;
    float* out = to.at(0, p);
#pragma GCC unroll 4
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t i = row * kPanelColumns;
      __m512 sum = _mm512_load_ps(from + i);
      if constexpr (kRowScales) {
        // The scale of a row may be so large that it overflows with a sum of multiplied weights.
        sum = _mm512_mul_ps(_mm512_mul_ps(sum, power), _mm512_set1_ps(call.row_scale(row, block)));
      }
      const __m512 total = kFirst ? _mm512_mul_ps(sum, scale) : _mm512_fmadd_ps(sum, scale, _mm512_load_ps(totals + i));
      _mm512_store_ps(out + i, total);
    }
  }
}

template <int kPanels>
void add_block(const Sums& sums, std::int64_t rows, std::int64_t block, const TileCall& call, const Sums& to) {
  if (call.row_scales_step == 0) {
    if (block == 0) return add_to_totals<kPanels, true, false>(sums, rows, block, call, to);
    return add_to_totals<kPanels, false, false>(sums, rows, block, call, to);
  }
  if (block == 0) return add_to_totals<kPanels, true, true>(sums, rows, block, call, to);
  add_to_totals<kPanels, false, true>(sums, rows, block, call, to);
}

// fp8::store_rows for the panels of one call. What is scaled here is multiplied by `power` first.
template <int kPanels, class Store>
void store_outputs_as(const Sums& totals, float power, const StoreCall& store) {
  const __m512 powers = _mm512_set1_ps(power);
  __mmask16 masks[kPanels];
  __m512 biases[kPanels];
  __m512 scales[kPanels];
  for (int p = 0; p < kPanels; ++p) {
    masks[p] = lanes_below(store.columns - p * kPanelColumns);
    biases[p] =
        store.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(masks[p], store.bias + p * kPanelColumns);
    if (store.scales != nullptr) scales[p] = _mm512_load_ps(store.scales + p * kPanelColumns);
  }
  auto* y = static_cast<typename Store::Element*>(store.y);
  for (std::int64_t row = 0; row < store.rows; ++row, y += store.y_stride) {
    const __m512 factor = _mm512_set1_ps(store.factors[row]);
    for (int p = 0; p < kPanels; ++p) {
      const __m512 total = _mm512_load_ps(totals.at(0, p) + row * kPanelColumns);
      const __m512 values =
          store.scales == nullptr
              ? _mm512_fmadd_ps(total, factor, biases[p])
              : _mm512_fmadd_ps(_mm512_mul_ps(_mm512_mul_ps(total, powers), factor), scales[p], biases[p]);
      Store::store(y + p * kPanelColumns, masks[p], values);
    }
  }
}

template <int kPanels>
void store_outputs(const Sums& totals, float power, const StoreCall& store) {
  if (store.dtype == DType::kF32) return store_outputs_as<kPanels, StoreF32>(totals, power, store);
  if (store.dtype == DType::kBF16) return store_outputs_as<kPanels, StoreBF16>(totals, power, store);
  store_outputs_as<kPanels, StoreF16>(totals, power, store);
}

// Before and behind the products of a piece of K. Sums of a whole scale block pass through L1 on their way to the
// totals or to y. Lines of y that will be written are fetched while the tiles multiply.
template <int kHalves, int kPanels>
void begin_piece(const Piece& piece, const TileCall& call) {
  begin_sums<kHalves, kPanels>(!piece.begins_block, {call.sums, call.panel_sums});
  if (call.store == nullptr || &piece != &call.pieces.back()) return;
  const std::int64_t row_bytes = call.store->y_stride * size_bytes(call.store->dtype);
  const auto* y = static_cast<const std::byte*>(call.store->y);
  for (std::int64_t row = 0; row < call.store->rows; ++row) __builtin_prefetch(y + row * row_bytes, 1);
}

template <int kHalves, int kPanels>
void end_piece(const Piece& piece, std::int64_t rows, const TileCall& call) {
  const Sums totals{call.totals, call.panel_sums};
  if (!piece.ends_block) return store_sums<kHalves, kPanels>(Sums{call.sums, call.panel_sums});
  const bool is_last = call.store != nullptr && &piece == &call.pieces.back();
  if (call.scales == nullptr && !is_last) return store_sums<kHalves, kPanels>(totals);
  constexpr std::int64_t kNearPanel = kHalves * kTileFloats;
  alignas(64) float near[kPanels * kNearPanel];
  const Sums sums{near, kNearPanel};
  store_sums<kHalves, kPanels>(sums);
  if (call.scales != nullptr) add_block<kPanels>(sums, rows, piece.block, call, is_last ? sums : totals);
  if (!is_last) return;
  if (call.parts > 1) bf16::add_parts(call.parts, kPanels, call.store->rows, near, kNearPanel);
  store_outputs<kPanels>(sums, call.inverse_power, *call.store);
}

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
SCALEDMM_TARGET_END
