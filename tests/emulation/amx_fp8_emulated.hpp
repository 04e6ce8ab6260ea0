// AMX-FP8: TDP{H,B}F8PS and the two mixed forms; H is e4m3, B is e5m2.
// The order of addition is not settled in public. This is the model of Intel's compiler documentation: the products of
// the whole K slice are summed exactly, rounded once to f32, and added to C; denormals of C and of the result become
// zero. Tests allow a tolerance.
#pragma once

#include "amx_emulated.hpp"

namespace scaledmm::emu {
namespace {

struct E4m3 {
  static constexpr int kFractionBits = 3, kBias = 7, kUnit = -9;
  static constexpr bool is_nan(int code) { return (code & 0x7F) == 0x7F; }
  static constexpr bool is_inf(int) { return false; }
};
struct E5m2 {
  static constexpr int kFractionBits = 2, kBias = 15, kUnit = -16;
  static constexpr bool is_nan(int code) { return (code & 0x7F) > 0x7C; }
  static constexpr bool is_inf(int code) { return (code & 0x7F) == 0x7C; }
};

// Every code as a multiple of the smallest denormal, 2^kUnit. Infinities and NaNs are marked, not valued.
template <class Format>
struct Codes {
  std::int64_t multiple[256];
  bool finite[256];
  constexpr Codes() : multiple{}, finite{} {
    for (int code = 0; code < 256; ++code) {
      const int exponent = (code & 0x7F) >> Format::kFractionBits, fraction = code & ((1 << Format::kFractionBits) - 1);
      const std::int64_t size =
          exponent == 0 ? fraction : std::int64_t{fraction + (1 << Format::kFractionBits)} << (exponent - 1);
      multiple[code] = code & 0x80 ? -size : size;
      finite[code] = !Format::is_nan(code) && !Format::is_inf(code);
    }
  }
};
template <class Format>
constexpr Codes<Format> kCodes{};

template <class Format>
inline float special_value(int code) {
  if (Format::is_nan(code)) return __builtin_nanf("");
  if (Format::is_inf(code)) return code & 0x80 ? -__builtin_inff() : __builtin_inff();
  return static_cast<float>(kCodes<Format>.multiple[code]);
}

// One column of one row: `depth` groups of four products. Exact: 64 products of e5m2 stay below 2^70 units.
template <class FormatA, class FormatB>
inline float sum_of_products(const unsigned char* a, const Tile& b, int column, int depth) {
  __int128 sum = 0;
  float special = 0;
  for (int k = 0; k < 4 * depth; ++k) {
    const int x = a[k], y = b.row[k / 4][4 * column + k % 4];
    if (kCodes<FormatA>.finite[x] && kCodes<FormatB>.finite[y]) {
      sum += static_cast<__int128>(kCodes<FormatA>.multiple[x]) * kCodes<FormatB>.multiple[y];
    } else {
      special += special_value<FormatA>(x) * special_value<FormatB>(y);
    }
  }
  if (special != 0) return special;
  constexpr int kUnit = -(FormatA::kUnit + FormatB::kUnit);
  return static_cast<float>(sum) * (1.0f / static_cast<float>(std::uint64_t{1} << kUnit));
}

template <class FormatA, class FormatB>
inline void add_fp8_products(unsigned char* c, const unsigned char* a, const Tile& b, int depth) {
  Lanes<float, 16> sum;
  for (int n = 0; n < 16; ++n) sum.v[n] = sum_of_products<FormatA, FormatB>(a, b, n, depth);
  const auto halves = __builtin_bit_cast(__m512, sum);
  const __m256 one = _mm256_set1_ps(1.0f);
  store_half(c, fused_flushing(halves.lo, one, flush(load_half<__m256>(c))));
  store_half(c + 32, fused_flushing(halves.hi, one, flush(load_half<__m256>(c + 32))));
}
inline void _tile_dphf8ps(int c, int a, int b) { multiply_tiles(c, a, b, add_fp8_products<E4m3, E4m3>); }
inline void _tile_dpbf8ps(int c, int a, int b) { multiply_tiles(c, a, b, add_fp8_products<E5m2, E5m2>); }
inline void _tile_dphbf8ps(int c, int a, int b) { multiply_tiles(c, a, b, add_fp8_products<E4m3, E5m2>); }
inline void _tile_dpbhf8ps(int c, int a, int b) { multiply_tiles(c, a, b, add_fp8_products<E5m2, E4m3>); }

}  // namespace
}  // namespace scaledmm::emu
