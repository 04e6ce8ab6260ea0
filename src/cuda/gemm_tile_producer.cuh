// The tiles of a GEMM, their order, and the thread that fetches their operands.
#pragma once

#include "cuda/gemm_epilogue.cuh"
#include "cuda/gemm_tile_sums.cuh"
#include "cuda/sm90_async.cuh"

namespace scaledmm::cuda {

struct TileProblem {
  GemmEpilogue epilogue;
  int tiles_m, tiles_n;
  int k_units;       // of kUnit blocks of 128
  int middle;        // units of the first run of K, where there are two
  int split;         // CTAs of a cluster
  bool store_boxes;  // the map of y is valid
};

struct TilePlace {
  int m, n;  // in tiles
};

// Groups of 8 rows of tiles walk over n together, so that the tiles in flight share their operands in L2.
__device__ __forceinline__ TilePlace tile_at(const TileProblem& p, int index) {
  constexpr int kGroup = 8;
  const int per_group = kGroup * p.tiles_n;
  const int first = index / per_group * kGroup;
  const int rows = min(kGroup, p.tiles_m - first);
  const int inside = index % per_group;
  return {first + inside % rows, inside / rows};
}

struct TileBlocks {
  int begin, end;
};

// Of K, those of CTA `rank` of a cluster.
__device__ __forceinline__ TileBlocks blocks_of(const TileProblem& p, int rank, int unit) {
  return {rank == 0 ? 0 : p.middle * unit, (rank + 1 < p.split ? p.middle : p.k_units) * unit};
}

template <typename Shape>
struct TileProducer {
  using Ring = TileRing<Shape>;

  static __device__ __forceinline__ void load_x(const Ring& ring, const CUtensorMap* map, const TilePlace& tile,
                                                int k) {
    sm90::load_box(ring.x(), map, ring.full(), k * Shape::kRowBytes, tile.m * Shape::kRows, sm90::kEvictNormal);
  }

  static __device__ __forceinline__ void load_w(const Ring& ring, const CUtensorMap* map, const TilePlace& tile,
                                                int k) {
    sm90::load_box(ring.w(), map, ring.full(), k * Shape::kRowBytes, tile.n * Shape::kColumns, sm90::kEvictNormal);
  }

  static __device__ __forceinline__ void run(const TileProblem& p, const Ring& fresh, const CUtensorMap* map_x,
                                             const CUtensorMap* map_w, int rank) {
    const TileBlocks blocks = blocks_of(p, rank, Shape::kUnit);
    const int clusters = gridDim.x / p.split, tiles = p.tiles_m * p.tiles_n;
    int t = blockIdx.x / p.split;
    // Weights of the first tile are fetched while the previous kernel still runs; x, which it may have written, after
    // it.
    const TilePlace first = tile_at(p, t);
    const int early = min(Shape::kStages, blocks.end - blocks.begin);
    Ring ring = fresh;
    for (int i = 0; i < early; ++i, ring.next()) {
      sm90::arrive_expect_bytes(ring.full(), Shape::kStageBytes);
      load_w(ring, map_w, first, blocks.begin + i);
    }
    sm90::wait_for_previous_kernel();
    ring = fresh;
    for (int i = 0; i < early; ++i, ring.next()) load_x(ring, map_x, first, blocks.begin + i);
    int k = blocks.begin + early;
    for (; t < tiles; t += clusters) {
      const TilePlace tile = tile_at(p, t);
      for (; k < blocks.end; ++k, ring.next()) {
        sm90::wait_barrier(ring.empty(), ring.parity ^ 1);
        sm90::arrive_expect_bytes(ring.full(), Shape::kStageBytes);
        load_x(ring, map_x, tile, k);
        load_w(ring, map_w, tile, k);
      }
      k = blocks.begin;
    }
  }
};

}  // namespace scaledmm::cuda
