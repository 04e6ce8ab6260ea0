// Tile registers with real data, for loops that measure products alone: operands that TILEZERO made are cheaper than
// any kernel's, and fewer live tiles are faster where the core is shared.
#pragma once

#include <cstdint>
#include <cstring>

#include "device/target.hpp"

SCALEDMM_TARGET_BEGIN("amx-tile")
namespace scaledmm::cli {
namespace {

// Tiles 0 to kTiles - 1 of 16 rows of 64 bytes. _tile_release() takes them back.
template <int kTiles>
void load_registers() {
  static_assert(kTiles == 6 || kTiles == 8);
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile < kTiles; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = 16;
  }
  // The whole structure is named as an operand: g++ 12's _tile_loadconfig names 8 bytes of it.
  asm volatile("ldtilecfg %0" : : "m"(config));
  alignas(64) std::uint8_t data[1024];
  std::memset(data, 0x3c, sizeof(data));
  asm volatile("" : : : "memory");  // tile loads do not say that they read
  _tile_loadd(0, data, 64);
  _tile_loadd(1, data, 64);
  _tile_loadd(2, data, 64);
  _tile_loadd(3, data, 64);
  _tile_loadd(4, data, 64);
  _tile_loadd(5, data, 64);
  if constexpr (kTiles == 8) {
    _tile_loadd(6, data, 64);
    _tile_loadd(7, data, 64);
  }
}

}  // namespace
}  // namespace scaledmm::cli
SCALEDMM_TARGET_END
