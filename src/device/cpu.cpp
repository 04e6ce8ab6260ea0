#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>

#include "device/cpuid.hpp"
#include "device/environment.hpp"
#include "scaledmm/device.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

constexpr std::pair<Isa, std::string_view> kIsaNames[] = {
    {Isa::kScalar, "scalar"},         {Isa::kAvx2, "avx2"}, {Isa::kAvx512, "avx512"}, {Isa::kAvx512Vnni, "avx512vnni"},
    {Isa::kAvx512Bf16, "avx512bf16"}, {Isa::kAmx, "amx"},
};

bool tier_usable(Isa isa, const CpuFeatures& f) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return f.avx2;
    case Isa::kAvx512:
      return f.avx512;
    case Isa::kAvx512Vnni:
      return f.avx512 && f.avx512_vnni;
    case Isa::kAvx512Bf16:
      return f.avx512 && f.avx512_vnni && f.avx512_bf16;
    case Isa::kAmx:
      return f.avx512 && f.avx512_vnni && f.avx512_bf16 && f.amx_int8 && f.amx_bf16;
  }
  return false;
}

// Why a tier that the report lacks is not usable: the system's refusal, or the processor's.
std::string why_not(Isa isa, const CpuReport& report) {
  const std::string prefix = std::string(name(isa)) + ": ";
  if (!tier_usable(isa, report.cpuid)) return prefix + "the processor does not have it";
  if (isa == Isa::kAmx && report.os_saves_zmm) {
    return prefix + (report.os_saves_tiles ? "permission refused by the operating system"
                                           : "tile state not enabled by the operating system");
  }
  return prefix + "vector register state not enabled by the operating system";
}

CpuFeatures usable_features(const CpuReport& report) {
  CpuFeatures f = report.cpuid;
  if (!report.os_saves_ymm) f = CpuFeatures{};
  if (!report.os_saves_zmm) {
    f.avx512 = f.avx512_vnni = f.avx512_vbmi = f.avx512_bf16 = f.avx512_fp16 = false;
  }
  if (!report.os_saves_zmm || !report.os_saves_tiles || !report.amx_permission) {
    f.amx_int8 = f.amx_bf16 = f.amx_fp8 = false;
  }
  return f;
}

void cap_features(CpuFeatures& f, Isa cap) {
  if (cap < Isa::kAmx) f.amx_int8 = f.amx_bf16 = f.amx_fp8 = false;
  if (cap < Isa::kAvx512Bf16) f.avx512_bf16 = f.avx512_fp16 = false;
  if (cap < Isa::kAvx512Vnni) f.avx512_vnni = f.avx_vnni = false;
  if (cap < Isa::kAvx512) f.avx512 = f.avx512_vbmi = false;
  if (cap < Isa::kAvx2) f.avx2 = false;
}

// Of the data or unified cache of a level, as the kernel lists it; else as the C library reports it, which on AMD gives
// the last level of all core complexes together.
std::int64_t cache_bytes(int level, int sysconf_name, std::int64_t otherwise) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    int found_level = 0;
    std::int64_t kilobytes = 0;
    std::string type;
    char unit = 0;
    if (!(std::ifstream(folder + "level") >> found_level) || found_level != level) continue;
    if (!(std::ifstream(folder + "type") >> type) || type == "Instruction") continue;
    if (std::ifstream(folder + "size") >> kilobytes >> unit && unit == 'K' && kilobytes > 0) return kilobytes << 10;
  }
  const long bytes = sysconf(sysconf_name);
  return bytes > 0 ? bytes : otherwise;
}

// CPUs that a cgroup (version 2, then 1) lets us use; 0 for no limit.
int cgroup_cpus() {
  double quota = 0, period = 0;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> quota >> period && period > 0) {
    return std::max(1, static_cast<int>(quota / period));
  }
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) {
    return std::max(1, static_cast<int>(quota / period));
  }
  return 0;
}

int usable_cpus() {
  // More CPUs than CPU_SETSIZE need a larger mask: grow until the call succeeds.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(capacity));
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(capacity));
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    const int count = ok ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (ok) {
      const int limit = cgroup_cpus();
      return limit > 0 ? std::min(count, limit) : count;
    }
  }
  return 1;
}

Isa isa_cap_of_environment() {
  const std::optional<std::string> text = environment_variable("SCALEDMM_MAX_ISA");
  if (!text) return Isa::kAmx;
  if (const std::optional<Isa> isa = isa_from_name(*text)) return *isa;
  throw InvalidArgument("SCALEDMM_MAX_ISA = " + *text +
                        " is none of scalar, avx2, avx512, avx512vnni, avx512bf16, amx");
}

// SCALEDMM_L2_KB: plan blocks as if the second-level cache had this size.
std::optional<std::int64_t> l2_bytes_of_environment() {
  const std::optional<std::string> text = environment_variable("SCALEDMM_L2_KB");
  if (!text) return std::nullopt;
  std::int64_t kilobytes = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, kilobytes);
  if (error != std::errc() || stop != end || kilobytes < 1 || kilobytes > 1 << 20) {
    throw InvalidArgument("SCALEDMM_L2_KB = " + *text + " is no number from 1 to 1048576");
  }
  return kilobytes << 10;
}

Device describe_this_cpu(Isa cap) {
  Device device = make_cpu_device(read_cpu_report(), cap);
  device.description = read_cpu_brand();
  device.threads = usable_cpus();
  device.l1d_bytes = cache_bytes(1, _SC_LEVEL1_DCACHE_SIZE, device.l1d_bytes);
  device.l2_bytes = l2_bytes_of_environment().value_or(cache_bytes(2, _SC_LEVEL2_CACHE_SIZE, device.l2_bytes));
  device.l3_bytes = cache_bytes(3, _SC_LEVEL3_CACHE_SIZE, device.l3_bytes);
  return device;
}

std::atomic<const Device*> capped_cpu = nullptr;

}  // namespace

std::string_view name(Isa isa) {
  for (const auto& [known, text] : kIsaNames) {
    if (known == isa) return text;
  }
  return "unknown";
}

std::optional<Isa> isa_from_name(std::string_view text) {
  for (const auto& [known, spelling] : kIsaNames) {
    if (spelling == text) return known;
  }
  return std::nullopt;
}

Device make_cpu_device(const CpuReport& report, Isa cap) {
  Device device;
  device.kind = DeviceKind::kCpu;
  device.description = "described CPU";
  device.cpu = usable_features(report);
  for (const auto& [isa, text] : kIsaNames) {
    if (!tier_usable(isa, device.cpu)) {
      device.notes.push_back(why_not(isa, report));
    } else if (isa > cap) {
      device.notes.push_back(std::string(text) + ": capped at " + std::string(name(cap)));
    } else {
      device.isa = isa;
    }
  }
  cap_features(device.cpu, cap);
  return device;
}

Device cpu_device(Isa isa) {
  CpuReport report;
  report.cpuid = {true, true, true, true, true, true, true, true, true, false};
  cap_features(report.cpuid, isa);
  Device device = make_cpu_device(report, Isa::kAmx);
  device.description = "described CPU of tier " + std::string(name(isa));
  return device;
}

const Device& this_cpu() {
  if (const Device* capped = capped_cpu.load(std::memory_order_acquire)) return *capped;
  static const Device device = describe_this_cpu(isa_cap_of_environment());
  return device;
}

void set_max_isa(std::optional<Isa> isa) {
  // One description for each cap, never freed: references that this_cpu() gave out stay valid.
  static std::mutex mutex;
  static const Device* by_cap[std::size(kIsaNames)] = {};
  if (!isa) {
    capped_cpu.store(nullptr, std::memory_order_release);
    return;
  }
  const std::lock_guard lock(mutex);
  const Device*& device = by_cap[static_cast<std::size_t>(*isa)];
  if (device == nullptr) device = new Device(describe_this_cpu(*isa));
  capped_cpu.store(device, std::memory_order_release);
}

}  // namespace scaledmm
