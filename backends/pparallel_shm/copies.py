"""Copies between the tensors of members and the slots that they share.

A slot is read as soon as it has been written: what goes there is to stay in the caches. A large
tensor does not fit into them: what goes there had better not push out the slots, which the C
library sees to where it is told so for large copies (`pparallel.runtime.processes.environment`).
"""

from __future__ import annotations

import ctypes
from typing import Any

_SHORT = 1 << 15  #: bytes that are copied sooner than other threads are let run meanwhile
_THROUGH = 3 << 16  #: bytes that the C library copies through the caches, as we tell it
_LARGE = 4 << 20  #: bytes of what is not expected to be in a core's own cache

_quick: Any = ctypes.PyDLL(None).memmove  # which does not let other threads run
_quick.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_quick.restype = None


def lay_out(to: int, source: int, nbytes: int) -> None:
    """Copy so many bytes between two addresses, of which the first is in a slot."""
    if nbytes <= _SHORT:
        _quick(to, source, nbytes)
        return
    for at in range(0, nbytes, _THROUGH):
        ctypes.memmove(to + at, source + at, min(_THROUGH, nbytes - at))


def take(to: int, source: int, nbytes: int, of: int) -> None:
    """Copy so many bytes between two addresses, of which the second is in a slot.

    They are part of *of* bytes that are taken in all.
    """
    if of >= _LARGE:
        ctypes.memmove(to, source, nbytes)
    else:
        lay_out(to, source, nbytes)
