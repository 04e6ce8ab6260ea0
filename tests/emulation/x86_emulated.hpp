// Test-only: AVX-512 and AMX as plain AVX2 C++, under the names of the real intrinsics. A kernel file compiled with
// -DSCALEDMM_EMULATE -mavx2 -mfma -mf16c -Wno-psabi keeps its code inside namespace scaledmm::emulated, where
// unqualified names find these types and functions before the global ones. Vectors have no operators: use the
// intrinsics.
#pragma once

#include "amx_emulated.hpp"
#include "amx_fp8_emulated.hpp"
#include "avx512_bfloat16.hpp"
#include "avx512_convert.hpp"
#include "avx512_dot.hpp"
#include "avx512_float.hpp"
#include "avx512_float16.hpp"
#include "avx512_integer.hpp"
#include "avx512_mask.hpp"
#include "avx512_memory.hpp"
#include "avx512_permute.hpp"
#include "avx512_set.hpp"

namespace scaledmm::emulated {
using namespace ::scaledmm::emu;
}
