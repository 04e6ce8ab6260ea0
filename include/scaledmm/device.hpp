// What a machine can do. A Device is a description: of this machine, or made up (a plan for another one, a test).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace scaledmm {

enum class DeviceKind : std::uint8_t { kCpu, kCuda, kHip, kOpenCL };

std::string_view name(DeviceKind kind);

// Tiers of x86, each including the ones before it. kAvx512Bf16 and kAmx also need VNNI.
enum class Isa : std::uint8_t { kScalar, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };

// scalar, avx2, avx512, avx512vnni, avx512bf16, amx: the values of SCALEDMM_MAX_ISA.
std::string_view name(Isa isa);
std::optional<Isa> isa_from_name(std::string_view text);

// Usable features: the processor has them and the operating system lets us use them.
struct CpuFeatures {
  bool avx2 = false;      // with FMA and F16C
  bool avx_vnni = false;  // VEX-encoded VPDPBUSD
  bool avx512 = false;    // F, BW, DQ, VL
  bool avx512_vnni = false;
  bool avx512_vbmi = false;
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  bool amx_int8 = false;  // with AMX-TILE and the kernel's permission
  bool amx_bf16 = false;
  bool amx_fp8 = false;
  bool operator==(const CpuFeatures&) const = default;
};

// What the processor and the system report, before a verdict. Made up in tests.
struct CpuReport {
  CpuFeatures cpuid;           // what CPUID claims, whatever the system allows
  bool os_saves_ymm = true;    // XCR0 bits 1, 2
  bool os_saves_zmm = true;    // XCR0 bits 5, 6, 7
  bool os_saves_tiles = true;  // XCR0 bits 17, 18
  bool amx_permission = true;  // arch_prctl(ARCH_REQ_XCOMP_PERM) succeeded
};

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  std::string description;  // "AMD EPYC 7B13", "NVIDIA H200"

  // CPU
  CpuFeatures cpu;
  Isa isa = Isa::kScalar;             // the highest tier that is usable, after the cap
  std::vector<std::string> notes;     // why higher tiers are not: "amx: permission refused by the operating system"
  int threads = 1;                    // CPUs of the affinity mask, limited by the cgroup quota
  std::int64_t l1d_bytes = 32 << 10;  // of one core
  std::int64_t l2_bytes = 512 << 10;  // of one core
  std::int64_t l3_bytes = 8 << 20;    // of one socket or core complex

  // GPU: compute capability as major * 10 + minor; nothing when unknown.
  std::optional<int> capability;
  bool found = false;             // GPU: a device of this machine, not a description of one
  int multiprocessors = 0;        // GPU
  std::int64_t memory_bytes = 0;  // GPU
};

// Applies the system's permissions and a cap to what CPUID claims, and says what was taken away and why.
Device make_cpu_device(const CpuReport& report, Isa cap);

// A made-up CPU of a tier (its features and every lower tier's), for plans and tests.
Device cpu_device(Isa isa);

// This machine's CPU, capped by SCALEDMM_MAX_ISA or set_max_isa. CPUID is read once.
const Device& this_cpu();

// Caps the instruction sets of this_cpu() from now on; wins over SCALEDMM_MAX_ISA. nullopt: back to the environment.
void set_max_isa(std::optional<Isa> isa);

// Devices by name: "cpu" (this machine), "cuda", "cuda:1" (an NVIDIA GPU of this machine), and for plans "cpu:avx2" ...
// "cpu:amx", "sm90" ... (a described NVIDIA GPU).
// Errors: InvalidArgument for an unknown name, with the known ones; DeviceError for a GPU that is not there, with the
// reason.
Device device_from_name(std::string_view text);

// A backend that was looked for, and what came of it.
struct BackendStatus {
  DeviceKind kind;
  bool available = false;
  std::string detail;  // "2 devices", or why there is none
  std::vector<Device> devices;
};

// Everything found on this machine, the CPU first, and why the rest was not found.
std::vector<BackendStatus> devices();

}  // namespace scaledmm
