// Emulated AMX tiles: ragged shapes, rounding, configuration, and every misuse.
#include <gtest/gtest.h>

#include <vector>

#include "emulation_values.hpp"

namespace scaledmm::emulated {
namespace {

// ---- tiles ----

struct alignas(64) Config {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
// Tile 0 is C [m, n], tile 1 is A, tile 2 is B, with `depth` groups of four bytes in K.
Config shape(int m, int n, int depth) {
  Config config;
  const int rows[] = {m, m, depth}, row_bytes[] = {4 * n, 4 * depth, 4 * n};
  for (int t = 0; t < 3; ++t) {
    config.rows[t] = static_cast<std::uint8_t>(rows[t]);
    config.row_bytes[t] = static_cast<std::uint16_t>(row_bytes[t]);
  }
  return config;
}
struct TileData {
  std::array<std::array<std::uint8_t, 80>, 16> a, b;
  std::array<std::array<std::uint32_t, 20>, 16> c;
};
TileData random_tiles() {
  TileData r;
  for (auto& row : r.a)
    for (auto& x : row) x = static_cast<std::uint8_t>(random_bits()());
  for (auto& row : r.b)
    for (auto& x : row) x = static_cast<std::uint8_t>(random_bits()());
  for (auto& row : r.c)
    for (auto& x : row) x = static_cast<std::uint32_t>(random_bits()());
  return r;
}
struct RaggedShape {
  int m, n, depth;
};
constexpr RaggedShape kShapes[] = {{16, 16, 16}, {5, 7, 3}, {1, 1, 1}, {1, 16, 16}, {16, 3, 5}, {15, 15, 15}};

// Runs `multiply` on the tiles and hands every element of C to `expected(m, n)`; what lies outside C in memory must not
// change.
template <class Multiply, class Expected>
void check_tiles(const RaggedShape& s, TileData& data, Multiply multiply, Expected expected) {
  const Config config = shape(s.m, s.n, s.depth);
  const TileData before = data;
  _tile_loadconfig(&config);
  _tile_loadd(0, data.c.data(), 80);
  _tile_loadd(1, data.a.data(), 80);
  _tile_stream_loadd(2, data.b.data(), 80);
  multiply();
  _tile_stored(0, data.c.data(), 80);
  _tile_release();
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 20; ++n) {
      const auto i = static_cast<std::size_t>(m), j = static_cast<std::size_t>(n);
      if (m < s.m && n < s.n)
        expected(m, n, data.c[i][j], before.c[i][j]);
      else
        ASSERT_EQ(data.c[i][j], before.c[i][j]);
    }
}
template <class A, class B, class Multiply>
void check_int8_tiles(Multiply multiply) {
  for (const RaggedShape& s : kShapes) {
    TileData data = random_tiles();
    check_tiles(s, data, multiply, [&](int m, int n, std::uint32_t result, std::uint32_t start) {
      for (int k = 0; k < 4 * s.depth; ++k) {
        const auto a = static_cast<A>(data.a[static_cast<std::size_t>(m)][static_cast<std::size_t>(k)]);
        const auto b = static_cast<B>(data.b[static_cast<std::size_t>(k / 4)][static_cast<std::size_t>(4 * n + k % 4)]);
        start += static_cast<std::uint32_t>(a * b);
      }
      ASSERT_EQ(result, start);
    });
  }
}
TEST(Emulation, Int8TilesMultiplyRaggedShapes) {
  check_int8_tiles<std::int8_t, std::int8_t>([] { _tile_dpbssd(0, 1, 2); });
  check_int8_tiles<std::int8_t, std::uint8_t>([] { _tile_dpbsud(0, 1, 2); });
  check_int8_tiles<std::uint8_t, std::int8_t>([] { _tile_dpbusd(0, 1, 2); });
  check_int8_tiles<std::uint8_t, std::uint8_t>([] { _tile_dpbuud(0, 1, 2); });
}

TEST(Emulation, Bfloat16TilesRunTwoFusedChainsAndAddTheirSum) {
  for (const RaggedShape& s : kShapes) {
    for (int kind = 0; kind < 3; ++kind) {
      TileData data;
      const auto pair = [&](int k) {
        return __builtin_bit_cast(std::uint32_t, random_float(k)) >> 16 |
               (__builtin_bit_cast(std::uint32_t, random_float(k)) & 0xFFFF0000);
      };
      for (std::size_t r = 0; r < 16; ++r)
        for (std::size_t i = 0; i < 20; ++i) {
          const std::uint32_t x = pair(kind), y = pair(kind == 2 ? 0 : kind);
          std::memcpy(&data.a[r][4 * i], &x, 4);
          std::memcpy(&data.b[r][4 * i], &y, 4);
          data.c[r][i] = __builtin_bit_cast(std::uint32_t, random_float(kind));
        }
      check_tiles(
          s, data, [] { _tile_dpbf16ps(0, 1, 2); },
          [&](int m, int n, std::uint32_t result, std::uint32_t start) {
            float even = 0, odd = 0;
            for (int k = 0; k < s.depth; ++k) {
              std::uint32_t x, y;
              std::memcpy(&x, &data.a[static_cast<std::size_t>(m)][static_cast<std::size_t>(4 * k)], 4);
              std::memcpy(&y, &data.b[static_cast<std::size_t>(k)][static_cast<std::size_t>(4 * n)], 4);
              even = flushing_fma(lower_bfloat16(x), lower_bfloat16(y), even);
              odd = flushing_fma(upper_bfloat16(x), upper_bfloat16(y), odd);
            }
            const float expected = flushing_fma(flushing_fma(even, 1, odd), 1, __builtin_bit_cast(float, start));
            ASSERT_TRUE(same(__builtin_bit_cast(float, result), expected)) << kind << " " << m << " " << n;
          });
    }
  }
}

template <int kFraction, int kBias>
double fp8_value(int code) {
  const int exponent = (code & 127) >> kFraction, fraction = code & ((1 << kFraction) - 1);
  const bool top = kFraction == 3 ? (code & 127) == 127 : exponent == 31;
  const double size = top ? (kFraction == 2 && fraction == 0 ? INFINITY : NAN)
                          : std::ldexp(exponent == 0 ? fraction : fraction + (1 << kFraction),
                                       std::max(exponent, 1) - kBias - kFraction);
  return code & 128 ? -size : size;
}
template <int kFractionA, int kBiasA, int kFractionB, int kBiasB, class Multiply>
void check_fp8_tiles(Multiply multiply) {
  for (const bool specials : {false, true}) {
    for (const RaggedShape& s : kShapes) {
      TileData data = random_tiles();
      for (auto& row : data.c)
        for (auto& x : row) x = __builtin_bit_cast(std::uint32_t, random_float(0));
      if (!specials) {
        for (auto& row : data.a)
          for (auto& x : row) x &= 0xBF;
        for (auto& row : data.b)
          for (auto& x : row) x &= 0xBF;
      }
      check_tiles(s, data, multiply, [&](int m, int n, std::uint32_t result, std::uint32_t start) {
        double dot = 0, size = 0;
        for (int k = 0; k < 4 * s.depth; ++k) {
          const double p =
              fp8_value<kFractionA, kBiasA>(data.a[static_cast<std::size_t>(m)][static_cast<std::size_t>(k)]) *
              fp8_value<kFractionB, kBiasB>(
                  data.b[static_cast<std::size_t>(k / 4)][static_cast<std::size_t>(4 * n + k % 4)]);
          dot += p;
          size += std::fabs(p);
        }
        const float c = __builtin_bit_cast(float, start), got = __builtin_bit_cast(float, result);
        if (!std::isfinite(dot)) {
          ASSERT_TRUE(same(got, static_cast<float>(dot))) << got << " " << dot;
        } else {
          ASSERT_NEAR(got, dot + c, (std::fabs(dot + c) + size) * 0x1p-23) << m << " " << n;
        }
      });
    }
  }
}
TEST(Emulation, Fp8TilesStayNearTheExactDotProduct) {
  check_fp8_tiles<3, 7, 3, 7>([] { _tile_dphf8ps(0, 1, 2); });
  check_fp8_tiles<2, 15, 2, 15>([] { _tile_dpbf8ps(0, 1, 2); });
  check_fp8_tiles<3, 7, 2, 15>([] { _tile_dphbf8ps(0, 1, 2); });
  check_fp8_tiles<2, 15, 3, 7>([] { _tile_dpbhf8ps(0, 1, 2); });
}

TEST(Emulation, TileConfigurationComesBackAndReleaseClearsIt) {
  const Config config = shape(3, 4, 5);
  Config stored;
  _tile_loadconfig(&config);
  _tile_storeconfig(&stored);
  EXPECT_EQ(std::memcmp(&config, &stored, 64), 0);
  _tile_release();
  _tile_storeconfig(&stored);
  EXPECT_EQ(stored.palette, 0);
  EXPECT_EQ(stored.rows[0], 0);
}

TEST(Emulation, TileZeroAndReconfigurationClearTiles) {
  const Config config = shape(16, 16, 16);
  TileData data = random_tiles();
  _tile_loadconfig(&config);
  _tile_loadd(0, data.c.data(), 80);
  _tile_loadconfig(&config);
  _tile_stored(0, data.c.data(), 80);
  EXPECT_EQ(data.c[7][7], 0u);
  _tile_loadd(0, data.b.data(), 80);
  _tile_zero(0);
  _tile_stored(0, data.c.data(), 80);
  EXPECT_EQ(data.c[0][0], 0u);
  _tile_release();
}

template <class Change>
void load_changed(Change change) {
  Config config = shape(16, 16, 16);
  change(config);
  _tile_loadconfig(&config);
}
TEST(EmulationDeath, BadTileConfigurationsAbort) {
  EXPECT_DEATH(load_changed([](Config& c) { c.palette = 2; }), "palette");
  EXPECT_DEATH(load_changed([](Config& c) { c.start_row = 1; }), "start_row");
  EXPECT_DEATH(load_changed([](Config& c) { c.reserved[13] = 1; }), "reserved");
  EXPECT_DEATH(load_changed([](Config& c) { c.row_bytes[8] = 64; }), "reserved");
  EXPECT_DEATH(load_changed([](Config& c) { c.rows[15] = 1; }), "reserved");
  EXPECT_DEATH(load_changed([](Config& c) { c.rows[0] = 17; }), "more than 16 rows");
  EXPECT_DEATH(load_changed([](Config& c) { c.row_bytes[0] = 65; }), "more than 64 bytes");
  EXPECT_DEATH(load_changed([](Config& c) { c.rows[0] = 0; }), "only one");
  EXPECT_DEATH(load_changed([](Config& c) { c.row_bytes[0] = 0; }), "only one");
}

TEST(EmulationDeath, BadTileOperandsAbort) {
  EXPECT_DEATH(_tile_zero(0), "tiles are not configured");
  EXPECT_DEATH((load_changed([](Config&) {}), _tile_zero(3)), "this tile is not configured");
  EXPECT_DEATH((load_changed([](Config&) {}), _tile_zero(8)), "0..7");
  EXPECT_DEATH((load_changed([](Config&) {}), _tile_dpbssd(0, 1, 1)), "not different");
  EXPECT_DEATH((load_changed([](Config&) {}), _tile_dphf8ps(1, 1, 2)), "not different");
  EXPECT_DEATH((load_changed([](Config& c) { c.row_bytes[1] = 62; }), _tile_dpbssd(0, 1, 2)), "multiple of 4");
  EXPECT_DEATH((load_changed([](Config& c) { c.rows[1] = 15; }), _tile_dpbssd(0, 1, 2)), "differ in rows");
  EXPECT_DEATH((load_changed([](Config& c) { c.row_bytes[0] = 60; }), _tile_dpbf16ps(0, 1, 2)), "differ in row bytes");
  EXPECT_DEATH((load_changed([](Config& c) { c.row_bytes[1] = 60; }), _tile_dpbusd(0, 1, 2)), "4 times the rows");
}

}  // namespace
}  // namespace scaledmm::emulated
