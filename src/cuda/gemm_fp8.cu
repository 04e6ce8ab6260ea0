// Instances of the GEMMs for e4m3 operands and f32 sums.
#include "cuda/gemm_kernels.hpp"
#include "cuda/gemm_swap.cuh"
#include "cuda/gemm_tile.cuh"
#include "cuda/gemm_tile_carry.cuh"

namespace scaledmm::cuda {
namespace {

constexpr auto kTile = GemmPlan::Kernel::kTile;
constexpr auto kSwap = GemmPlan::Kernel::kSwap;

template <int kInterval, bool kTurns, bool kTwoRuns = false, int kColumns = 128>
GemmFunction tile() {
  return {kTile,
          128,
          kColumns,
          kInterval,
          kTurns,
          0,
          kTwoRuns,
          Quantize::kNo,
          reinterpret_cast<const void*>(&gemm_tile<float, kInterval, kTurns, kTwoRuns, kColumns>)};
}

template <int kColumns, int kFirst, int kRuns>
GemmFunction carry() {
  return {kTile,      128,           kColumns,
          1,          false,         kFirst,
          kRuns == 2, Quantize::kNo, reinterpret_cast<const void*>(&gemm_tile_carry<kColumns, kFirst, kRuns>)};
}

template <int kColumns, int kGroups, int kInterval, Quantize kQuantize = Quantize::kNo>
GemmFunction swap() {
  return {kSwap,
          64 * kGroups,
          kColumns,
          kInterval,
          false,
          0,
          false,
          kQuantize,
          reinterpret_cast<const void*>(&gemm_swap<float, kColumns, kGroups, kInterval == 1, kQuantize>)};
}

}  // namespace

const GemmFunction* gemm_functions_fp8() {
  static const GemmFunction functions[] = {tile<1, false>(),
                                           tile<1, false, true>(),
                                           tile<1, false, false, 64>(),
                                           carry<128, 8, 1>(),
                                           carry<128, 2, 1>(),
                                           carry<112, 8, 1>(),
                                           carry<96, 8, 1>(),
                                           carry<128, 8, 2>(),
                                           carry<128, 2, 2>(),
                                           carry<112, 2, 2>(),
                                           tile<0, false>(),
                                           tile<0, false, false, 64>(),
                                           tile<0, true>(),
                                           swap<8, 1, 1>(),
                                           swap<8, 1, 0>(),
                                           swap<8, 1, 1, Quantize::kAlone>(),
                                           swap<8, 1, 0, Quantize::kAlone>(),
                                           swap<8, 1, 1, Quantize::kShared>(),
                                           swap<8, 1, 0, Quantize::kShared>(),
                                           swap<16, 1, 1>(),
                                           swap<16, 1, 0>(),
                                           swap<16, 1, 1, Quantize::kShared>(),
                                           swap<16, 1, 0, Quantize::kShared>(),
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
                                           {kTile, 0, 0, 0, false, 0, false, Quantize::kNo, nullptr}};
  return functions;
}

}  // namespace scaledmm::cuda
