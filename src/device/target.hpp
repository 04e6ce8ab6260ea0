// Where instruction-set code begins and ends, and which copy of a kernel file this is.
//
// A kernel file with AVX-512 or AMX code is compiled twice in test builds: native, and with SCALEDMM_EMULATE against
// the emulated intrinsics of tests/emulation. All of its code stands in
//   namespace scaledmm::SCALEDMM_KERNEL_NAMESPACE { namespace { ... } }
// so that the two copies never share a symbol.
#pragma once

// g++ 12 warns of its own "undefined" registers when these headers are inlined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#define SCALEDMM_PRAGMA(text) _Pragma(#text)

#ifdef SCALEDMM_EMULATE

#include "x86_emulated.hpp"
#define SCALEDMM_KERNEL_NAMESPACE emulated
#define SCALEDMM_TARGET_BEGIN(isa)
#define SCALEDMM_TARGET_END

#else

#define SCALEDMM_KERNEL_NAMESPACE native
#ifdef __clang__
#define SCALEDMM_TARGET_BEGIN(isa) \
  SCALEDMM_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define SCALEDMM_TARGET_END SCALEDMM_PRAGMA(clang attribute pop)
#else
#define SCALEDMM_TARGET_BEGIN(isa) SCALEDMM_PRAGMA(GCC push_options) SCALEDMM_PRAGMA(GCC target(isa))
#define SCALEDMM_TARGET_END SCALEDMM_PRAGMA(GCC pop_options)
#endif

#endif

// Before loops over registers, and for functions that must be part of their callers so that values stay in registers.
// The emulated copies need no registers, and compile much faster without.
#if defined(SCALEDMM_EMULATE)
#define SCALEDMM_UNROLL
#define SCALEDMM_INLINE
#else
#define SCALEDMM_INLINE __attribute__((always_inline))
#ifdef __clang__
#define SCALEDMM_UNROLL _Pragma("unroll")
#else
#define SCALEDMM_UNROLL _Pragma("GCC unroll 8")
#endif
#endif
