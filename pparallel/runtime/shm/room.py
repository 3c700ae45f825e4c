"""Makes room in an arena when no free block of the right size is at hand.

Everything here runs under the arena's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from pparallel.runtime.memory import arena as memory
from pparallel.runtime.shm.ledger import LEASED, PID, TRANSIT, Ledger
from pparallel.runtime.shm.processes import lives
from pparallel.runtime.shm.sizes import CAPACITIES

POPULATED = 1 << 20  #: bytes from which on fresh pages are had at once
LOOK = 1 << 25  #: bytes of fresh pages between looks at how much memory the machine has left


class Room:
    """Finds, adds and gives back the blocks of one arena."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._grown = LOOK
        self.shortage = ""

    def make(self, kind: int, pid: int) -> int:
        """Return a block of that class, leased to *pid*; -1 where there is no room."""
        self.shortage = ""
        slot = self._found_or_added(kind, pid)
        if slot < 0 and self._free_what_the_dead_held():
            slot = self._found_or_added(kind, pid)
        return self._larger(kind, pid) if slot < 0 else slot

    def trim(self) -> int:
        """Give the pages of all free blocks back; return how many bytes."""
        ledger = self._ledger
        given = sum(ledger.unback(slot) for slot in self._free_and_backed())
        self._shrink()
        return given

    def free_where(self, gone: Callable[[int], bool]) -> bool:
        """Free what is leased to a holder of whom *gone* says so; return whether there was any."""
        ledger = self._ledger
        held = ledger.all_with(LEASED)
        lost = [slot for slot in held if gone(ledger.holders[slot])]
        for slot in lost:
            ledger.release(slot)
        return bool(lost)

    def _found_or_added(self, kind: int, pid: int) -> int:
        ledger = self._ledger
        slot = ledger.find(kind)
        if slot >= 0 and ledger.backed[slot]:
            ledger.claim(slot, pid)
            return slot
        if not self._may_grow(CAPACITIES[kind]):
            return -1
        if slot >= 0:
            ledger.claim(slot, pid)
        else:
            slot = ledger.add(kind, pid)
            if slot < 0 and self._shrink():
                slot = ledger.add(kind, pid)
            if slot < 0:
                self.shortage = f"its {ledger.span} bytes of addresses are taken"
                return -1
        return slot if self._populated(slot) else -1

    def _populated(self, slot: int) -> bool:
        ledger = self._ledger
        nbytes = CAPACITIES[ledger.classes[slot]]
        self._grown += nbytes
        if nbytes < POPULATED or ledger.mapping.populate(ledger.offsets[slot], nbytes):
            return True
        ledger.release(slot)
        ledger.unback(slot)
        self.shortage = "the machine has no memory left"
        return False

    def _may_grow(self, nbytes: int) -> bool:
        ledger = self._ledger
        if ledger.resident + nbytes > ledger.budget:
            self._give_back(ledger.resident + nbytes - ledger.budget)
            if ledger.resident + nbytes > ledger.budget:
                self.shortage = f"its budget is {ledger.budget} bytes"
                return False
        if self._grown + nbytes < LOOK:
            return True
        if not memory.has_room(nbytes):
            self.trim()
            if not memory.has_room(nbytes):
                self.shortage = "the machine's, or the control group's, memory is nearly used up"
                return False
        self._grown = 0
        return True

    def _give_back(self, nbytes: int) -> None:
        """Give pages of free blocks back, of the largest first, until *nbytes* are."""
        ledger = self._ledger
        slots = self._free_and_backed()
        for slot in sorted(slots, key=lambda slot: ledger.classes[slot], reverse=True):
            if nbytes <= 0:
                return
            nbytes -= ledger.unback(slot)

    def _larger(self, kind: int, pid: int) -> int:
        """Lease a free block that is larger than it need be."""
        ledger = self._ledger
        for each in range(kind + 1, len(CAPACITIES)):
            slot = ledger.find(each)
            if slot >= 0 and ledger.backed[slot]:
                ledger.claim(slot, pid)
                return slot
        return -1

    def _free_what_the_dead_held(self) -> bool:
        me = os.getpid()
        known = {me: True}

        def gone(holder: int) -> bool:
            # A message outlives its sender.
            if holder & TRANSIT:
                return False
            pid = holder & PID
            if pid not in known:
                known[pid] = lives(pid)
            return not known[pid]

        return self.free_where(gone)

    def _free_and_backed(self) -> list[int]:
        ledger = self._ledger
        return [
            slot
            for kind in set(bytes(ledger.classes[: ledger.used]))
            if not CAPACITIES[kind] % memory.PAGE  # it shares no page
            for slot in ledger.all_with(kind)
            if ledger.backed[slot]
        ]

    def _shrink(self) -> bool:
        """Forget free blocks at the end, so that others may have their addresses."""
        ledger, before = self._ledger, self._ledger.used
        while ledger.used and ledger.codes[ledger.used - 1] == ledger.classes[ledger.used - 1]:
            slot = ledger.used - 1
            if ledger.backed[slot]:
                if CAPACITIES[ledger.classes[slot]] % memory.PAGE:
                    break
                ledger.unback(slot)
            ledger.drop_last()
        return ledger.used < before
