// Warpgroup matrix multiply of 64 rows of A by kN rows of B, 32 bytes of K, both K-major in shared memory under the
// 128-byte swizzle: d = a b^T (+ d). Source: PTX ISA 9.0, wgmma.mma_async; bit fields of the descriptor as in its
// matrix-descriptor section, each checked by results.
//   Shared tile: 1024-byte aligned, a row is 128 bytes of K, 16-byte chunk c of row r lies at chunk c ^ (r & 7).
//   d[4 i + 2 h + j] of thread t of the warpgroup: row 16 (t / 32) + (t % 32) / 4 + 8 h, column 8 i + 2 (t % 4) + j.
#pragma once

#include <cstdint>

namespace scaledmm::cuda::sm90 {

// Address >> 4, leading offset 1 (unused under this swizzle), 1024 bytes between groups of 8 rows, 128-byte swizzle.
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t address) {
  return static_cast<std::uint64_t>((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
// One row of K (a B of 8 rows whose other seven are whatever follows: their sums mean nothing), 16-byte aligned and not
// swizzled. Without a swizzle 8 rows of 16 bytes lie together, so steps of 16 bytes along K make row 0 contiguous.
__device__ __forceinline__ std::uint64_t row_descriptor(std::uint32_t address) {
  return static_cast<std::uint64_t>((address & 0x3ffff) >> 4) | 1ull << 16 | 8ull << 32;
}
constexpr std::uint64_t kNextK = 2;  // 32 bytes of K further, inside the 128

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The compiler moves nothing that touches d across this.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void pin(std::int32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Operand lists of the instructions below.
#define SCALEDMM_R4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define SCALEDMM_R8(c, i) SCALEDMM_R4(c, i), SCALEDMM_R4(c, i + 4)
#define SCALEDMM_R16(c, i) SCALEDMM_R8(c, i), SCALEDMM_R8(c, i + 8)
#define SCALEDMM_R32(c, i) SCALEDMM_R16(c, i), SCALEDMM_R16(c, i + 16)
#define SCALEDMM_R48(c, i) SCALEDMM_R32(c, i), SCALEDMM_R16(c, i + 32)
#define SCALEDMM_R56(c, i) SCALEDMM_R32(c, i), SCALEDMM_R16(c, i + 32), SCALEDMM_R8(c, i + 48)
#define SCALEDMM_R64(c, i) SCALEDMM_R32(c, i), SCALEDMM_R32(c, i + 32)

// add = 0 overwrites d.
#define SCALEDMM_WGMMA(kind, type, constraint, n, count, registers, a, b, p, scales)                            \
  __device__ __forceinline__ void wgmma(type(&d)[count], std::uint64_t desc_a, std::uint64_t desc_b, int add) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p                                                          \
                 ", 0;\n"                                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32." kind " {" registers "}, " a ", " b ", p" scales  \
                 ";\n}\n"                                                                                       \
                 : SCALEDMM_R##count("+" constraint, 0)                                                         \
                 : "l"(desc_a), "l"(desc_b), "r"(add));                                                         \
  }
#define SCALEDMM_REGISTERS_4 "%0, %1, %2, %3"
#define SCALEDMM_REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SCALEDMM_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SCALEDMM_REGISTERS_32                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SCALEDMM_REGISTERS_48                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define SCALEDMM_REGISTERS_56                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55"
#define SCALEDMM_REGISTERS_64                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
  "%59, %60, %61, %62, %63"
SCALEDMM_WGMMA("f32.e4m3.e4m3", float, "f", 8, 4, SCALEDMM_REGISTERS_4, "%4", "%5", "%6", ", 1, 1")
SCALEDMM_WGMMA("f32.e4m3.e4m3", float, "f", 16, 8, SCALEDMM_REGISTERS_8, "%8", "%9", "%10", ", 1, 1")
SCALEDMM_WGMMA("f32.e4m3.e4m3", float, "f", 32, 16, SCALEDMM_REGISTERS_16, "%16", "%17", "%18", ", 1, 1")
SCALEDMM_WGMMA("f32.e4m3.e4m3", float, "f", 64, 32, SCALEDMM_REGISTERS_32, "%32", "%33", "%34", ", 1, 1")
SCALEDMM_WGMMA("f32.e4m3.e4m3", float, "f", 96, 48, SCALEDMM_REGISTERS_48, "%48", "%49", "%50", ", 1, 1")
SCALEDMM_WGMMA("f32.e4m3.e4m3", float, "f", 112, 56, SCALEDMM_REGISTERS_56, "%56", "%57", "%58", ", 1, 1")
SCALEDMM_WGMMA("f32.e4m3.e4m3", float, "f", 128, 64, SCALEDMM_REGISTERS_64, "%64", "%65", "%66", ", 1, 1")
SCALEDMM_WGMMA("s32.s8.s8", std::int32_t, "r", 8, 4, SCALEDMM_REGISTERS_4, "%4", "%5", "%6", "")
SCALEDMM_WGMMA("s32.s8.s8", std::int32_t, "r", 16, 8, SCALEDMM_REGISTERS_8, "%8", "%9", "%10", "")
SCALEDMM_WGMMA("s32.s8.s8", std::int32_t, "r", 32, 16, SCALEDMM_REGISTERS_16, "%16", "%17", "%18", "")
SCALEDMM_WGMMA("s32.s8.s8", std::int32_t, "r", 64, 32, SCALEDMM_REGISTERS_32, "%32", "%33", "%34", "")
SCALEDMM_WGMMA("s32.s8.s8", std::int32_t, "r", 128, 64, SCALEDMM_REGISTERS_64, "%64", "%65", "%66", "")

#undef SCALEDMM_WGMMA
#undef SCALEDMM_R4
#undef SCALEDMM_R8
#undef SCALEDMM_R16
#undef SCALEDMM_R32
#undef SCALEDMM_R48
#undef SCALEDMM_R56
#undef SCALEDMM_R64
#undef SCALEDMM_REGISTERS_4
#undef SCALEDMM_REGISTERS_8
#undef SCALEDMM_REGISTERS_16
#undef SCALEDMM_REGISTERS_32
#undef SCALEDMM_REGISTERS_48
#undef SCALEDMM_REGISTERS_56
#undef SCALEDMM_REGISTERS_64

}  // namespace scaledmm::cuda::sm90
