// Probes: loops of independent multiply-adds whose operands never leave the registers. Accumulators pass through an
// empty assembly statement, so that the compiler can neither drop nor merge a step.
#include "cli/machine_peak.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "cli/amx_registers.hpp"
#include "device/target.hpp"
#include "kernels/cpu/huge_buffer.hpp"
#include "scaledmm/device.hpp"

namespace scaledmm::cli {
namespace {

constexpr int kSteps = 20000;  // of a probe's loop: some 100 microseconds
constexpr int kRepeats = 40;   // the best counts: a neighbour or a low clock only slows down
constexpr std::int64_t kMinBufferBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMaxBufferBytes = std::int64_t{1} << 28;

// ymm: 10 accumulators hide the latency of 5 cycles at two instructions a cycle.
SCALEDMM_TARGET_BEGIN("avx2,fma")
double probe_avx2_int8() {
  __m256i sums[10] = {};
  __m256i x = _mm256_set1_epi16(3);
  for (int step = 0; step < kSteps; ++step) {
    asm volatile("" : "+x"(x));
#pragma GCC unroll 10
    for (int i = 0; i < 10; ++i) {
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(x, x));
      asm volatile("" : "+x"(sums[i]));
      asm volatile("" : "+x"(x));
    }
  }
  return 10.0 * kSteps * 16 * 2;
}

double probe_avx2_float() {
  __m256 sums[10] = {};
  __m256 x = _mm256_set1_ps(0.5f);
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 10
    for (int i = 0; i < 10; ++i) {
      sums[i] = _mm256_fmadd_ps(x, x, sums[i]);
      asm volatile("" : "+x"(sums[i]));
    }
    asm volatile("" : "+x"(x));
  }
  return 10.0 * kSteps * 8 * 2;
}
SCALEDMM_TARGET_END

SCALEDMM_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
double probe_avx512_float() {
  __m512 sums[12] = {};
  __m512 x = _mm512_set1_ps(0.5f);
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) {
      sums[i] = _mm512_fmadd_ps(x, x, sums[i]);
      asm volatile("" : "+v"(sums[i]));
    }
    asm volatile("" : "+v"(x));
  }
  return 12.0 * kSteps * 16 * 2;
}

double probe_avx512_vnni() {
  __m512i sums[12] = {};
  __m512i x = _mm512_set1_epi8(3);
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) {
      sums[i] = _mm512_dpbusd_epi32(sums[i], x, x);
      asm volatile("" : "+v"(sums[i]));
    }
    asm volatile("" : "+v"(x));
  }
  return 12.0 * kSteps * 64 * 2;
}
SCALEDMM_TARGET_END

SCALEDMM_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
double probe_avx512_bf16() {
  __m512 sums[12] = {};
  __m512 ones = _mm512_set1_ps(0.5f);
  __m512bh x;
  std::memcpy(&x, &ones, sizeof(x));
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) {
      sums[i] = _mm512_dpbf16_ps(sums[i], x, x);
      asm volatile("" : "+v"(sums[i]));
    }
    asm volatile("" : "+v"(x));
  }
  return 12.0 * kSteps * 32 * 2;
}
SCALEDMM_TARGET_END

// Tiles 0 to 3 are sums, 4 and 5 operands.
SCALEDMM_TARGET_BEGIN("amx-tile,amx-int8,amx-bf16")
double probe_amx_int8() {
  load_registers<6>();
  for (int step = 0; step < kSteps / 16; ++step) {
    _tile_dpbssd(0, 4, 5);
    _tile_dpbssd(1, 4, 5);
    _tile_dpbssd(2, 4, 5);
    _tile_dpbssd(3, 4, 5);
  }
  _tile_release();
  return 4.0 * (kSteps / 16) * 16 * 16 * 64 * 2;
}

double probe_amx_bf16() {
  load_registers<6>();
  for (int step = 0; step < kSteps / 16; ++step) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  return 4.0 * (kSteps / 16) * 16 * 16 * 32 * 2;
}
SCALEDMM_TARGET_END

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Operations a second of `probe`, on all threads of the context at once.
double rate_of(double (*probe)(), Context& context) {
  double best = 0;
  std::vector<double> ops(static_cast<std::size_t>(context.threads()));
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    context.parallel(context.threads(), [&](std::int64_t task) { ops[static_cast<std::size_t>(task)] = probe(); });
    best = std::max(best, std::accumulate(ops.begin(), ops.end(), 0.0) / seconds_since(start));
  }
  return best;
}

}  // namespace

PeakRates measure_peak(Context& context) {
  const CpuFeatures& cpu = this_cpu().cpu;
  PeakRates rates;
  const auto int8 = [&](bool usable, double (*probe)()) {
    if (usable) rates.int8_ops = std::max(rates.int8_ops, rate_of(probe, context));
  };
  const auto floating = [&](bool usable, double (*probe)()) {
    if (usable) rates.float_ops = std::max(rates.float_ops, rate_of(probe, context));
  };
  int8(cpu.avx2, probe_avx2_int8);
  int8(cpu.avx512 && cpu.avx512_vnni, probe_avx512_vnni);
  int8(cpu.amx_int8, probe_amx_int8);
  floating(cpu.avx2, probe_avx2_float);
  floating(cpu.avx512, probe_avx512_float);
  floating(cpu.avx512 && cpu.avx512_bf16, probe_avx512_bf16);
  floating(cpu.amx_bf16, probe_amx_bf16);
  return rates;
}

double measure_bandwidth(std::int64_t bytes, Context& context) {
  constexpr double kSeconds = 0.15;
  constexpr std::int64_t kStreams = 4;  // of a thread: one alone leaves memory idle between its misses
  const std::int64_t threads = context.threads();
  const std::int64_t words = std::clamp(bytes, kMinBufferBytes, kMaxBufferBytes) / 8 / threads / kStreams;
  HugeBuffer buffer(words * kStreams * threads * 8);
  std::fill_n(buffer.as<std::uint64_t>(), words * kStreams * threads, 1);
  double best = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int repeat = 0; repeat < 3 || seconds_since(begin) < kSeconds; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    context.parallel(threads, [&](std::int64_t task) {
      const std::uint64_t* const data = buffer.as<const std::uint64_t>() + task * words * kStreams;
      std::uint64_t sums[kStreams] = {};
      for (std::int64_t i = 0; i < words; ++i) {
        for (std::int64_t stream = 0; stream < kStreams; ++stream) sums[stream] += data[stream * words + i];
      }
      asm volatile("" : : "r"(sums[0] + sums[1] + sums[2] + sums[3]));
    });
    best = std::max(best, static_cast<double>(words * kStreams * threads * 8) / seconds_since(start));
  }
  return best;
}

}  // namespace scaledmm::cli
