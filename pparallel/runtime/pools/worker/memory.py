"""Keep freed memory warm: a fresh page costs ten times what a warm one does.

A task that returns a new tensor of 64 MB touches 16,384 fresh pages if the allocator gives freed
memory back at once, as glibc's does with large blocks.
"""

from __future__ import annotations

import ctypes
import os
import threading

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  #: of mallopt, see malloc.h
_MOST = (1 << 31) - 1


def keep_warm(size: int) -> None:
    """Have the main thread's allocator keep up to *size* bytes of what is freed.

    Does nothing where the C library is not glibc.
    """
    if not size:
        return
    # torch asks for huge pages when this is set before it is loaded: fewer faults for fresh memory.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and threading.current_thread() is threading.main_thread():
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, min(size, _MOST))
        libc.mallopt(_TOP_PAD, min(size, 64 << 20))


def give_back() -> None:
    """Give freed memory back to the system."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
