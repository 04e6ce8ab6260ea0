"""Runs calls on torch's threads: two pools on the same cores would wait for each other."""

from __future__ import annotations

import ctypes
import os

from scaledmm import _core


def use_torch_threads() -> bool:
    """Takes torch's OpenMP runtime, with torch's number of threads unless SCALEDMM_NUM_THREADS names one.

    False: torch has none that can be found, and the library's own threads stay.
    """
    process = ctypes.CDLL(None)
    try:
        parallel = ctypes.cast(process.GOMP_parallel, ctypes.c_void_p).value or 0
        max_threads = ctypes.cast(process.omp_get_max_threads, ctypes.c_void_p).value or 0
    except AttributeError:  # a torch without OpenMP, or with one that keeps its symbols to itself
        return False
    _core._use_openmp(parallel, 0 if "SCALEDMM_NUM_THREADS" in os.environ else max_threads)
    return True
