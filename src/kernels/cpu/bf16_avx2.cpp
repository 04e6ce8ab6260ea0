// bf16_avx2 and bf16_reference
//   sum over k of x[m, k] * w[n, k], x as f32, w bf16: FMA in f32, in K order, one chain for each output.
// A pair of bf16 weights in 32 bits becomes two f32 by a shift and by a mask.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "device/target.hpp"
#include "kernels/cpu/dense_tiles.hpp"
#include "kernels/cpu/row_values.hpp"
#include "numerics/formats.hpp"

// The emulated build has no use for this file.
namespace scaledmm::native {
namespace {

using namespace dense;

constexpr std::int64_t kTileRows = 6;  // 12 sums, 2 weights, 1 activation and the mask in 16 registers

// Few rows take several panels: eight chains of additions hide the latency of the two FMA units.
std::int64_t panels_at_once(std::int64_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

std::int64_t row_bytes(std::int64_t padded_k) { return padded_k * static_cast<std::int64_t>(sizeof(float)); }

float* prepared_row(const RowCall& call) {
  return reinterpret_cast<float*>(call.prepared + call.row * row_bytes(call.padded_k));
}

void prepare_plainly(const RowCall& call) {
  float* out = prepared_row(call);
  for (std::int64_t k = 0; k < call.k; ++k) out[k] = load_f32(call.x, call.dtype, k);
  std::fill(out + call.k, out + call.padded_k, 0.0f);
}

void multiply_plainly(std::int64_t panels, const TileCall& call) {
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* x = reinterpret_cast<const float*>(call.x) + (call.first_row + row) * call.padded_k + call.k;
    for (std::int64_t p = 0; p < panels; ++p) {
      float* sums = call.sums + p * call.panel_sums + row * kPanelColumns;
      if (!call.adds) std::fill(sums, sums + kPanelColumns, 0.0f);
      for (std::int64_t k = 0; k < call.count; ++k) {
        const std::uint16_t* pairs = call.panel(p) + k / 2 * 2 * kPanelColumns + k % 2;
        for (std::int64_t c = 0; c < kPanelColumns; ++c) sums[c] = std::fma(x[k], bf16_to_f32(pairs[2 * c]), sums[c]);
      }
    }
  }
}

void store_plainly(const fp8::StoreCall& call) {
  for (std::int64_t row = 0; row < call.rows; ++row) {
    for (std::int64_t c = 0; c < call.columns; ++c) {
      const float* totals = call.totals + c / kPanelColumns * call.panel_totals + row * kPanelColumns;
      const float value = totals[c % kPanelColumns] + (call.bias == nullptr ? 0.0f : call.bias[c]);
      store_f32(value, call.y, call.dtype, row * call.y_stride + c);
    }
  }
}

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c")
// clang-format on

constexpr std::int64_t kPrefetchWeights = 512;

void prepare(const RowCall& call) {
  float* out = prepared_row(call);
  std::int64_t k = 0;
  if (call.dtype == DType::kF32) {
    std::memcpy(out, call.x, static_cast<std::size_t>(call.k) * sizeof(float));
    k = call.k;
  } else {
    const auto* halves = static_cast<const std::uint16_t*>(call.x);
    for (; k + kLanes <= call.k; k += kLanes) {
      _mm256_storeu_ps(out + k, call.dtype == DType::kF16 ? LoadF16::load(halves + k) : LoadBF16::load(halves + k));
    }
    for (; k < call.k; ++k) out[k] = load_f32(call.x, call.dtype, k);
  }
  std::fill(out + k, out + call.padded_k, 0.0f);
}

// The even or the odd ones of eight pairs as f32.
inline __m256 widen(const std::uint16_t* pairs, int odd, __m256i odd_mask) {
  const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(pairs));
  return _mm256_castsi256_ps(odd != 0 ? _mm256_and_si256(both, odd_mask) : _mm256_slli_epi32(both, 16));
}

template <int kRows, int kPanels>
void multiply_as(const TileCall& call) {
  const float* x = reinterpret_cast<const float*>(call.x) + call.first_row * call.padded_k + call.k;
  const std::uint16_t* weights = call.panel(0);
  const std::int64_t panel_weights = call.padded_k * kPanelColumns;
  const __m256i odd_mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  __m256 sums[kRows][2 * kPanels];
  SCALEDMM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    SCALEDMM_UNROLL
    for (int c = 0; c < 2 * kPanels; ++c) {
      const float* memory = call.sums + c / 2 * call.panel_sums + r * kPanelColumns + c % 2 * kLanes;
      sums[r][c] = call.adds ? _mm256_load_ps(memory) : _mm256_setzero_ps();
    }
  }
  for (std::int64_t k = 0; k < call.count; k += 2, x += 2, weights += 2 * kPanelColumns) {
    SCALEDMM_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const std::uint16_t* pairs = weights + p * panel_weights;
      _mm_prefetch(reinterpret_cast<const char*>(pairs + kPrefetchWeights), _MM_HINT_T0);
      SCALEDMM_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        const __m256 low = widen(pairs, odd, odd_mask);
        const __m256 high = widen(pairs + kPanelColumns, odd, odd_mask);
        SCALEDMM_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const __m256 activation = _mm256_broadcast_ss(x + r * call.padded_k + odd);
          sums[r][2 * p] = _mm256_fmadd_ps(activation, low, sums[r][2 * p]);
          sums[r][2 * p + 1] = _mm256_fmadd_ps(activation, high, sums[r][2 * p + 1]);
          // With so many sums g++ 12 keeps products in the registers of activations, and spills sums.
          if constexpr (kRows > 4) __asm__("" : "+x"(sums[r][2 * p]), "+x"(sums[r][2 * p + 1]));
        }
      }
    }
  }
  SCALEDMM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    SCALEDMM_UNROLL
    for (int c = 0; c < 2 * kPanels; ++c) {
      _mm256_store_ps(call.sums + c / 2 * call.panel_sums + r * kPanelColumns + c % 2 * kLanes, sums[r][c]);
    }
  }
}

void multiply(std::int64_t panels, const TileCall& call) {
  switch (call.rows) {
    case 1:
      if (panels == 4) return multiply_as<1, 4>(call);
      return panels == 2 ? multiply_as<1, 2>(call) : multiply_as<1, 1>(call);
    case 2:
      return panels == 2 ? multiply_as<2, 2>(call) : multiply_as<2, 1>(call);
    case 3:
      return panels == 2 ? multiply_as<3, 2>(call) : multiply_as<3, 1>(call);
    case 4:
      return multiply_as<4, 1>(call);
    case 5:
      return multiply_as<5, 1>(call);
    default:
      return multiply_as<6, 1>(call);
  }
}

SCALEDMM_TARGET_END

}  // namespace

const dense::Kernel& bf16_avx2() {
  static constexpr dense::Kernel kKernel{.name = "bf16_avx2",
                                         .runs_on = [](const CpuFeatures& cpu) { return cpu.avx2; },
                                         .tile_rows = kTileRows,
                                         .panels_at_once = panels_at_once,
                                         .row_bytes = row_bytes,
                                         .prepare = prepare,
                                         .multiply = multiply,
                                         .store = fp8::store_rows};
  return kKernel;
}

const dense::Kernel& bf16_reference() {
  static constexpr dense::Kernel kKernel{.name = "bf16_reference",
                                         .runs_on = [](const CpuFeatures&) { return true; },
                                         .panels_at_once = [](std::int64_t) -> std::int64_t { return 1; },
                                         .row_bytes = row_bytes,
                                         .prepare = prepare_plainly,
                                         .multiply = multiply_plainly,
                                         .store = store_plainly};
  return kKernel;
}

}  // namespace scaledmm::native
