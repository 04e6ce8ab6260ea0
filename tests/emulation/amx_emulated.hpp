// AMX tiles: eight registers of 16 rows x 64 bytes and their configuration, one set a thread and translation unit.
// Whatever the hardware answers with #GP or #UD aborts here.   Source: Intel SDM vol. 2 (LDTILECFG, TILELOADD, TDP*).
// For C [M, N] += A [M, K] * B [K, N]: A is row-major; row r of B holds, for each column, the `group` elements of K
// from group * r on.
#pragma once

#include "avx512_bfloat16.hpp"
#include "avx512_dot.hpp"

namespace scaledmm::emu {
namespace {

struct TileConfig {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

struct alignas(64) Tile {
  unsigned char row[16][64];
};

struct TileState {
  TileConfig config;
  Tile tile[8];
};
constinit thread_local TileState tiles{};

inline void _tile_release() { __builtin_memset(&tiles, 0, sizeof tiles); }

inline void _tile_loadconfig(const void* p) {
  TileConfig config;
  __builtin_memcpy(&config, p, sizeof config);
  if (config.palette > 1) fault("LDTILECFG: palette is neither 0 nor 1");
  if (config.palette == 0) return _tile_release();
  if (config.start_row != 0) fault("LDTILECFG: start_row is not 0, which no kernel wants");
  for (const std::uint8_t byte : config.reserved)
    if (byte != 0) fault("LDTILECFG: a reserved byte is not 0");
  for (int t = 0; t < 16; ++t) {
    if (t >= 8 && (config.rows[t] != 0 || config.row_bytes[t] != 0)) fault("LDTILECFG: a reserved byte is not 0");
    if (config.rows[t] > 16) fault("LDTILECFG: more than 16 rows");
    if (config.row_bytes[t] > 64) fault("LDTILECFG: more than 64 bytes a row");
    if ((config.rows[t] == 0) != (config.row_bytes[t] == 0)) fault("LDTILECFG: only one of rows and row bytes is 0");
  }
  _tile_release();
  tiles.config = config;
}

inline void _tile_storeconfig(void* p) { __builtin_memcpy(p, &tiles.config, sizeof(TileConfig)); }

inline Tile& configured(int t) {
  if (t < 0 || t > 7) fault("tile number is not in 0..7");
  if (tiles.config.palette == 0) fault("tiles are not configured");
  if (tiles.config.rows[t] == 0) fault("this tile is not configured");
  return tiles.tile[t];
}

inline void _tile_zero(int t) { __builtin_memset(&configured(t), 0, sizeof(Tile)); }

// `stride` is in bytes, from row to row. What lies outside the configured shape becomes zero.
inline void _tile_loadd(int t, const void* base, long stride) {
  Tile& tile = configured(t);
  __builtin_memset(&tile, 0, sizeof tile);
  for (int r = 0; r < tiles.config.rows[t]; ++r)
    __builtin_memcpy(tile.row[r], static_cast<const char*>(base) + r * stride, tiles.config.row_bytes[t]);
}
inline void _tile_stream_loadd(int t, const void* base, long stride) { _tile_loadd(t, base, stride); }

inline void _tile_stored(int t, void* base, long stride) {
  const Tile& tile = configured(t);
  for (int r = 0; r < tiles.config.rows[t]; ++r)
    __builtin_memcpy(static_cast<char*>(base) + r * stride, tile.row[r], tiles.config.row_bytes[t]);
}

// Row of C += row of A * B for one row of C, over `depth` rows of B.
template <class AddRow>
inline void multiply_tiles(int c, int a, int b, AddRow add_row) {
  Tile& result = configured(c);
  const Tile &left = configured(a), &right = configured(b);
  const TileConfig& config = tiles.config;
  if (a == b || a == c || b == c) fault("TDP: the three tiles are not different");
  if (config.row_bytes[a] % 4 != 0 || config.row_bytes[b] % 4 != 0 || config.row_bytes[c] % 4 != 0)
    fault("TDP: row bytes are not a multiple of 4");
  if (config.rows[c] != config.rows[a]) fault("TDP: C and A differ in rows");
  if (config.row_bytes[c] != config.row_bytes[b]) fault("TDP: C and B differ in row bytes");
  if (config.row_bytes[a] / 4 != config.rows[b]) fault("TDP: the row bytes of A are not 4 times the rows of B");
  for (int m = 0; m < config.rows[c]; ++m) {
    add_row(result.row[m], left.row[m], right, config.rows[b]);
    __builtin_memset(result.row[m] + config.row_bytes[c], 0, 64 - config.row_bytes[c]);
  }
  for (int m = config.rows[c]; m < 16; ++m) __builtin_memset(result.row[m], 0, 64);
}

template <class V>
inline V load_half(const unsigned char* p) {
  V r;
  __builtin_memcpy(&r, p, 32);
  return r;
}
template <class V>
inline void store_half(unsigned char* p, V a) {
  __builtin_memcpy(p, &a, 32);
}
inline __m256i repeat_four_bytes(const unsigned char* p) {
  int value;
  __builtin_memcpy(&value, p, 4);
  return _mm256_set1_epi32(value);
}

template <bool kSignedA, bool kSignedB>
inline void add_byte_products(unsigned char* c, const unsigned char* a, const Tile& b, int depth) {
  for (int half = 0; half < 64; half += 32) {
    __m256i sum = load_half<__m256i>(c + half);
    for (int k = 0; k < depth; ++k)
      sum = dot_bytes<kSignedA, kSignedB>(sum, repeat_four_bytes(a + 4 * k), load_half<__m256i>(b.row[k] + half));
    store_half(c + half, sum);
  }
}
inline void _tile_dpbssd(int c, int a, int b) { multiply_tiles(c, a, b, add_byte_products<true, true>); }
inline void _tile_dpbsud(int c, int a, int b) { multiply_tiles(c, a, b, add_byte_products<true, false>); }
inline void _tile_dpbusd(int c, int a, int b) { multiply_tiles(c, a, b, add_byte_products<false, true>); }
inline void _tile_dpbuud(int c, int a, int b) { multiply_tiles(c, a, b, add_byte_products<false, false>); }

// Two fused chains that start at zero, one over the even and one over the odd elements of K; their sum is added to C.
inline void add_bfloat16_products(unsigned char* c, const unsigned char* a, const Tile& b, int depth) {
  const __m256 one = _mm256_set1_ps(1.0f);
  for (int half = 0; half < 64; half += 32) {
    __m256 even = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
    for (int k = 0; k < depth; ++k) {
      const __m256i x = repeat_four_bytes(a + 4 * k), y = load_half<__m256i>(b.row[k] + half);
      even = fused_flushing(even_bfloat16(x), even_bfloat16(y), even);
      odd = fused_flushing(odd_bfloat16(x), odd_bfloat16(y), odd);
    }
    const __m256 sum = fused_flushing(even, one, odd);
    store_half(c + half, fused_flushing(sum, one, flush(load_half<__m256>(c + half))));
  }
}
inline void _tile_dpbf16ps(int c, int a, int b) { multiply_tiles(c, a, b, add_bfloat16_products); }

}  // namespace
}  // namespace scaledmm::emu
