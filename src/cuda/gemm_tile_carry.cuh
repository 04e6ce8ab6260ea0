// Promoted FP8 sums without a pause of the tensor core: a consumer warpgroup carries the finished sums of a tile into
// the next one and stores them while that tile's first blocks of K are multiplied already. kRuns = 2 (gemm.hpp): the
// sums of the first run are put aside in the same way. A warp of the producer's warpgroup fetches the scales.
#pragma once

#include "cuda/gemm_epilogue.cuh"
#include "cuda/gemm_tile_producer.cuh"
#include "cuda/gemm_tile_sums.cuh"
#include "cuda/sm90_async.cuh"

namespace scaledmm::cuda {

template <int kTileColumns, int kRuns>
struct CarryShape {
  static constexpr int kInterval = 1;
  static constexpr bool kTurns = false;
  static constexpr int kRows = 128, kColumns = kTileColumns;
  static constexpr int kCount = kColumns / 2;  // accumulators a thread for 64 rows
  static constexpr int kStages = kRuns == 2 ? 5 : 6, kThreads = 384, kUnit = 2;
  static constexpr int kHalves = 1;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static constexpr int kRowBytes = 128;
  static constexpr int kXBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kColumns * kRowBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kBoxRows = 16, kBoxColumns = 64;  // of outputs, stored by one warp
  static constexpr int kBoxBytes = kBoxRows * kBoxColumns * 2;
  static constexpr int kBoxes = (kColumns + kBoxColumns - 1) / kBoxColumns;
  // Of a warp: boxes of outputs, or where there are two runs the sums of the first.
  static constexpr int kWarpBytes = kRuns == 2 ? kCount * 32 * 4 : kBoxes * kBoxBytes;
  static constexpr int kStagingBytes = 8 * kWarpBytes;
  static constexpr int kTermsBytes = kColumns * 8 + kRows * 4;  // scale and bias of columns, scale of rows
  static constexpr int kSharedBytes = kRingBytes + kStagingBytes + kTermsBytes + 8 * (2 * kStages + 2);
  static_assert(kSharedBytes <= 232448 && kStageBytes % 1024 == 0);
};

// kFirst: pairs of blocks of K in the straight code at the beginning of a run, which must have as many: 2 (and 2 in the
// rest: 20 KB of code, for K so short that a tile runs all of it but once), or 8.
template <int kTileColumns, int kFirst, int kRuns>
struct CarryKernel {
  using Shape = CarryShape<kTileColumns, kRuns>;
  using Tile = TilePlace;
  using Ring = TileRing<Shape>;
  using Consumer = TileConsumer<float, Shape>;
  static constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns, kCount = Shape::kCount;

  // Shared memory behind the ring.
  struct Places {
    std::uint32_t staging, terms, terms_full, terms_free;
  };

  static __device__ __forceinline__ void fetch_terms(const TileProblem& p, const Places& at) {
    const GemmEpilogue& e = p.epilogue;
    const int lane = threadIdx.x % 32;
    sm90::wait_for_previous_kernel();
    int turn = 0;
    for (int t = blockIdx.x; t < p.tiles_m * p.tiles_n; t += gridDim.x, ++turn) {
      const Tile tile = tile_at(p, t);
      sm90::wait_barrier(at.terms_free, turn & 1 ^ 1);
#pragma unroll 2
      for (int local = lane; local < kColumns; local += 32) {
        const ColumnTerms column = column_terms(e, tile.n * kColumns + local);
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at.terms + local * 8), "f"(column.scale), "f"(column.bias)
                     : "memory");
      }
#pragma unroll 2
      for (int local = lane; local < kRows; local += 32) {
        const float scale = row_terms(e, tile.m * kRows + local).scale;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(at.terms + kColumns * 8 + local * 4), "f"(scale) : "memory");
      }
      sm90::arrive(at.terms_full);
    }
  }

  // This warp's 16 rows of a tile. staging: of this warp.
  static __device__ __forceinline__ void store(const TileProblem& p, const CUtensorMap* map_y, const Places& at,
                                               std::uint32_t staging, const float (&sums)[kCount], const Tile& tile,
                                               int turn, int local_row) {
    const GemmEpilogue& e = p.epilogue;
    const int lane = threadIdx.x % 32;
    sm90::wait_barrier(at.terms_full, turn & 1);
    if (lane == 0) sm90::wait_stores_read<0>();
    __syncwarp();
    RowTerms rows[2]{};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      asm volatile("ld.shared.f32 %0, [%1];"
                   : "=f"(rows[h].scale)
                   : "r"(at.terms + kColumns * 8 + (local_row + lane / 4 + 8 * h) * 4)
                   : "memory");
    }
    const int stage_row = (lane / 8 & 1) * 8 + lane % 8;
#pragma unroll
    for (int box = 0; box < Shape::kBoxes; ++box) {
      // The last box may overlap the one before it: those columns are written twice, with equal values.
      constexpr int kLast = kColumns - Shape::kBoxColumns;
      const int first = box * Shape::kBoxColumns < kLast ? box * Shape::kBoxColumns : kLast;
      const std::uint32_t buffer = staging + box * Shape::kBoxBytes;
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        std::uint32_t words[4];
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          float4 pair;
          asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                       : "=f"(pair.x), "=f"(pair.y), "=f"(pair.z), "=f"(pair.w)
                       : "r"(at.terms + (first + 8 * (i + block) + 2 * (lane % 4)) * 8));
          const ColumnTerms c0{pair.x, pair.y, 0}, c1{pair.z, pair.w, 0};
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int d = first / 2 + 4 * (i + block) + 2 * h;
            words[2 * block + h] =
                pack_pair(e.y_type, rescale<false>(sums[d], rows[h], c0), rescale<false>(sums[d + 1], rows[h], c1));
          }
        }
        const std::uint32_t address = buffer + stage_row * 128 + ((i + lane / 16) ^ (stage_row & 7)) * 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
                     "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
      }
      sm90::fence_shared_for_async();
      __syncwarp();
      if (lane == 0) sm90::store_box(map_y, buffer, tile.n * kColumns + first, tile.m * kRows + local_row);
    }
    if (lane == 0) sm90::arrive(at.terms_free);
    __syncwarp();
  }

  // This thread's sums of the first run of K; mine: of its warp.
  static __device__ __forceinline__ void put_aside(const float (&sums)[kCount], std::uint32_t mine) {
    const int lane = threadIdx.x % 32;
    if (lane == 0) sm90::wait_stores_read<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mine + i * 128 + lane * 16), "f"(sums[i]),
                   "f"(sums[i + 1]), "f"(sums[i + 2]), "f"(sums[i + 3])
                   : "memory");
    }
  }

  static __device__ __forceinline__ void add_first_run(float (&sums)[kCount], std::uint32_t mine) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      float four[4];
      Consumer::take(four, mine + i * 128 + threadIdx.x % 32 * 16);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i + j] = four[j] + sums[i + j];
    }
    __syncwarp();
  }

  // One block of K into `next` while `done`, the block before it, is added.
  static __device__ __forceinline__ void step(Consumer& c, Ring& previous, float (&sums)[kCount], float (&next)[kCount],
                                              float (&done)[kCount]) {
    issue(c, next);
    sm90::wgmma_wait<1>();
    c.release(previous);
    c.add_to(sums, done);
    previous = c.ring;
    c.ring.next();
  }

  static __device__ __forceinline__ void issue(Consumer& c, float (&d)[kCount]) {
    c.wait_full();
    multiply(c, d);
  }

  static __device__ __forceinline__ void multiply(Consumer& c, float (&d)[kCount]) {
    c.begin(d);
    c.multiply(d, c.ring, 0, 0);
    sm90::wgmma_commit();
  }

  // 2 * kPairs blocks of K in straight code (TileConsumer::run_in_turn). The last one stays in `odd`, finished but not
  // added: that is left to the next chunk, whose first block is multiplied meanwhile. kBegins: a run; sums are those of
  // the run before, complete, and `carry` takes them while two blocks are multiplied.
  template <int kPairs, bool kBegins, typename Carry>
  static __device__ __forceinline__ void run_chunk(Consumer& c, float (&sums)[kCount], float (&even)[kCount],
                                                   float (&odd)[kCount], Carry carry) {
    Ring previous = c.ring;
    issue(c, even);
    c.ring.next();
    c.wait_full();
    if constexpr (!kBegins) c.add_to(sums, odd);
    multiply(c, odd);
    if constexpr (kBegins) {
      carry();
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] = 0;
    }
    sm90::wgmma_wait<1>();
    c.release(previous);
    c.add_to(sums, even);
    previous = c.ring;
    c.ring.next();
#pragma unroll
    for (int pair = 1; pair < kPairs; ++pair) {
      step(c, previous, sums, even, odd);
      step(c, previous, sums, odd, even);
    }
    sm90::wgmma_wait<0>();
    sm90::pin(odd);
    c.release(previous);
  }

  static __device__ __forceinline__ void consume(const TileProblem& p, const Ring& fresh, const CUtensorMap* map_y,
                                                 const Places& at) {
    const int group = sm90::warpgroup() - 1;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0) - 4;
    Consumer c{fresh, group, threadIdx.x % 128 == 0, 0};
    const std::uint32_t mine = at.staging + warp * Shape::kWarpBytes;
    float sums[kCount], even[kCount], odd[kCount];
    sm90::wait_for_previous_kernel();
    const auto store_tile = [&](int t, int turn) {
      if constexpr (kRuns == 2) add_first_run(sums, mine);
      store(p, map_y, at, mine, sums, tile_at(p, t), turn, warp * 16);
    };
    int turn = 0, t = blockIdx.x;
    for (; t < p.tiles_m * p.tiles_n; t += gridDim.x, ++turn) {
#pragma unroll 1
      for (int r = 0; r < kRuns; ++r) {
        int blocks = (kRuns == 1 ? p.k_units : r == 0 ? p.middle : p.k_units - p.middle) * Shape::kUnit;
        run_chunk<kFirst, true>(c, sums, even, odd, [&] {
          if (r > 0) {
            put_aside(sums, mine);
          } else if (turn > 0) {
            store_tile(t - gridDim.x, turn - 1);
          }
        });
        blocks -= 2 * kFirst;
        const auto chunk = [&](auto pairs) {
          for (; blocks >= 2 * pairs.value; blocks -= 2 * pairs.value) {
            run_chunk<pairs.value, false>(c, sums, even, odd, [] {});
          }
        };
        if constexpr (kFirst == 8) {
          chunk(std::integral_constant<int, 8>{});
          chunk(std::integral_constant<int, 4>{});
        }
        chunk(std::integral_constant<int, 2>{});
        chunk(std::integral_constant<int, 1>{});
        c.add_to(sums, odd);
      }
    }
    store_tile(t - gridDim.x, turn - 1);
    if (threadIdx.x % 32 == 0) sm90::wait_stores_read<0>();
  }

  static __device__ __forceinline__ void run(const TileProblem& p, const CUtensorMap* map_x, const CUtensorMap* map_w,
                                             const CUtensorMap* map_y) {
    extern __shared__ __align__(1024) char shared[];
    const std::uint32_t base = sm90::shared_address(shared);
    const std::uint32_t terms = base + Shape::kRingBytes + Shape::kStagingBytes;
    const Ring ring{base, terms + Shape::kTermsBytes};
    const std::uint32_t behind = ring.barriers + 8 * 2 * Shape::kStages;
    const Places at{base + Shape::kRingBytes, terms, behind, behind + 8};
    if (threadIdx.x == 0) {
      if (base % 1024 != 0) __trap();  // tiles under the 128-byte swizzle begin at multiples of 1024
      sm90::prefetch_map(map_x);
      sm90::prefetch_map(map_w);
      sm90::prefetch_map(map_y);
      for (int s = 0; s < Shape::kStages; ++s) {
        sm90::init_barrier(ring.barriers + 8 * s, 1);
        sm90::init_barrier(ring.barriers + 8 * (Shape::kStages + s), 2);
      }
      sm90::init_barrier(at.terms_full, 32);
      sm90::init_barrier(at.terms_free, 8);
      sm90::fence_barrier_init();
    }
    __syncthreads();
    sm90::launch_dependents();
    if (threadIdx.x < 128) {
      sm90::give_registers<Shape::kProducerRegisters>();
      if (threadIdx.x == 0) TileProducer<Shape>::run(p, ring, map_x, map_w, 0);
      if (threadIdx.x >= 96) fetch_terms(p, at);
    } else {
      sm90::take_registers<Shape::kConsumerRegisters>();
      consume(p, ring, map_y, at);
    }
  }
};

template <int kTileColumns, int kFirst, int kRuns>
__global__ void __launch_bounds__(384, 1)
    gemm_tile_carry(const __grid_constant__ TileProblem problem, const __grid_constant__ CUtensorMap map_x,
                    const __grid_constant__ CUtensorMap map_w, const __grid_constant__ CUtensorMap map_y) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  CarryKernel<kTileColumns, kFirst, kRuns>::run(problem, &map_x, &map_w, &map_y);
#endif
}

}  // namespace scaledmm::cuda
