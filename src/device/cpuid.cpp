#include "device/cpuid.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

namespace scaledmm {
namespace {

struct Registers {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
};

// Zeros for a leaf that the processor does not have.
Registers cpuid(std::uint32_t leaf, std::uint32_t sub_leaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, sub_leaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

bool bit(std::uint32_t word, int position) { return (word >> position & 1U) != 0; }

std::uint64_t read_xcr0() {
  std::uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

// Asks Linux for the 8 KiB of tile data; the answer holds for every thread of the process.
bool request_amx_permission() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

CpuReport read_cpu_report() {
  CpuReport report;
  const Registers leaf1 = cpuid(1);
  const Registers leaf7 = cpuid(7);
  const Registers leaf7_1 = cpuid(7, 1);
  CpuFeatures& f = report.cpuid;
  const bool has_xsave = bit(leaf1.c, 27);
  f.avx2 = bit(leaf7.b, 5) && bit(leaf1.c, 28) && bit(leaf1.c, 12) && bit(leaf1.c, 29);
  f.avx_vnni = f.avx2 && bit(leaf7_1.a, 4);
  f.avx512 = f.avx2 && bit(leaf7.b, 16) && bit(leaf7.b, 17) && bit(leaf7.b, 30) && bit(leaf7.b, 31);
  f.avx512_vnni = f.avx512 && bit(leaf7.c, 11);
  f.avx512_vbmi = f.avx512 && bit(leaf7.c, 1);
  f.avx512_bf16 = f.avx512 && bit(leaf7_1.a, 5);
  f.avx512_fp16 = f.avx512 && bit(leaf7.d, 23);
  const bool amx_tile = bit(leaf7.d, 24);
  f.amx_int8 = amx_tile && bit(leaf7.d, 25);
  f.amx_bf16 = amx_tile && bit(leaf7.d, 22);
  f.amx_fp8 = amx_tile && bit(cpuid(0x1E, 1).a, 4);

  const std::uint64_t xcr0 = has_xsave ? read_xcr0() : 0;
  const auto saves = [xcr0](std::uint64_t mask) { return (xcr0 & mask) == mask; };
  report.os_saves_ymm = saves(0x6);
  report.os_saves_zmm = saves(0xE6);
  report.os_saves_tiles = saves(0x60000);
  report.amx_permission = amx_tile && report.os_saves_tiles && request_amx_permission();
  return report;
}

std::string read_cpu_brand() {
  char text[49] = {};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002U + i);
    std::memcpy(text + 16 * i, &r, sizeof r);
  }
  const std::string brand = text;
  const std::size_t first = brand.find_first_not_of(' ');
  return first == std::string::npos ? "unknown CPU" : brand.substr(first, brand.find_last_not_of(' ') - first + 1);
}

}  // namespace scaledmm
