// Instances of the GEMMs for e4m3 operands and f32 sums.
#include "cuda/gemm_kernels.hpp"
#include "cuda/gemm_swap.cuh"
#include "cuda/gemm_tile.cuh"

namespace scaledmm::cuda {
namespace {

constexpr auto kTile = GemmPlan::Kernel::kTile;
constexpr auto kSwap = GemmPlan::Kernel::kSwap;

template <int kInterval, bool kTurns, bool kApart = false, bool kTwoRuns = false, int kColumns = 128>
GemmFunction tile() {
  return {kTile,
          128,
          kColumns,
          kInterval,
          kTurns || kApart,
          kTwoRuns,
          false,
          reinterpret_cast<const void*>(&gemm_tile<float, kInterval, kTurns, kApart, kTwoRuns, kColumns>)};
}

template <int kColumns, int kGroups, int kInterval, bool kQuantize = false>
GemmFunction swap() {
  return {kSwap,     64 * kGroups,
          kColumns,  kInterval,
          false,     false,
          kQuantize, reinterpret_cast<const void*>(&gemm_swap<float, kColumns, kGroups, kInterval == 1, kQuantize>)};
}

}  // namespace

const GemmFunction* gemm_functions_fp8() {
  static const GemmFunction functions[] = {tile<1, false>(),
                                           tile<1, false, false, true>(),
                                           tile<1, false, true>(),
                                           tile<1, false, true, true>(),
                                           tile<1, false, false, false, 64>(),
                                           tile<0, false>(),
                                           tile<0, false, false, false, 64>(),
                                           tile<0, true>(),
                                           swap<8, 1, 1>(),
                                           swap<8, 1, 0>(),
                                           swap<8, 1, 1, true>(),
                                           swap<8, 1, 0, true>(),
                                           swap<16, 1, 1>(),
                                           swap<16, 1, 0>(),
                                           swap<16, 1, 1, true>(),
                                           swap<16, 1, 0, true>(),
                                           swap<32, 1, 1>(),
                                           swap<32, 1, 0>(),
                                           swap<32, 2, 1>(),
                                           swap<32, 2, 0>(),
                                           swap<64, 1, 1>(),
                                           swap<64, 1, 0>(),
                                           swap<64, 2, 1>(),
                                           swap<64, 2, 0>(),
                                           swap<128, 1, 1>(),
                                           swap<128, 1, 0>(),
                                           swap<128, 2, 1>(),
                                           swap<128, 2, 0>(),
                                           {kTile, 0, 0, 0, false, false, false, nullptr}};
  return functions;
}

}  // namespace scaledmm::cuda
