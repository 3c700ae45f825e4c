"""How much memory, and how many addresses, an arena may have."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from pparallel.machine import memory

PAGE = os.sysconf("SC_PAGE_SIZE")
SPAN = 1 << 36  #: addresses of an arena, where there is no limit
LEAST = 1 << 24  #: addresses below which an arena is of no use

_SHARE = 2  #: an arena may have one of so many parts of the memory
_ADDRESSES = 8  #: and one of so many parts of the addresses left
_RESERVE = 16  #: one of so many parts of the memory stays free


def budget() -> int:
    """Return how many bytes an arena may have where nobody said."""
    return memory.total() // _SHARE


def has_room(nbytes: int) -> bool:
    """Return whether *nbytes* more may be taken now without the machine running short."""
    try:
        return nbytes + memory.total() // _RESERVE <= memory.available()
    except OSError:  # without a descriptor there is no telling, and it is a precaution only
        return True


def span(wanted: int) -> int:
    """Return for how many bytes an arena of that budget may take addresses."""
    span = min(SPAN, max(8 * wanted, LEAST))
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        span = min(span, soft // 2)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        # The other end, which may have more in use already, must find room for it too.
        span = min(span, max(soft - _addresses(), 0) // _ADDRESSES)
    return span // PAGE * PAGE


def _addresses() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
