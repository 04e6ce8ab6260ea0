// fp8_w8a8_amxfp8
//   y[m, n] = bias[n] + sum over K blocks b of sx[m, b] * sw[n, b] * sum over k in b of q[m, k] * w[n, k]
//   x [M, K] f32, bf16 or f16, quantized here per tensor, per token or per (1, K block), or codes with their scales;
//   w [N, K] e4m3fn or e5m2; y [M, N] f32, bf16 or f16
// TDPHF8PS and its siblings (Diamond Rapids) multiply the codes as they are; nothing is widened. Products are exact; 64
// of them are summed and added to f32 in an order that is not documented, within 2^-24 (K + 2 blocks + 4) sum |a w s|
// for every order. The order of one output depends on nothing but K, so the guarantees hold.
//
// e4m3fnuz is refused: its codes read as e4m3fn are twice as large, but its 240 would be a NaN. Source: Intel
// Architecture Instruction Set Extensions Programming Reference, AMX-FP8. docs/quantization.md 3 and 4.
#include "device/target.hpp"
#include "kernels/cpu/amx_fp8.hpp"
#include "kernels/cpu/fp8_amx_tiles.hpp"
#include "kernels/cpu/fp8_w8a8.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

constexpr std::int64_t kTileK = 64;  // codes of a tile row

std::int64_t panels_at_once(std::int64_t) { return 2; }

void multiply_tile(DType weights, Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call);

constexpr TileKernels kTileKernels{
    .tile_rows = 32,
    .row_unit = 16,
    .packing = {.k_step = kTileK, .order = Order::kQuads, .chunk_k = 1024},  // 32 KiB of weights in two panels
    .kept_panels = 2,
    .stores_outputs = true,
    .x_bytes = 1,
    .kept_bytes = 0,
    .code_form = CodeForm::kByte,
    .panels_at_once = panels_at_once,
    .pack_row = pack_byte_tiles,
    .multiply = multiply_tile,
    .begin = configure_tiles,
    .end = release_tiles,
};

class Kernel final : public W8A8Kernel {
 public:
  const KernelInfo& info() const override {
    static constexpr KernelInfo kInfo{
        "fp8_w8a8_amxfp8",
        "CPUFP8W8A8ScaledMMLinearKernel, CPUFp8W8A8BlockScaledMMKernel",
        DeviceKind::kCpu,
        Isa::kAmx,
        "w8a8",
        {true, true, true, "f32", "exact products, f32 sums by 64 of K: 2^-24 (K + 2 blocks + 4) sum |a w s|"}};
    return kInfo;
  }
  Support is_supported(const Device& device) const override {
    if (device.kind != DeviceKind::kCpu) return Support::no("the device is not a cpu");
    if (!device.cpu.avx512) return Support::no("the cpu has no usable avx512 with bw, dq and vl");
    if (!device.cpu.amx_fp8) return Support::no("the cpu has no usable amx_fp8 (Diamond Rapids or newer)");
    return Support::yes();
  }
  Support can_implement(const LayerConfig& config) const override {
    const Support any = can_implement_w8a8(config);
    if (any && activation_key(config)->dtype == DType::kE4M3FNUZ) {
      return Support::no("the codes are e4m3fnuz, whose 240 is a NaN to the tiles");
    }
    return any;
  }

 private:
  const TileKernels& tiles() const override { return kTileKernels; }
};

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prfchw,amx-tile")
// clang-format on

constexpr std::int64_t kPrefetchBytes = 4096;

// One step of 64 k. Tiles are zeroed right after their last use, as zero tiles need no physical register.
template <Fp8Product kProduct, int kHalves, int kPanels>
inline void multiply_step(const std::byte* x0, const std::byte* x1, const std::uint8_t* w0, const std::uint8_t* w1) {
  _tile_loadd(SCALEDMM_X_0, x0, kRowBytes);
  _tile_loadd(SCALEDMM_W_0, w0, kRowBytes);
  tile_fp8_product<kProduct, SCALEDMM_SUM_00, SCALEDMM_X_0, SCALEDMM_W_0>();
  if constexpr (kPanels == 2) {
    _tile_loadd(SCALEDMM_W_1, w1, kRowBytes);
    tile_fp8_product<kProduct, SCALEDMM_SUM_01, SCALEDMM_X_0, SCALEDMM_W_1>();
  }
  _tile_zero(SCALEDMM_X_0);
  if constexpr (kHalves == 2) {
    _tile_loadd(SCALEDMM_X_1, x1, kRowBytes);
    tile_fp8_product<kProduct, SCALEDMM_SUM_10, SCALEDMM_X_1, SCALEDMM_W_0>();
  }
  _tile_zero(SCALEDMM_W_0);
  if constexpr (kHalves == 2 && kPanels == 2) {
    tile_fp8_product<kProduct, SCALEDMM_SUM_11, SCALEDMM_X_1, SCALEDMM_W_1>();
  }
  if constexpr (kHalves == 2) _tile_zero(SCALEDMM_X_1);
  if constexpr (kPanels == 2) _tile_zero(SCALEDMM_W_1);
}

template <Fp8Product kProduct, int kHalves, int kPanels>
void multiply_tile_as(bool is_streamed, std::int64_t rows, const TileCall& call) {
  const std::byte* x0 = call.x;
  const std::byte* x1 = x0 + call.length() / kTileK * kTileBytes;
  const auto multiply_at = [&](std::int64_t i) {
    const std::uint8_t* w = call.codes + i * kTileBytes;
    if (is_streamed) {
      for (int p = 0; p < kPanels; ++p) {
        for (std::int64_t line = 0; line < kTileBytes; line += kRowBytes) {
          _mm_prefetch(reinterpret_cast<const char*>(w + p * call.panel_codes + kPrefetchBytes + line), _MM_HINT_T0);
        }
      }
    }
    const std::int64_t at = i * kTileBytes;
    multiply_step<kProduct, kHalves, kPanels>(x0 + at, x1 + at, w, w + call.panel_codes);
  };
  std::int64_t step = 0;
  for (const Piece& piece : call.pieces) {
    begin_piece<kHalves, kPanels>(piece, call);
    for (const std::int64_t end = step + piece.steps / kTileK; step < end; ++step) multiply_at(step);
    end_piece<kHalves, kPanels>(piece, rows, call);
  }
}

template <Fp8Product kProduct>
void multiply_tile_of(bool is_streamed, std::int64_t rows, std::int64_t panels, const TileCall& call) {
  if (rows > 16) {
    if (panels == 2) return multiply_tile_as<kProduct, 2, 2>(is_streamed, rows, call);
    return multiply_tile_as<kProduct, 2, 1>(is_streamed, rows, call);
  }
  if (panels == 2) return multiply_tile_as<kProduct, 1, 2>(is_streamed, rows, call);
  multiply_tile_as<kProduct, 1, 1>(is_streamed, rows, call);
}

void multiply_tile(DType weights, Weights source, std::int64_t rows, std::int64_t panels, const TileCall& call) {
  const bool is_streamed = source != Weights::kKept;
  if (call.x_dtype == DType::kE5M2) {
    if (weights == DType::kE5M2) return multiply_tile_of<Fp8Product::kE5M2E5M2>(is_streamed, rows, panels, call);
    return multiply_tile_of<Fp8Product::kE5M2E4M3>(is_streamed, rows, panels, call);
  }
  if (weights == DType::kE5M2) return multiply_tile_of<Fp8Product::kE4M3E5M2>(is_streamed, rows, panels, call);
  multiply_tile_of<Fp8Product::kE4M3E4M3>(is_streamed, rows, panels, call);
}

SCALEDMM_TARGET_END

}  // namespace

const LinearKernel& fp8_w8a8_amxfp8() {
  static const Kernel kernel;
  return kernel;
}

}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
