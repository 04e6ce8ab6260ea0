// Work dealt to threads: every item once, whoever is late, and a thread's own share first.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "kernels/cpu/huge_buffer.hpp"
#include "kernels/cpu/shares.hpp"

namespace scaledmm {
namespace {

TEST(Shares, EveryItemRunsOnceOnAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 7}) {
    Context context(Threading{.threads = threads});
    for (const std::int64_t items : {1, 2, 5, 64, 1001}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(items));
      const Shares shares(items, threads, context.scratch(Shares::bytes(threads)));
      context.parallel(threads, [&](std::int64_t) {
        shares.run([&](std::int64_t item) { ++runs[static_cast<std::size_t>(item)]; });
      });
      for (const std::atomic<int>& count : runs) ASSERT_EQ(count, 1) << threads << " threads, " << items << " items";
    }
  }
}

TEST(Shares, OneThreadTakesItsOwnShareFirstAndThenTheRest) {
  alignas(Shares::kAlignment) std::byte memory[4 * Shares::kAlignment];
  ASSERT_LE(Shares::bytes(4), static_cast<std::int64_t>(sizeof memory));
  const Shares shares(10, 4, memory);
  std::vector<std::int64_t> order;
  shares.run([&](std::int64_t item) { order.push_back(item); });
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  shares.run([&](std::int64_t item) { ADD_FAILURE() << item << " ran twice"; });
}

TEST(Shares, APoolThreadKeepsItsNumber) {
  Context context(Threading{.threads = 3});
  EXPECT_EQ(pool_thread_index(), 0);
  for (int round = 0; round < 20; ++round) {
    context.parallel(3, [](std::int64_t) {
      static thread_local const int first = pool_thread_index();
      EXPECT_EQ(pool_thread_index(), first);
      EXPECT_LT(first, 3);
    });
  }
}

TEST(HugeBuffer, IsZeroAndAlignedInEverySize) {
  for (const std::int64_t bytes : {1, 63, 64, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5 << 20}) {
    HugeBuffer buffer(bytes);
    const auto* data = buffer.as<std::uint8_t>();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % (bytes >= 2 << 20 ? 2 << 20 : 64), 0u) << bytes;
    EXPECT_EQ(std::count(data, data + bytes, 0), bytes);
    HugeBuffer moved = std::move(buffer);
    EXPECT_EQ(moved.as<std::uint8_t>(), data);
    EXPECT_EQ(buffer.as<std::uint8_t>(), nullptr);  // NOLINT(bugprone-use-after-move): a moved buffer is empty
  }
}

}  // namespace
}  // namespace scaledmm
