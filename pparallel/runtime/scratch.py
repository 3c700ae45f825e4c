"""Memory for values that are only read and let go: to have new memory costs as much as to copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Loan:
    """Memory of one reader, until its loan ends."""

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory

    def take(self, nbytes: int) -> memoryview:
        """Return memory of so many bytes, which may hold anything; what was taken is void."""
        if len(self.memory) < nbytes:
            self.memory = bytearray(nbytes)
        return memoryview(self.memory)[:nbytes]


class Scratch:
    """Memory that is used again; each reader has some of its own meanwhile.

    Whether some is in use cannot be seen from the memory: an array that numpy makes over a view
    keeps the memory alive, and does not keep it from being resized.
    """

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    @contextmanager
    def loan(self) -> Iterator[Loan]:
        """Lend memory; at the end nobody may use it any more."""
        memory = bytearray()
        with suppress(IndexError):
            memory = self._kept.pop()
        loan = Loan(memory)
        yield loan
        self._kept[:] = [loan.memory]  # not after an error: who tells of it may look at the value
