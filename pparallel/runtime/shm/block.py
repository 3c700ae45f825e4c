"""A leased block, as those who allocate see it."""

from __future__ import annotations

import os
from typing import TypeAlias

from typing_extensions import Buffer

from pparallel.runtime.shm.ledger import TRANSIT, Ledger
from pparallel.runtime.shm.views import lease

Ticket: TypeAlias = tuple[int, int, int]  #: slot, turn, bytes


class Block:
    """A block of an arena that this process holds, until it is viewed, sent or released.

    Attributes:
        slot: its number, by which another process that has the arena finds it.
        nbytes: how many bytes were asked for.
    """

    __slots__ = ("_ledger", "nbytes", "slot")

    def __init__(self, ledger: Ledger, slot: int, nbytes: int) -> None:
        self._ledger, self.slot, self.nbytes = ledger, slot, nbytes

    def write(self, source: Buffer, at: int = 0) -> None:
        """Copy *source*, which is contiguous, into the block."""
        raw = memoryview(source).cast("B")
        if at + len(raw) > self.nbytes:
            raise ValueError(f"{len(raw)} bytes at {at} do not fit a block of {self.nbytes}")
        ledger = self._ledger
        ledger.mapping.write(ledger.offsets[self.slot] + at, raw)

    def view(self) -> memoryview:
        """Return the block as memory; it is let go when nothing refers to that any more."""
        return memoryview(lease(self._ledger, self.slot)).cast("B")[: self.nbytes]

    def send(self) -> Ticket:
        """Say that the block is on its way; return what its receiver gives to ``Arena.adopt``."""
        ledger, slot = self._ledger, self.slot
        ledger.holders[slot] = TRANSIT | os.getpid()
        return slot, ledger.turns[slot], self.nbytes

    def release(self) -> None:
        """Let the block go, which has been neither viewed nor sent."""
        self._ledger.release(self.slot)
