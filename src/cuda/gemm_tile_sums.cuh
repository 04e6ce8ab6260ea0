// The ring of a CTA of gemm_tile, and the sums of one consumer warpgroup over its blocks of K.
#pragma once

#include <cstdint>

#include "cuda/sm90_async.cuh"
#include "cuda/sm90_wgmma.cuh"

namespace scaledmm::cuda {

// A tile of 128 rows of x by 128 or 64 rows of w, shared by two consumer warpgroups, or (kTurns) taken by them in turn.
// kTwoRuns: the sums are those of two runs of K; the first run's wait in the same place, partly where outputs are
// staged.
template <int kPromotionInterval, bool kTakeTurns, bool kInTwoRuns, int kTileColumns>
struct TileShape {
  static constexpr int kInterval = kPromotionInterval;
  static constexpr bool kTurns = kTakeTurns, kTwoRuns = kInTwoRuns;
  static constexpr int kRows = 128, kColumns = kTileColumns;
  static constexpr int kCount = kColumns / 2;  // accumulators a thread for 64 rows
  static constexpr int kStages = kTwoRuns ? 5 : kColumns == 64 ? 8 : 6;
  static constexpr int kThreads = 384;
  // Of the 65536 of an SM, in eights a thread.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static constexpr int kHalves = kTurns ? 2 : 1;  // blocks of 64 rows that a warpgroup holds
  static constexpr int kRowBytes = 128;           // of K, one byte each
  static constexpr int kXBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kColumns * kRowBytes;
  static constexpr int kStagingBytes = 64 * 64 * 2;  // one box of outputs
  // Of a consumer warpgroup: its sums, or two boxes.
  static constexpr int kGroupBytes = kTwoRuns ? 64 * kColumns * 4 : 2 * kStagingBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kPartialPitch = kColumns + 8;  // words; 8 spreads the fragments' rows over the banks
  // Blocks of K that a CTA takes at a time. Where two accumulators take turns their number is even: a block behind K is
  // all zeros and adds nothing.
  static constexpr int kUnit = kInterval == 1 ? 2 : 1;
  static constexpr int kTermsBytes = kColumns * 8;  // scale and bias of each column, for each consumer warpgroup
  static constexpr int kSharedBytes = kRingBytes + 2 * (kGroupBytes + kTermsBytes) + 8 * 2 * kStages;
  static_assert(kSharedBytes <= 232448);
  static_assert(kInterval == 0 || (kInterval == 1 && !kTurns));
  static_assert(!kTwoRuns || kInterval == 1);
  static_assert(kRows * kPartialPitch * 4 <= kRingBytes);
};

template <typename Shape>
struct TileRing {
  std::uint32_t base;      // of the stages
  std::uint32_t barriers;  // full[kStages], empty[kStages]
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ std::uint32_t full() const { return barriers + 8 * stage; }
  __device__ __forceinline__ std::uint32_t empty() const { return barriers + 8 * (Shape::kStages + stage); }
  __device__ __forceinline__ std::uint32_t x() const { return base + stage * Shape::kStageBytes; }
  __device__ __forceinline__ std::uint32_t w() const { return base + stage * Shape::kStageBytes + Shape::kXBytes; }
  __device__ __forceinline__ void next() {
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(int count) {
    stage += count;
    parity ^= stage / Shape::kStages & 1;
    stage %= Shape::kStages;
  }
};

// Sums of one warpgroup over the blocks [begin, end) of K. `leader` frees the stages.
template <typename Sum, typename Shape>
struct TileConsumer {
  using Ring = TileRing<Shape>;
  static constexpr int kHalves = Shape::kHalves, kInterval = Shape::kInterval, kCount = Shape::kCount;

  // kTurns: a warpgroup may read the ring only after the other has waited for all stages before: the parity of a
  // barrier tells neighbouring phases apart, not more. Barriers kTurnBarrier + group let it begin.
  static constexpr int kTurnBarrier = 4;

  Ring ring;
  int group;
  bool leader;
  std::uint32_t stash;  // this thread's first 16 bytes of the sums in shared memory, where there are any

  __device__ __forceinline__ void wait_full() const { sm90::wait_barrier(ring.full(), ring.parity); }
  __device__ __forceinline__ void release(const Ring& r) const {
    if (leader) sm90::arrive(r.empty());
  }

  // d (+)= rows of half `half` by the tile of w, one block of K. Left open: the caller commits.
  __device__ __forceinline__ void multiply(Sum (&d)[kCount], const Ring& r, int half, int add) const {
    const std::uint64_t a = sm90::matrix_descriptor(r.x() + (Shape::kTurns ? half : group) * 8192);
    const std::uint64_t b = sm90::matrix_descriptor(r.w());
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sm90::wgmma(d, a + j * sm90::kNextK, b + j * sm90::kNextK, j == 0 ? add : 1);
    }
  }

  __device__ __forceinline__ void begin(Sum (&d)[kCount]) const {
    sm90::pin(d);
    sm90::wgmma_fence();
  }

  static __device__ __forceinline__ void add_to(Sum (&total)[kCount], Sum (&d)[kCount]) {
    sm90::pin(d);
#pragma unroll
    for (int i = 0; i < kCount; ++i) total[i] += d[i];
  }

  // Never promoted: the accumulators run over all of K, one block behind the barrier.
  __device__ __forceinline__ void run_direct(Sum (&sums)[kHalves][kCount], int blocks) {
    Ring previous = ring;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) sm90::pin(sums[h]);
    for (int k = 0; k < blocks; ++k) {
      wait_full();
      sm90::wgmma_fence();
#pragma unroll
      for (int h = 0; h < kHalves; ++h) multiply(sums[h], ring, h, k > 0);
      sm90::wgmma_commit();
      sm90::wgmma_wait<1>();
      if (k > 0) release(previous);
      previous = ring;
      ring.next();
    }
    if constexpr (Shape::kTurns) sm90::arrive_threads(kTurnBarrier + (group ^ 1), 256);
    sm90::wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < kHalves; ++h) sm90::pin(sums[h]);
    release(previous);
  }

  // Two accumulators in turn: one is added while the tensor core fills the other. kPairs pairs of blocks in
  // straight code: left open across a loop, the pipeline is serialised by the compiler (C7514). At its end the other
  // warpgroup fills the gap.
  template <int kPairs>
  __device__ __forceinline__ void run_in_turn(Sum (&sums)[kCount]) {
    Sum even[kCount], odd[kCount];
    Ring previous = ring;
    wait_full();
    begin(even);
    multiply(even, ring, 0, 0);
    sm90::wgmma_commit();
    ring.next();
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      wait_full();
      begin(odd);
      multiply(odd, ring, 0, 0);
      sm90::wgmma_commit();
      sm90::wgmma_wait<1>();
      release(previous);
      add_to(sums, even);
      previous = ring;
      ring.next();
      if (pair + 1 == kPairs) break;
      wait_full();
      begin(even);
      multiply(even, ring, 0, 0);
      sm90::wgmma_commit();
      sm90::wgmma_wait<1>();
      release(previous);
      add_to(sums, odd);
      previous = ring;
      ring.next();
    }
    sm90::wgmma_wait<0>();
    release(previous);
    add_to(sums, odd);
  }

  // `blocks` is a multiple of Shape::kUnit.
  __device__ __forceinline__ void run_promoted(Sum (&sums)[kCount], int blocks) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = 0;
    int k = 0;
    for (; k + 16 <= blocks; k += 16) run_in_turn<8>(sums);
    for (; k + 8 <= blocks; k += 8) run_in_turn<4>(sums);
    for (; k + 4 <= blocks; k += 4) run_in_turn<2>(sums);
    for (; k < blocks; k += 2) run_in_turn<1>(sums);
  }

  static constexpr int kStashStep = 128 * 16;  // bytes from one quadruple of a thread's sums to the next

  __device__ __forceinline__ void put_aside(const Sum (&sums)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      const Sum* four = &sums[4 * i];
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(stash + i * kStashStep), "f"(four[0]), "f"(four[1]),
                   "f"(four[2]), "f"(four[3])
                   : "memory");
    }
  }

  static __device__ __forceinline__ void take(Sum (&four)[4], std::uint32_t address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]), "=f"(four[3])
                 : "r"(address)
                 : "memory");
  }

  __device__ __forceinline__ void add_stashed(Sum (&sums)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      Sum four[4];
      take(four, stash + i * kStashStep);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[4 * i + j] = four[j] + sums[4 * i + j];
    }
  }

  // Two runs, each from zero; `make_room` lets the first's sums be put aside. One copy of the code for both: a CTA that
  // has a single tile runs it cold, and a second copy of 28 KB took 5 us of 57 (512,4096,14336).
  template <typename MakeRoom>
  __device__ __forceinline__ void run_twice(Sum (&sums)[kCount], int blocks, int middle, MakeRoom make_room) {
#pragma unroll 1
    for (int r = 0; r < 2; ++r) {
      run_promoted(sums, r == 0 ? middle : blocks - middle);
      if (r > 0) break;
      make_room();
      put_aside(sums);
    }
    add_stashed(sums);
  }

  // Sums that this warpgroup stores itself. kTwoRuns: the copy engine may still read outputs of the last tile from
  // where the first run's sums go: `barrier` is the warpgroup's.
  __device__ __forceinline__ void run(Sum (&sums)[kHalves][kCount], int blocks, int middle, int barrier) {
    if constexpr (kInterval == 0) {
      run_direct(sums, blocks);
    } else if constexpr (!Shape::kTwoRuns) {
      run_promoted(sums[0], blocks);
    } else {
      run_twice(sums[0], blocks, middle, [&] {
        if (leader) sm90::wait_stores_read<0>();
        sm90::sync_threads(barrier, 128);
      });
    }
  }
};

}  // namespace scaledmm::cuda
