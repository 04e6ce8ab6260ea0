// GEMM of few rows (M <= kColumns): w takes the 64-row side of the tensor core's instruction, x the narrow side, so
// that almost nothing is computed for rows that do not exist and the time is that of reading w once.
//   One persistent CTA an SM; a tile is `rows` rows of w, chosen so that the tiles fill all SMs evenly: the instruction
//   always takes 64 rows a warpgroup, but only `rows` are fetched and the results of the rest are dropped. A producer
//   warp keeps a ring of stages full across tiles; a stage is `boxes` blocks of 128 of K of both operands.
// FP8 sums of 128 of K are added to f32 registers in the order of K (kPromote), as in gemm_tile: same bits. Layers
// whose sums are those of two runs of K (gemm.hpp) keep the first run's in registers. split = 2: the CTAs of a cluster
// take the two runs of one tile and add them in order through distributed memory. kQuantize: x is quantized here, too
// (fused_quantize.cuh); a row that each CTA quantizes alone lies in shared memory as it is, not in the ring.
#pragma once

#include "cuda/fused_quantize.cuh"
#include "cuda/gemm_epilogue.cuh"
#include "cuda/sm90_async.cuh"
#include "cuda/sm90_wgmma.cuh"

namespace scaledmm::cuda {

struct SwapProblem {
  GemmEpilogue epilogue;
  int tiles;               // of w
  int rows;                // of w in a tile, a multiple of 8
  int boxes;               // a stage, even
  int stages;              // of the ring
  int k_stages;            // stages that cover K
  int middle;              // stages of the first run of K, where there are two
  int runs;                // kPromote: of K whose sums are added in order
  int split;               // 1, or 2 CTAs for the two runs
  int slack;               // bytes behind the ring that the last box's missing rows are read from
  int row_bytes;           // Quantize::kAlone: of the row of x, a multiple of 128
  FusedQuantize quantize;  // kQuantize
};

template <typename Sum, int kColumns, int kGroups, bool kPromote, Quantize kQuantize>
struct SwapKernel {
  static constexpr bool kQuantizes = kQuantize != Quantize::kNo, kAlone = kQuantize == Quantize::kAlone;
  static_assert(!kAlone || kColumns == 8);
  static constexpr int kConsumers = 128 * kGroups;
  // Rows are quantized by the consumers and as many threads more; the producer's warp is the last.
  static constexpr int kQuantizers = kQuantizes ? 2 * kConsumers : kConsumers;
  static constexpr int kThreads = kQuantizers + 32;
  static constexpr int kRowBytes = 128;
  static constexpr int kCount = kColumns / 2;             // accumulators a thread
  static constexpr int kPartialPitch = 64 * kGroups + 4;  // words; 4 spreads a fragment's columns over the banks
  // Scales of the rows of x stay in registers where they are few.
  static constexpr bool kHoldRowTerms = kColumns <= 64;
  static constexpr int kRowTerms = kHoldRowTerms ? kColumns / 4 : 1;
  static constexpr bool kHoldRun = kPromote && kColumns <= 64 && kGroups == 1;  // there are registers for it
  using Consumers = FirstThreads<kConsumers, 1>;
  using Quantizers = FirstThreads<kQuantizers, 2>;

  struct Ring {
    std::uint32_t base, row, barriers;  // row: of x, kAlone
    std::uint32_t stage_bytes;
    int stages;
    int stage = 0;
    std::uint32_t parity = 0;

    __device__ __forceinline__ std::uint32_t full() const { return barriers + 8 * stage; }
    __device__ __forceinline__ std::uint32_t empty() const { return barriers + 8 * (stages + stage); }
    __device__ __forceinline__ std::uint32_t rows_ready() const { return barriers + 16 * stages; }
    __device__ __forceinline__ std::uint32_t address() const { return base + stage * stage_bytes; }
    __device__ __forceinline__ void next() {
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  };

  // The stages of one CTA in their order.
  struct Walk {
    int tile, k;
    int tile_step, begin, end;

    __device__ __forceinline__ void next() {
      if (++k == end) {
        k = begin;
        tile += tile_step;
      }
    }
  };

  static __device__ __forceinline__ Walk walk(const SwapProblem& p, int rank) {
    const int begin = rank == 0 ? 0 : p.middle, end = rank + 1 < p.split ? p.middle : p.k_stages;
    return {static_cast<int>(blockIdx.x) / p.split, begin, static_cast<int>(gridDim.x) / p.split, begin, end};
  }

  static __device__ __forceinline__ void load_w(const SwapProblem& p, const Ring& ring, const CUtensorMap* map,
                                                const Walk& at) {
    sm90::arrive_expect_bytes(ring.full(), ring.stage_bytes);
    for (int j = 0; j < p.boxes; ++j) {
      sm90::load_box(ring.address() + j * p.rows * kRowBytes, map, ring.full(), (at.k * p.boxes + j) * kRowBytes,
                     at.tile * p.rows, sm90::kEvictFirst);
    }
  }

  static __device__ __forceinline__ void load_x(const SwapProblem& p, const Ring& ring, const CUtensorMap* map,
                                                const Walk& at) {
    const std::uint32_t x = ring.address() + p.boxes * p.rows * kRowBytes;
    for (int j = 0; j < p.boxes; ++j) {
      sm90::load_box(x + j * kColumns * kRowBytes, map, ring.full(), (at.k * p.boxes + j) * kRowBytes, 0,
                     sm90::kEvictLast);
    }
  }

  // The producer's and the consumers' side of the rows that this launch quantizes.
  static __device__ __forceinline__ void await_rows(const SwapProblem& p, const Ring& ring) {
    wait_for_rows(p.quantize, p.epilogue.m);
    sm90::arrive(ring.rows_ready());
  }
  static __device__ __forceinline__ void quantize(const SwapProblem& p, const Ring& ring) {
    sm90::wait_for_previous_kernel();
    if constexpr (kAlone) {
      quantize_alone<Sum, Quantizers>(p.quantize, sm90::shared_pointer<std::uint8_t>(ring.row), p.row_bytes);
    } else {
      quantize_rows<Sum, Quantizers>(p.quantize, p.epilogue.m);
    }
    Quantizers::sync();
    if (!kAlone && threadIdx.x == 0) announce_rows(p.quantize, p.epilogue.m);
  }

  // Weights are fetched while the previous kernel still runs; x, which it may have written, after it.
  static __device__ __forceinline__ void produce(const SwapProblem& p, const Ring& fresh, const CUtensorMap* map_w,
                                                 const CUtensorMap* map_x, int rank) {
    const Walk start = walk(p, rank);
    Ring ring = fresh;
    Walk at = start;
    int filled = 0;
    for (; filled < p.stages && at.tile < p.tiles; ++filled, ring.next(), at.next()) load_w(p, ring, map_w, at);
    if constexpr (!kAlone) {
      sm90::wait_for_previous_kernel();
      if constexpr (kQuantizes) await_rows(p, fresh);
      ring = fresh;
      at = start;
      for (int i = 0; i < filled; ++i, ring.next(), at.next()) load_x(p, ring, map_x, at);
    }
    for (; at.tile < p.tiles; ring.next(), at.next()) {
      sm90::wait_barrier(ring.empty(), ring.parity ^ 1);
      load_w(p, ring, map_w, at);
      if constexpr (!kAlone) load_x(p, ring, map_x, at);
    }
    if constexpr (kQuantizes && !kAlone) leave_rows(p.quantize);
  }

  static __device__ __forceinline__ RowTerms terms_of(const GemmEpilogue& e, int row, int base) {
    return kQuantizes ? fresh_row_terms(e, row, base) : row_terms(e, row);
  }

  static __device__ __forceinline__ void add_to(Sum (&total)[kCount], Sum (&d)[kCount]) {
    sm90::pin(d);
#pragma unroll
    for (int i = 0; i < kCount; ++i) total[i] += d[i];
  }

  static __device__ __forceinline__ void release(const Ring& ring, bool leader) {
    if (leader) sm90::arrive(ring.empty());
  }

  // d (+)= 64 rows of w by all of x, block `box` of the stage. x: where kAlone has the stage's first value of the row.
  // Left open: the caller commits.
  static __device__ __forceinline__ void multiply(const SwapProblem& p, const Ring& ring, std::uint32_t x,
                                                  Sum (&d)[kCount], int group, int box, int add) {
    const std::uint32_t stage = ring.address();
    const std::uint64_t a = sm90::matrix_descriptor(stage + (box * p.rows + group * 64) * kRowBytes);
    const std::uint64_t b = kAlone ? sm90::row_descriptor(x + box * kRowBytes)
                                   : sm90::matrix_descriptor(stage + (p.boxes * p.rows + box * kColumns) * kRowBytes);
#pragma unroll
    for (int j = 0; j < 4; ++j) sm90::wgmma(d, a + j * sm90::kNextK, b + j * sm90::kNextK, j == 0 ? add : 1);
  }

  // kPromote: kStages stages of kBoxes blocks of K in straight code, two accumulators in turn. (Left open across a
  // loop, the compiler serialises the pipeline: C7514.) x: of the first stage; kAlone.
  template <int kStages, int kBoxes>
  static __device__ __forceinline__ void run_blocks(const SwapProblem& p, Ring& ring, std::uint32_t x,
                                                    Sum (&sums)[kCount], int group, bool leader) {
    Sum d[2][kCount];
    Ring previous = ring;
#pragma unroll
    for (int i = 0; i < kStages * kBoxes; ++i) {
      if (i % kBoxes == 0) {
        if (i > 0) ring.next();
        sm90::wait_barrier(ring.full(), ring.parity);
      }
      sm90::pin(d[i % 2]);
      sm90::wgmma_fence();
      multiply(p, ring, x + i / kBoxes * p.boxes * kRowBytes, d[i % 2], group, i % kBoxes, 0);
      sm90::wgmma_commit();
      if (i == 0) continue;
      sm90::wgmma_wait<1>();
      if (i % kBoxes == 0) {
        release(previous, leader);
        previous = ring;
      }
      add_to(sums, d[(i + 1) % 2]);
    }
    sm90::wgmma_wait<0>();
    release(previous, leader);
    ring.next();
    add_to(sums, d[(kStages * kBoxes + 1) % 2]);
  }

  // The stages whose first is number `s` of this CTA's.
  static __device__ __forceinline__ void run_promoted(const SwapProblem& p, Ring& ring, Sum (&sums)[kCount], int group,
                                                      bool leader, int s, int end) {
    const auto x = [&] { return ring.row + s * p.boxes * kRowBytes; };
    // Straight code frees a stage once the next one has come: too late where there are three (64 x 4096 x 4096: 8.0 us
    // instead of 7.4).
    const bool deep = p.stages > 3;
    if (p.boxes == 4) {
      for (; deep && s + 2 <= end; s += 2) run_blocks<2, 4>(p, ring, x(), sums, group, leader);
      for (; s < end; ++s) run_blocks<1, 4>(p, ring, x(), sums, group, leader);
    } else if (p.boxes == 8) {
      for (; s < end; ++s) run_blocks<1, 8>(p, ring, x(), sums, group, leader);
    } else {
      for (; deep && s + 4 <= end; s += 4) run_blocks<4, 2>(p, ring, x(), sums, group, leader);
      for (; s < end; ++s) run_blocks<1, 2>(p, ring, x(), sums, group, leader);
    }
  }

  // The same of 288 threads, which have 168 registers each: too few for two accumulators of 64.
  static __device__ __forceinline__ void run_promoted_alone(const SwapProblem& p, Ring& ring, Sum (&sums)[kCount],
                                                            int group, bool leader, int stages) {
    for (int s = 0; s < stages; ++s, ring.next()) {
      sm90::wait_barrier(ring.full(), ring.parity);
      for (int box = 0; box < p.boxes; ++box) {
        Sum d[kCount];
        sm90::pin(d);
        sm90::wgmma_fence();
        multiply(p, ring, ring.row, d, group, box, 0);
        sm90::wgmma_commit();
        sm90::wgmma_wait<0>();
        add_to(sums, d);
      }
      release(ring, leader);
    }
  }

  // Never promoted: always two blocks of K in flight.
  static __device__ __forceinline__ void run_direct(const SwapProblem& p, Ring& ring, Sum (&sums)[kCount], int group,
                                                    bool leader, int stages) {
    Ring previous = ring;
    sm90::pin(sums);
    for (int s = 0, box = 0; s < stages;) {
      sm90::wait_barrier(ring.full(), ring.parity);
      const std::uint32_t x = ring.row + s * p.boxes * kRowBytes;
      sm90::wgmma_fence();
      multiply(p, ring, x, sums, group, box, 1);
      multiply(p, ring, x, sums, group, box + 1, 1);
      sm90::wgmma_commit();
      sm90::wgmma_wait<1>();
      if (box == 0 && s > 0) release(previous, leader);
      box += 2;
      if (box == p.boxes) {
        previous = ring;
        ring.next();
        box = 0;
        ++s;
      }
    }
    sm90::wgmma_wait<0>();
    sm90::pin(sums);
    release(previous, leader);
  }

  // Sums of one tile over this CTA's run of K.
  static __device__ __forceinline__ void run_tile(const SwapProblem& p, Ring& ring, Sum (&sums)[kCount], int group,
                                                  bool leader, int stages) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = 0;
    if constexpr (!kPromote) {
      run_direct(p, ring, sums, group, leader, stages);
    } else if constexpr (kColumns == 128 && kGroups == 2) {
      run_promoted_alone(p, ring, sums, group, leader, stages);
    } else if constexpr (!kHoldRun) {
      run_promoted(p, ring, sums, group, leader, 0, stages);
    } else {
      const bool hold = p.runs > 1 && p.split == 1;
      Sum first_run[kCount];
      // One copy of the code for both runs.
#pragma unroll 1
      for (int s = 0, end = hold ? p.middle : stages;; s = end, end = stages) {
        run_promoted(p, ring, sums, group, leader, s, end);
        if (end == stages) break;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          first_run[i] = sums[i];
          sums[i] = 0;
        }
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] = hold ? first_run[i] + sums[i] : sums[i];
    }
  }

  // Outputs of 2 bytes are transposed inside each warp, so that a thread holds 4 columns of one row and a row's 32
  // bytes are stored at once.
  template <bool kWide>
  static __device__ __forceinline__ void store_tile(const SwapProblem& p, const Sum (&sums)[kCount],
                                                    const RowTerms (&rows)[kRowTerms], const ColumnTerms (&columns)[2],
                                                    int first, int local, int lane) {
    const GemmEpilogue& e = p.epilogue;
    const bool narrow = e.y_type != GemmOutput::kFloat32;
    const int mine = local - lane / 4 + 4 * (lane % 4);  // after the transposition
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      if (8 * i >= e.m) break;
      float value[2][2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const RowTerms terms =
            kHoldRowTerms ? rows[kHoldRowTerms ? 2 * i + j : 0] : terms_of(e, 8 * i + 2 * (lane % 4) + j, 0);
#pragma unroll
        for (int h = 0; h < 2; ++h) value[h][j] = rescale<kWide>(sums[4 * i + 2 * h + j], terms, columns[h]);
      }
      if (narrow) {
        const std::uint32_t low = sm90::transpose_8x8(pack_pair(e.y_type, value[0][0], value[0][1]));
        const std::uint32_t high = sm90::transpose_8x8(pack_pair(e.y_type, value[1][0], value[1][1]));
        const uint2 words = gather_columns(low, high, lane);
        const int row = 8 * i + lane / 4;
        if (row < e.m && mine < p.rows) store_words(e, row, first + mine, words);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = 8 * i + 2 * (lane % 4) + j;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int column = first + local + 8 * h;
          if (row < e.m && local + 8 * h < p.rows && column < e.n) store_one(e, row, column, value[h][j]);
        }
      }
    }
  }

  // low, high: columns 2 q, 2 q + 1 and 8 more of thread q of each four. To columns 4 q .. 4 q + 3.
  static __device__ __forceinline__ uint2 gather_columns(std::uint32_t low, std::uint32_t high, int lane) {
    const int q = lane % 4, four = lane - q, source = 2 * (q % 2);
    const bool upper = q >= 2;
    const std::uint32_t one = __shfl_sync(~0u, q % 2 ? high : low, four + source + upper);
    const std::uint32_t other = __shfl_sync(~0u, q % 2 ? low : high, four + source + !upper);
    return upper ? make_uint2(other, one) : make_uint2(one, other);
  }

  // partial[row of x][row of w in the tile], where the ring was.
  static __device__ __forceinline__ void write_partial(std::uint32_t partial, const Sum (&sums)[kCount], int local,
                                                       int lane) {
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = 8 * i + 2 * (lane % 4) + j;
          asm volatile("st.shared.b32 [%0], %1;" ::"r"(partial + (row * kPartialPitch + local + 8 * h) * 4),
                       "r"(reinterpret_cast<const int&>(sums[4 * i + 2 * h + j]))
                       : "memory");
        }
      }
    }
  }

  // The rows of x that are this CTA's, summed over the cluster in the order of K.
  static __device__ __forceinline__ void store_share(const SwapProblem& p, std::uint32_t partial, int rank) {
    const GemmEpilogue& e = p.epilogue;
    constexpr int kPieces = 16 * kGroups;  // of 4 columns in a row
    const int local = 4 * (threadIdx.x % kPieces);
    const int column = static_cast<int>(blockIdx.x) / p.split * p.rows + local;
    if (local >= p.rows || column >= e.n) return;
    ColumnTerms columns[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) columns[i] = column_terms(e, column + i);
    constexpr int kTurn = kConsumers / kPieces, kBatch = 4;  // rows in flight: remote loads take some 200 ns
    const int share = (e.m + p.split - 1) / p.split;
    const int end = min((rank + 1) * share, e.m);
    for (int row = rank * share + threadIdx.x / kPieces; row < end; row += kTurn * kBatch) {
      Sum total[kBatch][4] = {};
      for (int other = 0; other < p.split; ++other) {
        uint4 words[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int from = min(row + kTurn * b, end - 1);
          words[b] = sm90::load_remote(partial + (from * kPartialPitch + local) * 4, other);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) add_words(total[b], words[b]);
      }
      with_width<Sum>(e, [&](auto wide) {
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (row + kTurn * b >= end) break;
          const RowTerms terms = terms_of(e, row + kTurn * b, 0);
          float value[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) value[i] = rescale<wide.value>(total[b][i], terms, columns[i]);
          store_piece(e, row + kTurn * b, column, value);
        }
      });
    }
  }

  static __device__ __forceinline__ void consume(const SwapProblem& p, Ring ring, int rank) {
    const int group = sm90::warpgroup(), lane = threadIdx.x % 32;
    const int local = 16 * (threadIdx.x / 32) + lane / 4;  // groups and warps are 64 and 16 rows apart
    const bool leader = threadIdx.x % 128 == 0;
    sm90::wait_for_previous_kernel();
    if constexpr (kQuantizes && !kAlone) sm90::wait_barrier(ring.rows_ready(), 0);
    RowTerms rows[kRowTerms];
#pragma unroll
    for (int i = 0; i < kRowTerms; ++i) {
      rows[i] = terms_of(p.epilogue, 8 * (i / 2) + 2 * (lane % 4) + i % 2, kAlone ? blockIdx.x : 0);
    }
    Walk at = walk(p, rank);
    for (; at.tile < p.tiles; at.tile += at.tile_step) {
      const int first = at.tile * p.rows;
      // Fetched before the sums, so that the epilogue does not wait for them.
      const ColumnTerms columns[2] = {column_terms(p.epilogue, first + local),
                                      column_terms(p.epilogue, first + local + 8)};
      Sum sums[kCount];
      run_tile(p, ring, sums, group, leader, at.end - at.begin);
      if (p.split > 1) {
        Consumers::sync();  // every warpgroup has read the ring
        write_partial(ring.base, sums, local, lane);
        return;  // the cluster meets outside; it has one tile
      }
      with_width<Sum>(p.epilogue,
                      [&](auto wide) { store_tile<wide.value>(p, sums, rows, columns, first, local, lane); });
    }
  }

  static __device__ __forceinline__ void run(const SwapProblem& p, const CUtensorMap* map_w, const CUtensorMap* map_x) {
    extern __shared__ char shared[];
    const std::uint32_t base = (sm90::shared_address(shared) + 1023) & ~1023u;
    const std::uint32_t stage_bytes = p.boxes * (p.rows + (kAlone ? 0 : kColumns)) * kRowBytes;
    const std::uint32_t row = base + p.stages * stage_bytes + p.slack;
    const Ring ring{base, row, row + (kAlone ? p.row_bytes + kRowBytes : 0), stage_bytes, p.stages};
    const int rank = p.split > 1 ? static_cast<int>(sm90::cluster_rank()) : 0;
    if (threadIdx.x == kQuantizers) {
      sm90::prefetch_map(map_w);
      sm90::prefetch_map(map_x);
      for (int s = 0; s < p.stages; ++s) {
        sm90::init_barrier(ring.barriers + 8 * s, 1);
        sm90::init_barrier(ring.barriers + 8 * (p.stages + s), kGroups);
      }
      sm90::init_barrier(ring.rows_ready(), 1);
      sm90::fence_barrier_init();
    }
    __syncthreads();
    sm90::launch_dependents();
    if (threadIdx.x >= kQuantizers) {
      if (threadIdx.x == kQuantizers) produce(p, ring, map_w, map_x, rank);
      __syncwarp();
    } else {
      if constexpr (kQuantizes) quantize(p, ring);
      if (threadIdx.x < kConsumers) consume(p, ring, rank);
    }
    if (p.split > 1) {
      sm90::sync_cluster();
      if (threadIdx.x < kConsumers) store_share(p, base, rank);
      __syncwarp();
      sm90::sync_cluster();  // the others may still read this CTA's shared memory
    }
  }
};

template <typename Sum, int kColumns, int kGroups, bool kPromote, Quantize kQuantize>
__global__ void __launch_bounds__(128 * kGroups * (kQuantize != Quantize::kNo ? 2 : 1) + 32, 1)
    gemm_swap(const __grid_constant__ SwapProblem problem, const __grid_constant__ CUtensorMap map_w,
              const __grid_constant__ CUtensorMap map_x) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  SwapKernel<Sum, kColumns, kGroups, kPromote, kQuantize>::run(problem, &map_w, &map_x);
#endif
}

}  // namespace scaledmm::cuda
