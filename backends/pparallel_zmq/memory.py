"""Memory for large frames that arrive: fresh pages cost more than the copy into them."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from typing import Any

from typing_extensions import Buffer

LEAST = 2**20  #: bytes; below it the allocator has pages at hand itself
KEPT = 256 * 2**20  #: bytes that are kept for the next message
IDLE = 5.0  #: seconds after which they are given back


class Memory:
    """Lends memory that comes back by itself when nothing refers to it any more.

    A slice of a mapping would not do to know that: what is made of a slice refers to the mapping
    behind it. Everything made of a ctypes array keeps that very array alive.
    """

    def __init__(self) -> None:
        self._back: list[mmap.mmap] = []  # finalizers append; they may run anywhere
        self._free: list[tuple[float, mmap.mmap]] = []
        self._lock = threading.Lock()
        self._closed = False

    # Nobody waits for the lock: a finalizer may call this while its thread holds it.

    def take(self, size: int) -> Buffer:
        """Return *size* bytes of writable memory, the caller's alone; they hold anything.

        Args:
            size: at least :data:`LEAST`.
        """
        capacity = _capacity(size)
        block = self._find(capacity) or mmap.mmap(-1, capacity)
        lent = _kind(capacity).from_buffer(block)
        lent.block, lent.back = block, self._back
        return memoryview(lent).cast("B")[:size]

    def trim(self) -> None:
        """Give back what has not been wanted for a while."""
        if not self._back and not self._free:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._collect()
            until = time.monotonic() - IDLE
            self._free = [each for each in self._free if each[0] > until]
        finally:
            self._lock.release()

    def close(self) -> None:
        """Keep nothing any more; what is lent stays its holder's."""
        self._closed = True
        self.trim()

    def _find(self, capacity: int) -> mmap.mmap | None:
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._collect()
            for number, (_, block) in enumerate(self._free):
                if len(block) == capacity:
                    del self._free[number]
                    return block
        finally:
            self._lock.release()
        return None

    def _collect(self) -> None:
        now = time.monotonic()
        while self._back:
            self._free.append((now, self._back.pop()))
        total = 0
        kept = []
        for each in sorted(self._free, key=lambda free: -free[0]):
            total += len(each[1])
            if total <= KEPT and not self._closed:
                kept.append(each)
        self._free = kept


class _Lent:
    block: mmap.mmap
    back: list[mmap.mmap]

    def __del__(self) -> None:
        self.back.append(self.block)


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
