"""Memory for large frames that arrive: fresh pages cost more than the copy into them."""

from __future__ import annotations

import ctypes
import functools
import mmap
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from typing_extensions import Buffer

LEAST = 2**20  #: bytes; below it the allocator has pages at hand itself
KEPT = 256 * 2**20  #: bytes that are kept for the next message
IDLE = 1.0  #: seconds after which they are given back


class Memory:
    """Lends memory that comes back by itself when nothing refers to it any more.

    A slice of a mapping would not do to know that: what is made of a slice refers to the mapping
    behind it. Everything made of a ctypes array keeps that very array alive.

    A list's own operations are all the protection there is: finalizers append, anywhere.
    """

    def __init__(self, begin: Callable[[], object]) -> None:
        """Have none; *begin* is called once some is lent, and has it trimmed from then on."""
        self._begin: Callable[[], object] | None = begin
        self._free: list[tuple[float, mmap.mmap]] = []  # when each came back, in that order
        self._closed = False

    def take(self, size: int) -> Buffer:
        """Return *size* bytes of writable memory, the caller's alone; they hold anything.

        It is for :data:`LEAST` bytes and more.
        """
        # Rounded up to one of four sizes between two powers of two, so that blocks fit again.
        step = 1 << max(size.bit_length() - 3, 16)
        capacity = -(-size // step) * step
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()
        self.trim()
        block = self._found(capacity) or mmap.mmap(-1, capacity)
        lent = _kind(capacity).from_buffer(block)
        weakref.finalize(lent, self._back, block).atexit = False
        return memoryview(lent).cast("B")[:size]

    def trim(self) -> None:
        """Give back what has not been wanted for a while, and what is too much."""
        until = time.monotonic() - IDLE
        with suppress(IndexError):  # nothing is left, or another thread has given it back
            total = sum(len(block) for _, block in self._free)
            while self._closed or self._free[0][0] < until or total > KEPT:
                total -= len(self._free.pop(0)[1])

    def close(self) -> None:
        """Keep nothing any more; what is lent stays its holder's."""
        self._closed = True
        self.trim()

    def _found(self, capacity: int) -> mmap.mmap | None:
        for each in self._free[::-1]:
            if len(each[1]) == capacity:
                with suppress(ValueError):  # another thread has taken it
                    self._free.remove(each)
                    return each[1]
        return None

    def _back(self, block: mmap.mmap) -> None:
        self._free.append((time.monotonic(), block))
        if self._closed:
            self.trim()


@functools.cache
def _kind(capacity: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return ctypes.c_ubyte * capacity  # it takes long to make a type, and it is not freed at once
