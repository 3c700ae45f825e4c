"""Keeps the libraries of a process from starting a thread for each core of the machine.

Libraries read the environment when they are loaded; one that is loaded already has to be told.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator

_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
)

#: by a part of the library's file name: functions that take a number of threads as an int
_SETTERS = {
    "openblas": (
        "openblas_set_num_threads",
        "openblas_set_num_threads64_",
        "scipy_openblas_set_num_threads",
        "scipy_openblas_set_num_threads64_",
    ),
    "libmkl_rt": ("MKL_Set_Num_Threads",),
    "libblis": ("bli_thread_set_num_threads",),
    "libgomp": ("omp_set_num_threads",),
    "libomp": ("omp_set_num_threads",),
    "libiomp": ("omp_set_num_threads",),
}


def limit_threads(threads: int) -> dict[str, str]:
    """Return the environment by which libraries loaded later use so many threads.

    What this process's environment asks for already stays if it is less.
    """
    return {each: str(_lower(os.environ.get(each, ""), threads)) for each in _VARIABLES}


def _lower(text: str, threads: int) -> int:
    return min(int(text), threads) if text.isdecimal() and int(text) else threads


def apply_thread_limit(threads: int) -> None:
    """Make the libraries of this process use so many threads, loaded already or later."""
    os.environ.update(limit_threads(threads))
    for library, functions in _loaded():
        for each in functions:
            if function := getattr(library, each, None):
                function.argtypes, function.restype = [ctypes.c_int], None
                function(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    if numba := sys.modules.get("numba"):
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))


def _loaded() -> Iterator[tuple[ctypes.CDLL, tuple[str, ...]]]:
    """Yield the libraries that this process has loaded, with the functions that they may have."""
    for path in _mapped():
        for part, functions in _SETTERS.items():
            if part in os.path.basename(path):
                try:
                    library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
                except OSError:  # replaced on disk since, as by an upgrade
                    continue
                yield library, functions


def _mapped() -> list[str]:
    try:
        with open("/proc/self/maps") as maps:
            return sorted({line.split(maxsplit=5)[-1].strip() for line in maps if ".so" in line})
    except FileNotFoundError:  # not Linux
        return []
