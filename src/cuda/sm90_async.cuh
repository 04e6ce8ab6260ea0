// Hopper's asynchronous machinery as functions: mbarriers, tensor copies, clusters, programmatic dependent launch.
// Source: PTX ISA 9.0, sections on mbarrier, cp.async.bulk.tensor, barrier.cluster, griddepcontrol, setmaxnreg.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace scaledmm::cuda::sm90 {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

template <typename T>
__device__ __forceinline__ T* shared_pointer(std::uint32_t address) {
  return static_cast<T*>(__cvta_shared_to_generic(address));
}

__device__ __forceinline__ void init_barrier(std::uint32_t barrier, std::uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the cluster; a CTA or cluster barrier follows.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits for the completion of the phase of this parity. On a fresh barrier parity 1 passes.
__device__ __forceinline__ void wait_barrier(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni finished;\n"
      "bra.uni wait;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// L2 policies of createpolicy as constants: weights pass through once, activations are read by every tile.
constexpr std::uint64_t kEvictFirst = 0x12F0000000000000ull;
constexpr std::uint64_t kEvictLast = 0x14F0000000000000ull;
constexpr std::uint64_t kEvictNormal = 0x1000000000000000ull;

// Box of the tensor at {column, row} into shared memory; its bytes arrive on `barrier`.
__device__ __forceinline__ void load_box(std::uint32_t destination, const CUtensorMap* map, std::uint32_t barrier,
                                         std::int32_t column, std::int32_t row, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void store_box(const CUtensorMap* map, std::uint32_t source, std::int32_t column,
                                          std::int32_t row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(source),
               "r"(column), "r"(row)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most kPending stores still read shared memory.
template <int kPending>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Ordinary writes to shared memory before this are seen by the copy engine and the tensor core after it.
__device__ __forceinline__ void fence_shared_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same for global memory.
__device__ __forceinline__ void fence_memory_for_async() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Counts as `threads` threads' share in a barrier that others wait on; does not wait.
__device__ __forceinline__ void arrive_threads(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// This thread's group of four warps: the same in a whole warp, and known to be so, so that addresses and descriptors
// made of it are computed once a warp (on vectors they took a fifth of the integer unit, and its power).
__device__ __forceinline__ int warpgroup() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0); }

__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// 8x8 matrix of 2-byte elements, two of a row in each thread of the warp, transposed.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t words) {
  std::uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(words));
  return transposed;
}

// Four words at `address` of this CTA's shared memory, read from CTA `rank` of the cluster.
__device__ __forceinline__ uint4 load_remote(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t remote;
  uint4 value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(remote)
               : "memory");
  return value;
}

// Programmatic dependent launch: the next kernel may start; the previous one has finished and its writes are visible.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace scaledmm::cuda::sm90
