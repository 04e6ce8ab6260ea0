// What the emulation's tests share: random vectors, lanes, and comparison lane by lane.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <type_traits>

#include "x86_emulated.hpp"

namespace scaledmm::emulated {
namespace {

[[maybe_unused]] std::mt19937_64& random_bits() {
  static std::mt19937_64 generator(20261130);
  return generator;
}

template <class T, class V>
std::array<T, sizeof(V) / sizeof(T)> lanes_of(const V& a) {
  std::array<T, sizeof(V) / sizeof(T)> r;
  std::memcpy(r.data(), &a, sizeof(V));
  return r;
}
template <class V, class T>
V vector_of(const T& lanes) {
  static_assert(sizeof(T) == sizeof(V));
  V r;
  std::memcpy(&r, &lanes, sizeof(V));
  return r;
}
template <class V>
V random_vector() {
  std::array<std::uint64_t, sizeof(V) / 8> r;
  for (auto& word : r) word = random_bits()();
  return vector_of<V>(r);
}
// Floats of ordinary size, of any bits, or around the smallest normal number.
[[maybe_unused]] float random_float(int kind) {
  const auto bits = static_cast<std::uint32_t>(random_bits()());
  if (kind == 0) return std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)), -28);
  if (kind == 1) return __builtin_bit_cast(float, bits);
  return __builtin_bit_cast(float, (bits & 0x80FFFFFF) + (bits >> 24 & 3) * 0x00800000);
}
template <class V>
V random_floats(int kind) {
  std::array<float, sizeof(V) / 4> r;
  for (float& lane : r) lane = random_float(kind);
  return vector_of<V>(r);
}
[[maybe_unused]] bool same(float a, float b) {
  return (a != a && b != b) || __builtin_bit_cast(std::uint32_t, a) == __builtin_bit_cast(std::uint32_t, b);
}

template <class T, class V, class Scalar>
void expect_lanes(const V& result, Scalar scalar, const char* what) {
  const auto r = lanes_of<T>(result);
  for (std::size_t i = 0; i < r.size(); ++i) {
    if constexpr (std::is_same_v<T, float>) {
      ASSERT_TRUE(same(r[i], scalar(i))) << what << " lane " << i << ": " << r[i] << " not " << scalar(i);
    } else {
      ASSERT_EQ(r[i], static_cast<T>(scalar(i))) << what << " lane " << i;
    }
  }
}

// One fused multiply-add of this machine with denormals taken for and turned into zero.
[[maybe_unused]] float flushing_fma(float a, float b, float c) {
  const std::uint32_t saved = _mm_getcsr(), flushing = 0x1F80 | 0x8040;
  asm volatile("ldmxcsr %[flushing]\n\tvfmadd231ss %[b], %[a], %[c]\n\tldmxcsr %[saved]"
               : [c] "+x"(c)
               : [a] "x"(a), [b] "x"(b), [flushing] "m"(flushing), [saved] "m"(saved));
  return c;
}
[[maybe_unused]] float upper_bfloat16(std::uint32_t pair) { return __builtin_bit_cast(float, pair & 0xFFFF0000); }
[[maybe_unused]] float lower_bfloat16(std::uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }

[[maybe_unused]] void expect_bfloat16_dot(__m512 c, __m512bh a, __m512bh b) {
  const auto start = lanes_of<float>(c);
  const auto x = lanes_of<std::uint32_t>(a), y = lanes_of<std::uint32_t>(b);
  const auto expected = [&](std::size_t i) {
    const float odd = flushing_fma(upper_bfloat16(x[i]), upper_bfloat16(y[i]), start[i]);
    return flushing_fma(lower_bfloat16(x[i]), lower_bfloat16(y[i]), odd);
  };
  expect_lanes<float>(_mm512_dpbf16_ps(c, a, b), expected, "512");
  expect_lanes<float>(_mm256_dpbf16_ps(c.lo, (__m256bh)a.lo, (__m256bh)b.lo), expected, "256");
  expect_lanes<float>(
      _mm512_maskz_dpbf16_ps(0xF00F, c, a, b), [&](std::size_t i) { return 0xF00F >> i & 1 ? expected(i) : 0.0f; },
      "maskz");
}

}  // namespace
}  // namespace scaledmm::emulated
