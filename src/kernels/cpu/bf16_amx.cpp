// bf16_amx
//   sum over k of x[m, k] * w[n, k], w bf16, x the sum of 1 (bf16), 2 (f16) or 3 (f32) bf16 parts, which is exact.
// TDPBF16PS multiplies bf16 exactly and adds up 16 odd and 16 even products in f32 before it adds them to the tile. It
// takes denormals as zero, of the parts too: what is lost of x is less than 2^-126.   Source: Intel SDM vol. 2.
#include <algorithm>
#include <bit>
#include <cstring>

#include "device/target.hpp"
#include "kernels/cpu/dense_tiles.hpp"
#include "kernels/cpu/fp8_amx_tiles.hpp"
#include "numerics/formats.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr std::int64_t kTileRows = 32;

std::int64_t parts_of(DType x) { return x == DType::kBF16 ? 1 : x == DType::kF16 ? 2 : 3; }

std::int64_t row_bytes(DType x, std::int64_t padded_k) { return parts_of(x) * padded_k * 2; }

// The upper half of an f32's bits: its first 8 significant bits. What is taken off is exact.
std::uint16_t take_part(float& rest) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(rest);
  if ((bits & 0x7f800000u) == 0x7f800000u) {  // all of an Inf or NaN is in the first part
    const bool is_nan = (bits & 0x7fffffu) != 0;
    rest = 0;
    return static_cast<std::uint16_t>(bits >> 16 | (is_nan ? 0x40u : 0u));
  }
  rest -= std::bit_cast<float>(bits & 0xffff0000u);
  return static_cast<std::uint16_t>(bits >> 16);
}

// Prepared rows: tiles [row / 16][part][k / 32][row % 16][k % 32].
void prepare(const dense::RowCall& call) {
  const std::int64_t parts = parts_of(call.dtype);
  std::byte* block =
      call.prepared + call.row / 16 * 16 * row_bytes(call.dtype, call.padded_k) + call.row % 16 * kRowBytes;
  for (std::int64_t k = 0; k < call.padded_k; k += dense::kStep) {
    std::uint16_t values[3][dense::kStep] = {};
    const std::int64_t count = call.x == nullptr ? 0 : std::min(dense::kStep, call.k - k);
    if (parts == 1) {
      if (count > 0)
        std::memcpy(values[0], static_cast<const std::uint16_t*>(call.x) + k, static_cast<std::size_t>(count) * 2);
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        float rest = load_f32(call.x, call.dtype, k + i);
        for (std::int64_t part = 0; part < parts; ++part) values[part][i] = take_part(rest);
      }
    }
    for (std::int64_t part = 0; part < parts; ++part) {
      std::memcpy(block + part * call.padded_k * kRowBytes / 2 + k / dense::kStep * kTileBytes, values[part],
                  kRowBytes);
    }
  }
}

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16")
// clang-format on

// A tile that was zeroed costs nothing to rename: see fp8_w8a16_amx.
template <int kHalves, int kPanels>
void multiply_as(const dense::TileCall& call) {
  const std::int64_t parts = parts_of(call.x_dtype);
  const std::int64_t part_bytes = call.padded_k * kRowBytes / 2;
  const std::byte* x0 = call.x + call.first_row / 16 * parts * part_bytes + call.k / dense::kStep * kTileBytes;
  const std::byte* x1 = x0 + parts * part_bytes;
  const auto* w0 = reinterpret_cast<const std::byte*>(call.panel(0));
  const auto* w1 = reinterpret_cast<const std::byte*>(call.panel(kPanels - 1));
  const Sums sums{call.sums, call.panel_sums};
  begin_sums<kHalves, kPanels>(call.adds, sums);
  for (std::int64_t i = 0; i < call.count / dense::kStep; ++i) {
    const std::int64_t at = i * kTileBytes;
    _tile_loadd(SCALEDMM_W_0, w0 + at, kRowBytes);
    if constexpr (kPanels == 2) _tile_loadd(SCALEDMM_W_1, w1 + at, kRowBytes);
    for (std::int64_t part = 0; part < parts; ++part) {
      _tile_loadd(SCALEDMM_X_0, x0 + part * part_bytes + at, kRowBytes);
      _tile_dpbf16ps(SCALEDMM_SUM_00, SCALEDMM_X_0, SCALEDMM_W_0);
      if constexpr (kPanels == 2) _tile_dpbf16ps(SCALEDMM_SUM_01, SCALEDMM_X_0, SCALEDMM_W_1);
      _tile_zero(SCALEDMM_X_0);
      if constexpr (kHalves == 2) {
        _tile_loadd(SCALEDMM_X_1, x1 + part * part_bytes + at, kRowBytes);
        _tile_dpbf16ps(SCALEDMM_SUM_10, SCALEDMM_X_1, SCALEDMM_W_0);
        if constexpr (kPanels == 2) _tile_dpbf16ps(SCALEDMM_SUM_11, SCALEDMM_X_1, SCALEDMM_W_1);
        _tile_zero(SCALEDMM_X_1);
      }
    }
    _tile_zero(SCALEDMM_W_0);
    if constexpr (kPanels == 2) _tile_zero(SCALEDMM_W_1);
  }
  store_sums<kHalves, kPanels>(sums);
}

void multiply(std::int64_t panels, const dense::TileCall& call) {
  stores_before_tile_loads();
  if (call.rows > 16) return panels == 2 ? multiply_as<2, 2>(call) : multiply_as<2, 1>(call);
  return panels == 2 ? multiply_as<1, 2>(call) : multiply_as<1, 1>(call);
}

SCALEDMM_TARGET_END

}  // namespace

const dense::Kernel& bf16_amx() {
  static constexpr dense::Kernel kKernel{.name = "bf16_amx",
                                         .runs_on = [](const CpuFeatures& cpu) { return cpu.avx512 && cpu.amx_bf16; },
                                         .row_unit = 16,
                                         .tile_rows = kTileRows,
                                         .panels_at_once = [](std::int64_t) -> std::int64_t { return 2; },
                                         .row_bytes = row_bytes,
                                         .prepare = prepare,
                                         .multiply = multiply,
                                         .store = fp8::store_rows,
                                         .begin = configure_tiles,
                                         .end = release_tiles};
  return kKernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
