// Features, tiers, threads and contexts.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "device/thread_pool.hpp"
#include "scaledmm/device.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm {
namespace {

CpuReport report_with_everything() {
  CpuReport report;
  report.cpuid = {true, true, true, true, true, true, true, true, true, true};
  return report;
}

bool has_note(const Device& device, const std::string& note) {
  return std::find(device.notes.begin(), device.notes.end(), note) != device.notes.end();
}

TEST(Device, TakesTheHighestTierThatProcessorAndSystemAllow) {
  const Device device = make_cpu_device(report_with_everything(), Isa::kAmx);
  EXPECT_EQ(device.isa, Isa::kAmx);
  EXPECT_TRUE(device.notes.empty());
  EXPECT_TRUE(device.cpu.amx_fp8);
}

TEST(Device, RefusedTilePermissionLeavesAvx512AndSaysSo) {
  CpuReport report = report_with_everything();
  report.amx_permission = false;
  const Device device = make_cpu_device(report, Isa::kAmx);
  EXPECT_EQ(device.isa, Isa::kAvx512Bf16);
  EXPECT_FALSE(device.cpu.amx_int8);
  EXPECT_TRUE(has_note(device, "amx: permission refused by the operating system"));
}

TEST(Device, Avx512WithoutRegisterStateIsNotUsable) {
  CpuReport report = report_with_everything();
  report.os_saves_zmm = false;
  const Device device = make_cpu_device(report, Isa::kAmx);
  EXPECT_EQ(device.isa, Isa::kAvx2);
  EXPECT_FALSE(device.cpu.avx512_vnni || device.cpu.avx512_bf16 || device.cpu.amx_bf16);
  EXPECT_TRUE(has_note(device, "avx512vnni: vector register state not enabled by the operating system"));
}

TEST(Device, AProcessorWithNothingIsScalar) {
  const Device device = make_cpu_device(CpuReport{}, Isa::kAmx);
  EXPECT_EQ(device.isa, Isa::kScalar);
  EXPECT_TRUE(has_note(device, "avx2: the processor does not have it"));
}

TEST(Device, ACapTakesTiersAndFeaturesAway) {
  const Device device = make_cpu_device(report_with_everything(), Isa::kAvx512);
  EXPECT_EQ(device.isa, Isa::kAvx512);
  EXPECT_FALSE(device.cpu.avx512_vnni || device.cpu.amx_int8 || device.cpu.avx512_bf16);
  EXPECT_TRUE(has_note(device, "amx: capped at avx512"));
}

TEST(Device, TheCapOfTheApiHoldsUntilItIsRemoved) {
  const Isa before = this_cpu().isa;
  const Device* first = &this_cpu();
  set_max_isa(Isa::kScalar);
  EXPECT_EQ(this_cpu().isa, Isa::kScalar);
  EXPECT_FALSE(this_cpu().cpu.avx2);
  set_max_isa(std::nullopt);
  EXPECT_EQ(this_cpu().isa, before);
  EXPECT_EQ(first, &this_cpu());
}

TEST(Device, NamesOfTiersRoundTrip) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx}) {
    EXPECT_EQ(isa_from_name(name(isa)), isa);
    EXPECT_EQ(device_from_name("cpu:" + std::string(name(isa))).isa, isa);
    EXPECT_EQ(cpu_device(isa).isa, isa);
  }
  EXPECT_FALSE(isa_from_name("avx1024"));
}

TEST(Device, DescribesGpusByCapability) {
  EXPECT_EQ(device_from_name("sm90").capability, 90);
  EXPECT_EQ(device_from_name("sm120").kind, DeviceKind::kCuda);
  EXPECT_THROW(device_from_name("sm9x"), InvalidArgument);
  EXPECT_THROW(device_from_name("tpu"), InvalidArgument);
}

TEST(Threads, EveryTaskRunsOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    Context context({threads});
    for (const std::int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      context.parallel(tasks, [&](std::int64_t task) { runs[static_cast<std::size_t>(task)].fetch_add(1); });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1) << threads << " threads, " << tasks << " tasks";
    }
  }
}

TEST(Threads, ManySmallRegionsInARow) {
  Context context({4});
  std::atomic<std::int64_t> sum = 0;
  for (int region = 0; region < 20000; ++region) {
    context.parallel(5, [&](std::int64_t task) { sum.fetch_add(task, std::memory_order_relaxed); });
  }
  EXPECT_EQ(sum.load(), 20000 * 10);
}

TEST(Threads, NestedRegionsRunInTheirTask) {
  Context outer({3});
  std::atomic<int> runs = 0;
  outer.parallel(6, [&](std::int64_t) {
    const std::thread::id caller = std::this_thread::get_id();
    Context inner({3});
    inner.parallel(4, [&](std::int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      runs.fetch_add(1);
    });
  });
  EXPECT_EQ(runs.load(), 24);
}

TEST(Threads, SeveralCallersShareThePool) {
  std::atomic<std::int64_t> runs = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      Context context({2});
      for (int region = 0; region < 500; ++region) context.parallel(8, [&](std::int64_t) { runs.fetch_add(1); });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(runs.load(), 4 * 500 * 8);
}

TEST(Threads, TheCallersPoolIsUsed) {
  struct Host {
    int calls = 0;
  } host;
  const ParallelFor serial = [](void* pool, std::int64_t tasks, void (*fn)(void*, std::int64_t), void* context) {
    ++static_cast<Host*>(pool)->calls;
    for (std::int64_t task = tasks; task-- > 0;) fn(context, task);
  };
  Context context({2, serial, &host});
  std::vector<std::int64_t> order;
  context.parallel(3, [&](std::int64_t task) { order.push_back(task); });
  EXPECT_EQ(host.calls, 1);
  EXPECT_EQ(order, (std::vector<std::int64_t>{2, 1, 0}));
}

TEST(Threads, AForkedChildStillRunsEveryTask) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer forbids threads in a forked child";
#endif
  Context context({2});
  context.parallel(4, [](std::int64_t) {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> runs = 0;
    context.parallel(16, [&](std::int64_t) { runs.fetch_add(1); });
    _exit(runs.load() == 16 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Context, ScratchIsAlignedAndKeepsItsMemory) {
  Context context({1});
  std::byte* first = context.scratch(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0U);
  EXPECT_EQ(context.scratch(10), first);
  std::byte* staging = context.staging(100);
  EXPECT_NE(staging, first);
  EXPECT_EQ(context.scratch(100), first);
}

TEST(Context, RefusesANegativeThreadCount) { EXPECT_THROW(Context({-1}), InvalidArgument); }

}  // namespace
}  // namespace scaledmm
