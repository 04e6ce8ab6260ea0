// int8_w8a8_avx2
//   t = f32(sum over k of (q[m, k] - zx[m]) * w[n, k]) * sx[m];  y[m, n] = bias ? fma(t, sw[n], bias[n]) : t * sw[n]
//   x [M, K] f32, bf16 or f16, quantized here, or int8; w [N, K] int8, a scale per channel or per block; y [M, N] f32,
//   bf16, f16
// Codes are widened to int16, x once, w on the way: VPMADDWD adds two exact products in int32. (VPMADDUBSW takes bytes
// and is faster, but saturates at 2^15.) K < 2^17, so the int32 sums cannot wrap and y equals the reference bit for
// bit. Source: Intel SDM vol. 2, VPMADDWD. docs/quantization.md 2 and 4.
#include <algorithm>
#include <cstring>
#include <string>

#include "device/target.hpp"
#include "kernels/cpu/int8_kernel.hpp"

namespace scaledmm::native {
namespace {

constexpr std::int64_t kTileM = 6;  // rows of a tile: 6 x 16 int32 sums are 12 of the 16 registers
constexpr std::int64_t kTileN = kInt8PanelN;
constexpr std::int64_t kPair = 2;         // products that VPMADDWD sums into one lane
constexpr std::int64_t kChunkK = 512;     // 512 x 16 int16 weights are 16 KiB: half of an L1 cache
constexpr std::int64_t kBlockM = 192;     // 192 rows x 512 int16 codes are 192 KiB, which stay in L2 beside the sums
constexpr std::int64_t kGroupPanels = 8;  // panels that share a pass over the codes of a block
constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kWidenM = 17;  // from here on widening a chunk once is cheaper than in every tile

// codes[n / 16][p / 2][n % 16][p % 2], see int8_packing.hpp
constexpr Int8Tile kTile{kTileN, kPair, kPair};

void multiply_few_rows(const Int8Rectangle&);
void multiply_many_rows(const Int8Rectangle&);

Int8Method method_of(std::int64_t m) {
  Int8Method result{
      .layout = CodeLayout::kInt16, .adds_to_totals = true, .rows = kBlockM, .multiply = multiply_few_rows};
  if (m >= kWidenM) {
    result.panels = kGroupPanels;
    result.multiply = multiply_many_rows;
  }
  return result;
}

class Kernel final : public Int8Kernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{.name = "int8_w8a8_avx2",
                                      .upstream = "CPUInt8ScaledMMLinearKernel",
                                      .device = DeviceKind::kCpu,
                                      .isa = Isa::kAvx2,
                                      .computes = "w8a8",
                                      .guarantees = kGuarantees};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    const std::string tier(scaledmm::name(device.isa));
    if (!device.cpu.avx2) return Support::no("the cpu has no usable avx2 with fma and f16c, its tier is " + tier);
    return Support::yes();
  }

 private:
  const Int8Tile& tile() const override { return kTile; }
  Int8Method method(std::int64_t m) const override { return method_of(m); }
};

}  // namespace

SCALEDMM_TARGET_BEGIN("avx2,fma")
namespace {

// Weights of a tile: bytes that are widened here, or int16 that were widened before.
struct PackedPairs {
  static constexpr std::int64_t kBytes = kTileN * kPair;
  static constexpr bool kPrefetch = true;
  static __m256i load(const std::byte* w, int half) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w) + half));
  }
};
struct WidenedPairs {
  static constexpr std::int64_t kBytes = kTileN * kPair * 2;
  static constexpr bool kPrefetch = false;
  static __m256i load(const std::byte* w, int half) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(w) + half);
  }
};

// sums[r][c] (+)= sum over pairs of x[r] * w[c], for rows x 16 sums.
struct TileArguments {
  const std::byte* x = nullptr;  // int16 codes
  std::int64_t x_row_bytes = 0;
  const std::byte* w = nullptr;
  std::int64_t pairs = 0;
  std::int32_t* sums = nullptr;
  std::int64_t stride = 0;
  bool adds = false;        // to what is in sums
  float* totals = nullptr;  // where f32(sum) * sw is added instead of writing sums
  const float* sw = nullptr;
};

inline void add_to_totals(__m256i sums, const float* sw, float* totals) {
  const __m256 total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_loadu_ps(sw), _mm256_loadu_ps(totals));
  _mm256_storeu_ps(totals, total);
}

template <int rows, class Weights>
void multiply_tile(const TileArguments& a) {
  constexpr std::int64_t kPrefetchBytes = 4096;
  // Four steps at a time where instructions limit and registers do not. With many rows g++ adds the products of
  // unrolled steps to each other before it adds them to the sums, and spills.
  constexpr int kUnrolledRows = 2;
  __m256i sum[rows][2];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
    auto* from = reinterpret_cast<const __m256i*>(a.sums + r * a.stride);
    sum[r][0] = a.adds ? _mm256_loadu_si256(from) : _mm256_setzero_si256();
    sum[r][1] = a.adds ? _mm256_loadu_si256(from + 1) : _mm256_setzero_si256();
  }
  const std::byte* x[rows];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) x[r] = a.x + r * a.x_row_bytes;
  const std::byte* w = a.w;
  const auto step = [&](std::int64_t pair) {
    const __m256i w0 = Weights::load(w, 0), w1 = Weights::load(w, 1);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      std::int32_t two_codes;
      std::memcpy(&two_codes, x[r] + pair * 4, sizeof(two_codes));
      const __m256i codes = _mm256_set1_epi32(two_codes);
      sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(codes, w0));
      sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(codes, w1));
    }
    w += Weights::kBytes;
  };
  std::int64_t pair = 0;
  if constexpr (rows <= kUnrolledRows) {
    for (; pair + 4 <= a.pairs; pair += 4) {
      for (int i = 0; i < 2; ++i) {
        if (Weights::kPrefetch) _mm_prefetch(w + kPrefetchBytes, _MM_HINT_T0);
        step(pair + 2 * i);
        step(pair + 2 * i + 1);
      }
    }
  }
#pragma GCC unroll 1
  for (; pair < a.pairs; ++pair) {
    if (Weights::kPrefetch) _mm_prefetch(w + kPrefetchBytes, _MM_HINT_T0);
    step(pair);
  }
  if (a.totals != nullptr) {
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      add_to_totals(sum[r][0], a.sw, a.totals + r * a.stride);
      add_to_totals(sum[r][1], a.sw + 8, a.totals + r * a.stride + 8);
    }
    return;
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
    auto* to = reinterpret_cast<__m256i*>(a.sums + r * a.stride);
    _mm256_storeu_si256(to, sum[r][0]);
    _mm256_storeu_si256(to + 1, sum[r][1]);
  }
}

template <class Weights>
void multiply_tile(std::int64_t rows, const TileArguments& arguments) {
  switch (rows) {
    case 1:
      return multiply_tile<1, Weights>(arguments);
    case 2:
      return multiply_tile<2, Weights>(arguments);
    case 3:
      return multiply_tile<3, Weights>(arguments);
    case 4:
      return multiply_tile<4, Weights>(arguments);
    case 5:
      return multiply_tile<5, Weights>(arguments);
    default:
      return multiply_tile<6, Weights>(arguments);
  }
}

void widen(const std::int8_t* codes, std::int64_t count, std::byte* widened) {
  for (std::int64_t i = 0; i < count; i += kTileN) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    _mm256_store_si256(reinterpret_cast<__m256i*>(widened + 2 * i), _mm256_cvtepi8_epi16(bytes));
  }
}

}  // namespace
SCALEDMM_TARGET_END

namespace {

// Weights that come next, fetched into the second-level cache line by line. Without weights it does nothing.
struct Ahead {
  const std::int8_t* weights = nullptr;
  std::int64_t done = 0;

  void prefetch(std::int64_t bytes) {
    if (weights == nullptr) return;
    for (; done < bytes; done += kCacheLine) {
      _mm_prefetch(reinterpret_cast<const char*>(weights + done), _MM_HINT_T1);
    }
  }
};

// Tiles of nearly equal height: 13 rows are 4 + 4 + 5, as a tile of one row costs half as much as one of six.
template <class Weights>
void multiply_panel(const Int8Rectangle& a, std::int64_t place, std::int64_t length, std::int64_t panel,
                    const std::byte* w, Ahead ahead) {
  TileArguments tile;
  tile.x_row_bytes = a.codes->row_bytes;
  tile.w = w;
  tile.pairs = length / kPair;
  tile.stride = a.stride;
  tile.adds = place != a.place;
  const bool adds_to_totals = a.totals != nullptr && place + length == a.place + a.length;
  if (adds_to_totals) tile.sw = a.sw + panel * kTileN;
  const std::int64_t tiles = (a.rows + kTileM - 1) / kTileM;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t begin = t * a.rows / tiles, end = (t + 1) * a.rows / tiles;
    tile.x = a.codes->row(a.first_row + begin) + 2 * place;
    tile.sums = a.sums + begin * a.stride + panel * kTileN;
    if (adds_to_totals) tile.totals = a.totals + begin * a.stride + panel * kTileN;
    ahead.prefetch((t + 1) * length * kTileN / tiles);
    multiply_tile<Weights>(end - begin, tile);
  }
}

// Weights are read once, from memory; the sums of one tile of rows stay in registers for all of K.
void multiply_few_rows(const Int8Rectangle& a) {
  const std::int64_t chunk = a.rows <= kTileM ? a.length : kChunkK;
  for (std::int64_t p = 0; p < a.panels; ++p) {
    for (std::int64_t done = 0; done < a.length; done += chunk) {
      const std::int64_t place = a.place + done;
      const std::int8_t* w = a.weights->panel(a.first_panel + p) + place * kTileN;
      multiply_panel<PackedPairs>(a, place, std::min(chunk, a.length - done), p, reinterpret_cast<const std::byte*>(w),
                                  {});
    }
  }
}

// A chunk of one panel is widened into L1 and meets all rows there.
void multiply_many_rows(const Int8Rectangle& a) {
  alignas(64) std::byte widened[kChunkK * kTileN * 2];
  for (std::int64_t done = 0; done < a.length; done += kChunkK) {
    const std::int64_t place = a.place + done;
    const std::int64_t length = std::min(kChunkK, a.length - done);
    for (std::int64_t p = 0; p < a.panels; ++p) {
      const std::int8_t* w = a.weights->panel(a.first_panel + p) + place * kTileN;
      widen(w, length * kTileN, widened);
      const bool is_last = p + 1 == a.panels;
      const std::int8_t* next_chunk =
          done + length < a.length ? a.weights->panel(a.first_panel) + (place + length) * kTileN : a.next;
      const std::int8_t* next = is_last ? next_chunk : w + a.weights->packed_k * kTileN;
      multiply_panel<WidenedPairs>(a, place, length, p, widened, {next});
    }
  }
}

}  // namespace

const LinearKernel& int8_w8a8_avx2() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::native
