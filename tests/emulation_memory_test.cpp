// Emulated loads and stores: which bytes they touch, and what they refuse.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

#include "emulation_values.hpp"

namespace scaledmm::emulated {
namespace {

// ---- memory ----

// `size` bytes that end where an unmapped page begins, and begin where one ends.
class GuardedPage : public ::testing::Test {
 protected:
  static constexpr std::size_t kPage = 4096;
  void SetUp() override {
    base_ = static_cast<char*>(mmap(nullptr, 3 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_EQ(mprotect(base_ + kPage, kPage, PROT_READ | PROT_WRITE), 0);
    for (std::size_t i = 0; i < kPage; ++i) first()[i] = static_cast<char>(i * 7 + 1);
  }
  void TearDown() override { munmap(base_, 3 * kPage); }
  char* first() { return base_ + kPage; }
  char* end() { return base_ + 2 * kPage; }

 private:
  char* base_ = nullptr;
};

template <class T, class Load, class Store>
void check_masked_memory(char* first, char* end, int lanes, Load load, Store store) {
  for (int n = 0; n <= lanes; ++n) {
    const std::uint64_t low = n == 64 ? ~0ull : (1ull << n) - 1, high = low << (lanes - n) % 64;
    const char* p = end - n * static_cast<int>(sizeof(T));
    const auto v = load(n == 0 ? 0 : low, p);
    const auto x = lanes_of<T>(v);
    for (int i = 0; i < lanes; ++i) {
      T expected{};
      if (i < n) std::memcpy(&expected, p + i * static_cast<int>(sizeof(T)), sizeof(T));
      EXPECT_EQ(std::memcmp(&x[static_cast<std::size_t>(i)], &expected, sizeof(T)), 0) << n << " " << i;
    }
    load(n == 0 ? 0 : high, first - (lanes - n) * static_cast<int>(sizeof(T)));
    store(end - n * static_cast<int>(sizeof(T)), low, v);
  }
}
TEST_F(GuardedPage, MaskedMemoryTouchesOnlyTheLanesInTheMask) {
#define CHECK_MEMORY(P, T, lanes, type)                                                                   \
  check_masked_memory<T>(                                                                                 \
      first(), end(), lanes, [](std::uint64_t k, const void* p) { return P##_maskz_loadu_##type(k, p); }, \
      [](void* p, std::uint64_t k, auto v) { P##_mask_storeu_##type(p, k, v); })
  CHECK_MEMORY(_mm512, std::int8_t, 64, epi8);
  CHECK_MEMORY(_mm512, std::int16_t, 32, epi16);
  CHECK_MEMORY(_mm512, std::int32_t, 16, epi32);
  CHECK_MEMORY(_mm512, std::int64_t, 8, epi64);
  CHECK_MEMORY(_mm512, float, 16, ps);
  CHECK_MEMORY(_mm256, std::int8_t, 32, epi8);
  CHECK_MEMORY(_mm256, std::int32_t, 8, epi32);
  CHECK_MEMORY(_mm256, float, 8, ps);
  CHECK_MEMORY(_mm, std::int8_t, 16, epi8);
  CHECK_MEMORY(_mm, std::int16_t, 8, epi16);
#undef CHECK_MEMORY
  const auto kept = lanes_of<std::int8_t>(_mm512_mask_loadu_epi8(_mm512_set1_epi8(9), 3, end() - 2));
  EXPECT_EQ(kept[2], 9);
  const char before = *(end() - 1);
  _mm512_mask_storeu_epi8(end() - 64, ~0ull >> 1, _mm512_set1_epi8(0));
  EXPECT_EQ(*(end() - 1), before);
  EXPECT_EQ(*(end() - 2), 0);
}
TEST_F(GuardedPage, CompressAndExpandTouchOnlyWhatTheyMove) {
  const __m512i counting = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  _mm512_mask_compressstoreu_epi32(end() - 8, 0x8010, counting);
  std::array<std::int32_t, 2> stored;
  std::memcpy(stored.data(), end() - 8, 8);
  EXPECT_EQ(stored[0], 4);
  EXPECT_EQ(stored[1], 15);
  const auto back = lanes_of<std::int32_t>(_mm512_maskz_expandloadu_epi32(0x8010, end() - 8));
  EXPECT_EQ(back[4], 4);
  EXPECT_EQ(back[15], 15);
  EXPECT_EQ(back[0], 0);
}

TEST(EmulationDeath, AlignedFormsAbortOnMisalignedAddresses) {
  alignas(64) std::array<char, 192> bytes{};
  EXPECT_DEATH(_mm512_load_si512(bytes.data() + 32), "misaligned");
  EXPECT_DEATH(_mm512_store_ps(bytes.data() + 4, _mm512_setzero_ps()), "misaligned");
  EXPECT_DEATH(_mm512_stream_si512(bytes.data() + 16, _mm512_setzero_si512()), "misaligned");
  EXPECT_DEATH(_mm512_maskz_load_epi32(0, bytes.data() + 1), "misaligned");
  EXPECT_DEATH(_mm256_maskz_load_ps(1, bytes.data() + 16), "misaligned");
  EXPECT_EQ(_mm512_cvtsi512_si32(_mm512_load_si512(bytes.data() + 64)), 0);
  EXPECT_EQ(_mm512_cvtsi512_si32(_mm512_loadu_si512(bytes.data() + 1)), 0);
}

TEST(Emulation, GathersReadWhatTheIndexNames) {
  std::array<std::int32_t, 64> table;
  for (int i = 0; i < 64; ++i) table[static_cast<std::size_t>(i)] = i * 100;
  const auto index = _mm512_setr_epi32(0, -1, 2, 3, 60, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 20);
  const auto at = lanes_of<std::int32_t>(index);
  expect_lanes<std::int32_t>(
      _mm512_i32gather_epi32(index, table.data() + 1, 4), [&](std::size_t i) { return (at[i] + 1) * 100; }, "gather");
  const auto far = _mm512_setr_epi32(0, 1 << 30, 2, 1 << 30, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  expect_lanes<std::int32_t>(
      _mm512_mask_i32gather_epi32(_mm512_set1_epi32(-7), 0xFFF5, far, table.data(), 4),
      [](std::size_t i) { return i == 1 || i == 3 ? -7 : static_cast<int>(i) * 100; }, "masked gather");
}

}  // namespace
}  // namespace scaledmm::emulated
