// GEMM of many rows: tiles of 128 rows of x by 128 rows of w (or 64, where few tiles would leave SMs idle), one
// persistent CTA an SM.
//   Warpgroup 0 fetches blocks of 128 of K through the copy engine into a ring; warpgroups 1 and 2 multiply, each half
//   of the rows of a tile, and store through shared memory and the copy engine while the ring fills for the next tile.
//   kTurns: they take whole tiles in turn, so that one stores while the other keeps the tensor core busy. One warpgroup
//   can do so alone only if it never waits to promote sums: INT8, or FP8 with kInterval 0.
// FP8 sums: the tensor core keeps about 13 bits, so its sums of 128 of K are added to f32 registers (kInterval 1; 0:
// never). INT8 sums are exact and never promoted.
// Promoted sums, whose registers leave no room for turns, have gemm_tile_carry.cuh where the copy engine can store y.
// Layers whose sums are those of two runs of K (gemm.hpp): kTwoRuns computes both one after the other, and split = 2
// (none of the other forms) lets the CTAs of a cluster take one run each; then each adds half of the rows over both
// CTAs in the order of K through distributed shared memory.
// Tiles of 256 rows and multicast of operands to pairs of CTAs were tried and were slower; docs/decisions/0002.
#pragma once

#include "cuda/gemm_epilogue.cuh"
#include "cuda/gemm_tile_producer.cuh"
#include "cuda/gemm_tile_sums.cuh"
#include "cuda/sm90_async.cuh"

namespace scaledmm::cuda {

template <typename Sum, int kInterval, bool kTurns, bool kTwoRuns, int kTileColumns>
struct TileKernel {
  using Shape = TileShape<kInterval, kTurns, kTwoRuns, kTileColumns>;
  using Ring = TileRing<Shape>;
  using Consumer = TileConsumer<Sum, Shape>;
  using Producer = TileProducer<Shape>;
  using Tile = TilePlace;
  static constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns, kHalves = Shape::kHalves;
  static constexpr int kCount = Shape::kCount;
  static constexpr int kUnit = Shape::kUnit, kStages = Shape::kStages, kStageBytes = Shape::kStageBytes;
  static constexpr int kRowBytes = Shape::kRowBytes, kXBytes = Shape::kXBytes;
  static constexpr int kStagingBytes = Shape::kStagingBytes, kTermsBytes = Shape::kTermsBytes;
  static constexpr int kConsumers = 256;
  static constexpr int kPartialPitch = Shape::kPartialPitch;
  static constexpr bool kMaySplit = !kTurns && !kTwoRuns && kColumns == 128;

  static __device__ __forceinline__ ColumnTerms load_terms(const GemmEpilogue& e, float scale, float bias, int column) {
    return {scale, bias, e.zx ? __ldg(e.column_sum + min(column, e.n - 1)) : 0};
  }

  // Outputs of 64 rows from `row` on and 64 columns, number `chunk` of the tile's that begin at `column`. thread: of
  // the warpgroup; terms: in shared memory, of the tile's columns; buffer: a staging box that nobody reads or writes.
  template <bool kWide>
  static __device__ __forceinline__ void store_chunk(const TileProblem& p, const CUtensorMap* map_y,
                                                     std::uint32_t buffer, std::uint32_t terms, int barrier,
                                                     const Sum (&sums)[32], const RowTerms (&rows)[2], int row,
                                                     int column, int chunk, int thread) {
    const GemmEpilogue& e = p.epilogue;
    const int warp = thread / 32, lane = thread % 32;
    const auto columns = [&](int local, ColumnTerms& c0, ColumnTerms& c1) {
      float4 pair;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(pair.x), "=f"(pair.y), "=f"(pair.z), "=f"(pair.w)
                   : "r"(terms + local * 8));
      c0 = load_terms(e, pair.x, pair.y, column + local);
      c1 = load_terms(e, pair.z, pair.w, column + local + 1);
    };
    if (p.store_boxes) {
      const int stage_row = 16 * warp + (lane / 8 & 1) * 8 + lane % 8;
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        std::uint32_t words[4];
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          ColumnTerms c0, c1;
          columns(64 * chunk + 8 * (i + block) + 2 * (lane % 4), c0, c1);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int d = 4 * (i + block) + 2 * h;
            words[2 * block + h] =
                pack_pair(e.y_type, rescale<kWide>(sums[d], rows[h], c0), rescale<kWide>(sums[d + 1], rows[h], c1));
          }
        }
        const std::uint32_t address = buffer + stage_row * 128 + ((i + lane / 16) ^ (stage_row & 7)) * 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
                     "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
      }
      sm90::fence_shared_for_async();
      sm90::sync_threads(barrier, 128);
      if (thread == 0) sm90::store_box(map_y, buffer, column + 64 * chunk, row);
      return;
    }
    const int my_row = row + 16 * warp + lane / 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int local = 64 * chunk + 8 * i + 2 * (lane % 4);
      if (column + local >= e.n) break;
      ColumnTerms c0, c1;
      columns(local, c0, c1);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int d = 4 * i + 2 * h;
        const float pair[2] = {rescale<kWide>(sums[d], rows[h], c0), rescale<kWide>(sums[d + 1], rows[h], c1)};
        if (my_row + 8 * h < e.m) store_piece(e, my_row + 8 * h, column + local, pair);
      }
    }
  }

  // 64 rows of outputs from `row` on. slot: the staging box that the store before the last one used, which is free once
  // at most one store still reads.
  template <bool kWide>
  static __device__ __forceinline__ void store_half(const TileProblem& p, const CUtensorMap* map_y,
                                                    std::uint32_t staging, std::uint32_t terms, int barrier,
                                                    const Sum (&sums)[kCount], const RowTerms (&rows)[2], int row,
                                                    int column, int thread, int& slot) {
#pragma unroll
    for (int chunk = 0; chunk < kColumns / 64; ++chunk) {
      if (column + 64 * chunk >= p.epilogue.n) break;
      const std::uint32_t buffer = staging + slot * kStagingBytes;
      if (p.store_boxes) {
        slot ^= 1;
        if (thread == 0) sm90::wait_stores_read<1>();
        sm90::sync_threads(barrier, 128);
      }
      Sum part[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) part[i] = sums[32 * chunk + i];
      store_chunk<kWide>(p, map_y, buffer, terms, barrier, part, rows, row, column, chunk, thread);
    }
  }

  // 64 rows of sums, from `row` of the tile on, into the CTA's partial tile, which lies where the ring was.
  static __device__ __forceinline__ void write_partial(std::uint32_t partial, const Sum (&sums)[kCount], int row,
                                                       int thread) {
    row += 16 * (thread / 32) + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::uint32_t address = partial + ((row + 8 * h) * kPartialPitch + 8 * i + 2 * (thread % 4)) * 4;
        const Sum* pair = &sums[4 * i + 2 * h];
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(reinterpret_cast<const int&>(pair[0])),
                     "r"(reinterpret_cast<const int&>(pair[1]))
                     : "memory");
      }
    }
  }

  // The rows of the tile that are this CTA's, summed over the cluster in the order of K. thread: of the consumers.
  static __device__ __forceinline__ void store_share(const TileProblem& p, std::uint32_t partial, const Tile& tile,
                                                     int rank, int thread) {
    const GemmEpilogue& e = p.epilogue;
    constexpr int kWarps = kConsumers / 32, kBatch = 4;  // rows in flight: remote loads take some 200 ns
    const int share = kRows / p.split;                   // a multiple of kWarps * kBatch
    const int column = 4 * (thread % 32);
    const int at = tile.n * kColumns + column;
    if (at >= e.n) return;
    ColumnTerms columns[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) columns[i] = column_terms(e, at + i);
    for (int r = rank * share + thread / 32; r < (rank + 1) * share; r += kWarps * kBatch) {
      if (tile.m * kRows + r >= e.m) break;
      Sum total[kBatch][4] = {};
      for (int other = 0; other < p.split; ++other) {
        uint4 words[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          words[b] = sm90::load_remote(partial + ((r + kWarps * b) * kPartialPitch + column) * 4, other);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) add_words(total[b], words[b]);
      }
      with_width<Sum>(e, [&](auto wide) {
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int row = tile.m * kRows + r + kWarps * b;
          if (row >= e.m) break;
          const RowTerms terms = row_terms(e, row);
          float value[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) value[i] = rescale<wide.value>(total[b][i], terms, columns[i]);
          store_piece(e, row, at, value);
        }
      });
    }
  }

  static __device__ __forceinline__ void held(float first, float second) {
    asm volatile("" ::"f"(first), "f"(second) : "memory");
  }

  static __device__ __forceinline__ void consume(const TileProblem& p, Ring ring, const CUtensorMap* map_y,
                                                 std::uint32_t staging, int rank) {
    const int group = sm90::warpgroup() - 1, thread = threadIdx.x % 128;
    const GemmEpilogue& e = p.epilogue;
    const TileBlocks blocks = blocks_of(p, rank, kUnit);
    const std::uint32_t my_staging = staging + group * Shape::kGroupBytes;
    const std::uint32_t terms = staging + 2 * Shape::kGroupBytes + group * kTermsBytes;
    Consumer consumer{ring, group, thread == 0, my_staging + thread * 16};
    sm90::wait_for_previous_kernel();
    int turn = 0, slot = 0;
    for (int t = blockIdx.x / p.split; t < p.tiles_m * p.tiles_n; t += gridDim.x / p.split, ++turn) {
      if (kTurns && turn % 2 != group) {
        consumer.ring.skip(blocks.end - blocks.begin);
        continue;
      }
      const Tile tile = tile_at(p, t);
      const int first_row = tile.m * kRows + (kTurns ? 0 : group * 64), column = tile.n * kColumns;
      // Fetched before the sums, so that the epilogue does not wait for them: held keeps the compiler from moving them.
      ColumnTerms mine{};
      RowTerms rows[kHalves][2];
      if (p.split == 1) {
        mine = column_terms(e, column + thread);
        held(mine.scale, mine.bias);
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            rows[h][i] = row_terms(e, first_row + 64 * h + 16 * (thread / 32) + thread % 32 / 4 + 8 * i);
            held(rows[h][i].scale, __int_as_float(rows[h][i].zero_point));
          }
        }
      }
      Sum sums[kHalves][kCount];
      if (kTurns && turn > 0) sm90::sync_threads(Consumer::kTurnBarrier + group, kConsumers);
      consumer.run(sums, blocks.end - blocks.begin, p.middle * kUnit, 2 + group);
      if (kMaySplit && p.split > 1) {
        sm90::sync_threads(1, kConsumers);  // the other warpgroup has read the ring, too
        write_partial(ring.base, sums[0], group * 64, thread);
        return;  // the cluster meets outside; it has one tile
      }
      sm90::sync_threads(2 + group, 128);  // the last tile's epilogue has read its terms
      if (thread < kColumns) {
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(terms + thread * 8), "f"(mine.scale), "f"(mine.bias)
                     : "memory");
      }
      sm90::sync_threads(2 + group, 128);
      with_width<Sum>(e, [&](auto wide) {
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          const int row = first_row + 64 * h;
          if (row < e.m) {
            store_half<wide.value>(p, map_y, my_staging, terms, 2 + group, sums[h], rows[h], row, column, thread, slot);
          }
        }
      });
    }
    if (thread == 0) sm90::wait_stores_read<0>();
  }

  static __device__ __forceinline__ void run(const TileProblem& p, const CUtensorMap* map_x, const CUtensorMap* map_w,
                                             const CUtensorMap* map_y) {
    extern __shared__ __align__(1024) char shared[];
    const std::uint32_t base = sm90::shared_address(shared);
    const std::uint32_t staging = base + Shape::kRingBytes;
    const Ring ring{base, staging + 2 * (Shape::kGroupBytes + kTermsBytes)};
    const bool clustered = kMaySplit && p.split > 1;
    const int rank = clustered ? static_cast<int>(sm90::cluster_rank()) : 0;
    if (threadIdx.x == 0) {
      if (base % 1024 != 0) __trap();  // tiles under the 128-byte swizzle begin at multiples of 1024
      sm90::prefetch_map(map_x);
      sm90::prefetch_map(map_w);
      if (p.store_boxes) sm90::prefetch_map(map_y);
      for (int s = 0; s < kStages; ++s) {
        sm90::init_barrier(ring.barriers + 8 * s, 1);
        sm90::init_barrier(ring.barriers + 8 * (kStages + s), kTurns ? 1 : 2);
      }
      sm90::fence_barrier_init();
    }
    __syncthreads();
    sm90::launch_dependents();
    // The cluster meets inside the branches: code after them would have to do with the producer's few registers.
    if (threadIdx.x < 128) {
      sm90::give_registers<Shape::kProducerRegisters>();
      if (threadIdx.x == 0) Producer::run(p, ring, map_x, map_w, rank);
      __syncwarp();
      if (clustered) {
        sm90::sync_cluster();
        sm90::sync_cluster();
      }
    } else {
      sm90::take_registers<Shape::kConsumerRegisters>();
      consume(p, ring, map_y, staging, rank);
      if (clustered) {
        sm90::sync_cluster();
        store_share(p, base, tile_at(p, blockIdx.x / p.split), rank, threadIdx.x - 128);
        __syncwarp();
        sm90::sync_cluster();  // the other may still read this CTA's shared memory
      }
    }
  }
};

template <typename Sum, int kInterval, bool kTurns, bool kTwoRuns, int kTileColumns>
__global__ void __launch_bounds__(384, 1)
    gemm_tile(const __grid_constant__ TileProblem problem, const __grid_constant__ CUtensorMap map_x,
              const __grid_constant__ CUtensorMap map_w, const __grid_constant__ CUtensorMap map_y) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  TileKernel<Sum, kInterval, kTurns, kTwoRuns, kTileColumns>::run(problem, &map_x, &map_w, &map_y);
#endif
}

}  // namespace scaledmm::cuda
