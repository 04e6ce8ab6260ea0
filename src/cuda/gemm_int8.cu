// Instances of the GEMMs for int8 operands and int32 sums.
#include "cuda/gemm_kernels.hpp"
#include "cuda/gemm_swap.cuh"
#include "cuda/gemm_tile.cuh"

namespace scaledmm::cuda {
namespace {

constexpr auto kTile = GemmPlan::Kernel::kTile;
constexpr auto kSwap = GemmPlan::Kernel::kSwap;

template <bool kTurns, int kColumns = 128>
GemmFunction tile() {
  return {kTile, 128,           kColumns,
          0,     kTurns,        0,
          false, Quantize::kNo, reinterpret_cast<const void*>(&gemm_tile<std::int32_t, 0, kTurns, false, kColumns>)};
}

template <int kColumns, int kGroups, Quantize kQuantize = Quantize::kNo>
GemmFunction swap() {
  return {kSwap,
          64 * kGroups,
          kColumns,
          0,
          false,
          0,
          false,
          kQuantize,
          reinterpret_cast<const void*>(&gemm_swap<std::int32_t, kColumns, kGroups, false, kQuantize>)};
}

}  // namespace

const GemmFunction* gemm_functions_int8() {
  static const GemmFunction functions[] = {tile<false>(),
                                           tile<false, 64>(),
                                           tile<true>(),
                                           swap<8, 1>(),
                                           swap<8, 1, Quantize::kAlone>(),
                                           swap<8, 1, Quantize::kShared>(),
                                           swap<16, 1>(),
                                           swap<16, 1, Quantize::kShared>(),
                                           swap<32, 1>(),
                                           swap<32, 2>(),
                                           swap<64, 1>(),
                                           swap<64, 2>(),
                                           swap<128, 2>(),
                                           swap<128, 1>(),
                                           {kTile, 0, 0, 0, false, 0, false, Quantize::kNo, nullptr}};
  return functions;
}

}  // namespace scaledmm::cuda
