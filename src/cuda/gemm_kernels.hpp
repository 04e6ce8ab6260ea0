// The compiled instances of gemm_tile and gemm_swap, as launchable functions.
#pragma once

#include "cuda/fused_quantize.cuh"
#include "cuda/gemm.hpp"

namespace scaledmm::cuda {

struct GemmFunction {
  GemmPlan::Kernel kernel;
  int rows;           // kTile: 128; kSwap: 64 or 128, the rows of w that its warpgroups multiply
  int cols;           // kTile: rows of w; kSwap: rows of x
  int interval;       // 0: accumulators run over all of K
  bool turns;         // kTile: the warpgroups of a CTA take tiles in turn
  int carry;          // kTile: GemmPlan::carry
  bool runs;          // kTile: one CTA computes two runs of K
  Quantize quantize;  // kSwap: x
  const void* function;
};

// All instances of a type; a null function ends the list.
const GemmFunction* gemm_functions_fp8();
const GemmFunction* gemm_functions_int8();

}  // namespace scaledmm::cuda
