"""Memory for large frames that arrive: fresh pages cost more than the copy into them."""

from __future__ import annotations

import ctypes
import mmap
import time
from typing import Any

from typing_extensions import Buffer

LEAST = 2**20  #: bytes; below it the allocator has pages at hand itself
KEPT = 256 * 2**20  #: bytes that are kept for the next message
IDLE = 5.0  #: seconds after which they are given back

_Free = tuple[float, mmap.mmap]  #: since when


class Memory:
    """Lends memory that comes back by itself when nothing refers to it any more.

    A slice of a mapping would not do to know that: what is made of a slice refers to the mapping
    behind it. Everything made of a ctypes array keeps that very array alive.

    A list's own operations are all the protection there is: finalizers append, anywhere.
    """

    def __init__(self) -> None:
        self._free: list[_Free] = []  # as they came back
        self._closed = False

    def take(self, size: int) -> Buffer:
        """Return *size* bytes of writable memory, the caller's alone; they hold anything.

        Args:
            size: at least :data:`LEAST`.
        """
        capacity = _capacity(size)
        self.trim()
        for each in self._free[::-1]:
            if len(each[1]) == capacity and self._remove(each):
                block = each[1]
                break
        else:
            block = mmap.mmap(-1, capacity)
        lent = _kind(capacity).from_buffer(block)
        lent.block, lent.memory = block, self
        return memoryview(lent).cast("B")[:size]

    def trim(self) -> None:
        """Give back what has not been wanted for a while, and what is too much."""
        if not self._free:
            return
        until, total = time.monotonic() - IDLE, 0
        for each in self._free[::-1]:
            total += len(each[1])
            if self._closed or total > KEPT or each[0] < until:
                self._remove(each)

    def close(self) -> None:
        """Keep nothing any more; what is lent stays its holder's."""
        self._closed = True
        self.trim()

    def _remove(self, free: _Free) -> bool:
        try:
            self._free.remove(free)
        except ValueError:  # another thread has
            return False
        return True

    def back(self, block: mmap.mmap) -> None:
        """Take back what was lent: called by a finalizer."""
        self._free.append((time.monotonic(), block))
        if self._closed:
            self.trim()


class _Lent:
    block: mmap.mmap
    memory: Memory

    def __del__(self) -> None:
        self.memory.back(self.block)


_kinds: dict[int, Any] = {}


def _capacity(size: int) -> int:
    """Round up to one of four sizes between two powers of two, so that blocks fit again."""
    step = 1 << max(size.bit_length() - 3, 16)
    return -(-size // step) * step


def _kind(capacity: int) -> Any:
    kind = _kinds.get(capacity)
    if kind is None:  # ctypes takes long to make a type, and types are not freed at once
        array = ctypes.c_ubyte * capacity
        kind = _kinds[capacity] = type(f"Lent{capacity}", (_Lent, array), {})
    return kind
