// Marks the inline functions that GPU code calls too. constexpr ones need no mark.
#pragma once

#ifdef __CUDACC__
#define SCALEDMM_HOST_DEVICE __host__ __device__
#else
#define SCALEDMM_HOST_DEVICE
#endif
