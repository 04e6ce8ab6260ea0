// bf16_amx
//   sum over k of x[m, k] * w[n, k], w bf16, x the sum of 1 (bf16), 2 (f16) or 3 (f32) bf16 parts, which is exact.
// Each part is a row of its own, so that one row of x fills no more tiles than its parts need; sums of parts are added
// in the end, the smallest first. TDPBF16PS multiplies bf16 exactly and adds up 16 odd and 16 even products in f32
// before it adds them to the tile. It takes denormals as zero, of the parts too: what is lost of x is less than 2^-126.
// Source: Intel SDM vol. 2.
#include "device/target.hpp"
#include "kernels/cpu/dense_tiles.hpp"
#include "kernels/cpu/fp8_amx_tiles.hpp"
#include "kernels/cpu/row_loads_avx512.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr std::int64_t kTileRows = 32;

// Prepared rows: tiles [row / 16][k / 32][row % 16][k % 32].
std::int64_t row_bytes(std::int64_t padded_k) { return padded_k * 2; }

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16")
// clang-format on

template <class Load>
void prepare_as(const dense::RowCall& call) {
  const std::int64_t parts = bf16::parts_of(call.dtype);
  std::byte* out[3];
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t row = call.row * parts + part;
    out[part] = call.prepared + row / 16 * 16 * row_bytes(call.padded_k) + row % 16 * kRowBytes;
  }
  const auto* x = static_cast<const typename Load::Element*>(call.x);
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i exponent = _mm512_set1_epi32(0x7f800000);
  const __m512i quiet = _mm512_set1_epi32(0x400000);
  for (std::int64_t k = 0; k < call.padded_k; k += 16) {
    const __mmask16 mask = x == nullptr || k >= call.k ? __mmask16{0} : lanes_below(call.k - k);
    __m512 rest = Load::load(x + (mask == 0 ? 0 : k), mask);
    const std::int64_t at = k / dense::kStep * kTileBytes + k % dense::kStep * 2;
    for (std::int64_t part = 0; part < parts; ++part) {
      // The upper half of an f32's bits: its first 8 significant bits. What is taken off is exact.
      __m512i bits = _mm512_castps_si512(rest);
      const __mmask16 is_finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
      const __mmask16 is_nan = _mm512_cmp_ps_mask(rest, rest, _CMP_UNORD_Q);
      bits = _mm512_and_si512(_mm512_mask_or_epi32(bits, is_nan, bits, quiet), high);
      _mm256_store_si256(reinterpret_cast<__m256i*>(out[part] + at),
                         _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
      // All of an Inf or NaN is in the first part.
      rest = _mm512_maskz_sub_ps(is_finite, rest, _mm512_castsi512_ps(bits));
    }
  }
}

void prepare(const dense::RowCall& call) {
  if (call.dtype == DType::kF32) return prepare_as<LoadF32>(call);
  if (call.dtype == DType::kBF16) return prepare_as<LoadBF16>(call);
  prepare_as<LoadF16>(call);
}

constexpr std::int64_t kAhead = 8192;

template <bool kStreams>
inline void prefetch_tile(const std::byte* w) {
  if constexpr (kStreams) {
    for (std::int64_t line = 0; line < kTileBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + line), _MM_HINT_T0);
    }
  }
}

// A tile that was zeroed costs nothing to rename: see fp8_w8a16_amx.
template <int kHalves, int kPanels, bool kStreams>
void multiply_as(const dense::TileCall& call) {
  const std::int64_t half_bytes = 16 * row_bytes(call.padded_k);
  const std::byte* x0 = call.x + call.first_row / 16 * half_bytes + call.k / dense::kStep * kTileBytes;
  const std::byte* x1 = x0 + half_bytes;
  const auto* w0 = reinterpret_cast<const std::byte*>(call.panel(0));
  const auto* w1 = reinterpret_cast<const std::byte*>(call.panel(kPanels - 1));
  const Sums sums{call.sums, call.panel_sums};
  begin_sums<kHalves, kPanels>(call.adds, sums);
  for (std::int64_t at = 0; at < call.count / dense::kStep * kTileBytes; at += kTileBytes) {
    prefetch_tile<kStreams>(w0 + at);
    if constexpr (kPanels == 2) prefetch_tile<kStreams>(w1 + at);
    _tile_loadd(SCALEDMM_W_0, w0 + at, kRowBytes);
    if constexpr (kPanels == 2) _tile_loadd(SCALEDMM_W_1, w1 + at, kRowBytes);
    _tile_loadd(SCALEDMM_X_0, x0 + at, kRowBytes);
    _tile_dpbf16ps(SCALEDMM_SUM_00, SCALEDMM_X_0, SCALEDMM_W_0);
    if constexpr (kPanels == 2) _tile_dpbf16ps(SCALEDMM_SUM_01, SCALEDMM_X_0, SCALEDMM_W_1);
    _tile_zero(SCALEDMM_X_0);
    if constexpr (kHalves == 2) {
      _tile_loadd(SCALEDMM_X_1, x1 + at, kRowBytes);
      _tile_dpbf16ps(SCALEDMM_SUM_10, SCALEDMM_X_1, SCALEDMM_W_0);
      if constexpr (kPanels == 2) _tile_dpbf16ps(SCALEDMM_SUM_11, SCALEDMM_X_1, SCALEDMM_W_1);
      _tile_zero(SCALEDMM_X_1);
    }
    _tile_zero(SCALEDMM_W_0);
    if constexpr (kPanels == 2) _tile_zero(SCALEDMM_W_1);
  }
  store_sums<kHalves, kPanels>(sums);
}

template <bool kStreams>
void multiply_rows(std::int64_t panels, const dense::TileCall& call) {
  if (call.rows > 16) return panels == 2 ? multiply_as<2, 2, kStreams>(call) : multiply_as<2, 1, kStreams>(call);
  return panels == 2 ? multiply_as<1, 2, kStreams>(call) : multiply_as<1, 1, kStreams>(call);
}

void multiply(std::int64_t panels, const dense::TileCall& call) {
  stores_before_tile_loads();
  call.streams ? multiply_rows<true>(panels, call) : multiply_rows<false>(panels, call);
}

SCALEDMM_TARGET_END

}  // namespace

const dense::Kernel& bf16_amx() {
  static constexpr dense::Kernel kKernel{.name = "bf16_amx",
                                         .runs_on = [](const CpuFeatures& cpu) { return cpu.avx512 && cpu.amx_bf16; },
                                         .row_unit = 16,
                                         .tile_rows = kTileRows,
                                         .block_rows = 96,
                                         .chunk = 2048,
                                         .group_panels = 2,
                                         .panels_at_once = [](std::int64_t) -> std::int64_t { return 2; },
                                         .row_bytes = row_bytes,
                                         .parts = bf16::parts_of,
                                         .prepare = prepare,
                                         .multiply = multiply,
                                         .add_parts = bf16::add_parts,
                                         .store = fp8::store_rows,
                                         .begin = configure_tiles,
                                         .end = release_tiles};
  return kKernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
