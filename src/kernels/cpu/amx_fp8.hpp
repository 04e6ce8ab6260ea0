// The four AMX-FP8 products, as bytes: g++ 12 and binutils 2.40 do not know them.
//   dst += a * b    VEX.128.pp.MAP5.W0 FD /r = C4 E5 (~b & 15) << 3 | pp, FD, C0 | dst << 3 | a
// A tile of a is [16][64] codes in rows, one of b [16][16][4], and sums are f32. dst, a and b must differ.
// Source: Intel Architecture Instruction Set Extensions Programming Reference, TDPBF8PS and its siblings.
#pragma once

#include <cstdint>

#include "device/target.hpp"

namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE {
namespace {

// What a and b hold. The number is pp.
enum class Fp8Product : std::uint8_t {
  kE5M2E5M2 = 0,  // TDPBF8PS
  kE4M3E4M3 = 1,  // TDPHF8PS
  kE4M3E5M2 = 2,  // TDPHBF8PS
  kE5M2E4M3 = 3,  // TDPBHF8PS
};

// The third and the fifth byte of the encoding.
constexpr int fp8_product_vex(Fp8Product product, int b) { return (~b & 15) << 3 | static_cast<int>(product); }
constexpr int fp8_product_registers(int dst, int a) { return 0xc0 | dst << 3 | a; }

// clang-format off
SCALEDMM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,amx-tile")
// clang-format on

template <Fp8Product kProduct, int kDst, int kA, int kB>
inline void tile_fp8_product() {
  static_assert(kDst != kA && kDst != kB && kA != kB);
  static_assert(kDst >= 0 && kDst < 8 && kA >= 0 && kA < 8 && kB >= 0 && kB < 8);
#ifdef SCALEDMM_EMULATE
  if constexpr (kProduct == Fp8Product::kE5M2E5M2) _tile_dpbf8ps(kDst, kA, kB);
  if constexpr (kProduct == Fp8Product::kE4M3E4M3) _tile_dphf8ps(kDst, kA, kB);
  if constexpr (kProduct == Fp8Product::kE4M3E5M2) _tile_dphbf8ps(kDst, kA, kB);
  if constexpr (kProduct == Fp8Product::kE5M2E4M3) _tile_dpbhf8ps(kDst, kA, kB);
#else
  __asm__ volatile(".byte 0xc4, 0xe5, %c0, 0xfd, %c1"
                   :
                   : "i"(fp8_product_vex(kProduct, kB)), "i"(fp8_product_registers(kDst, kA)));
#endif
}

SCALEDMM_TARGET_END

}  // namespace
}  // namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE
