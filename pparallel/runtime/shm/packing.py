"""A parcel in the making."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import Buffer

from pparallel.runtime.flat_views import flat
from pparallel.runtime.memory import address_of
from pparallel.runtime.shm.arena import Arena
from pparallel.runtime.shm.files import Spill
from pparallel.runtime.shm.heads import (
    AWAY_BYTE,
    COUNT,
    ENTRY,
    FILE,
    HERE,
    INLINE,
    MANY,
    Entry,
)
from pparallel.runtime.shm.ledger import LEASED, MOVING, TRANSIT, Ledger
from pparallel.runtime.shm.sizes import CAPACITIES

PART = 8  #: a buffer that is less than one of so many parts of a block is copied, not moved


class Packing:
    """Puts buffers where their receiver finds them.

    Attributes:
        moving: the blocks that are to travel as they are, by number of arena and slot.
        retained: those of them that are viewed still, once the parcel is sealed.
        fds: descriptors that travel along.
    """

    __slots__ = (
        "_arenas",
        "_entries",
        "_longest",
        "_number",
        "_own",
        "_pid",
        "_short",
        "_slots",
        "_small",
        "_spill",
        "fds",
        "moving",
        "retained",
    )

    def __init__(
        self,
        own: Arena | None,
        number: int,
        arenas: Mapping[int, Arena],
        longest: int,
        short: Callable[[int], None],
    ) -> None:
        self._own, self._number, self._arenas = own, number, arenas
        self._longest, self._short = longest, short
        self._pid = os.getpid()
        self._entries: list[Entry] = []
        self._small: list[memoryview | bytes] = []
        self._slots: list[int] = []  # blocks of one's own
        self._spill: Spill | None = None
        self.moving: set[tuple[int, int]] = set()
        self.retained: set[tuple[int, int]] = set()
        self.fds: list[int] = []

    def add(self, buffers: Sequence[Buffer], move: bool) -> None:
        """Take the buffers' bytes, except of those that are to move."""
        entries = self._entries
        for each in buffers:
            raw = flat(each)
            nbytes = len(raw)
            if nbytes < INLINE:
                # What is sealed later must not refer to what it was made of.
                self._small.append(bytes(raw) if move else raw)
                entries.append((HERE, 0, 0, 0, nbytes))
            elif move and (found := self._lying_in(raw)) is not None:
                entries.append(found)
            else:
                entries.append(self._placed(raw))

    def seal(self) -> bytes:
        """Return the head, and have everything on its way."""
        if self.moving:
            self._settle_moves()
        head = self._head()
        mine = TRANSIT | self._pid
        if self._slots:
            holders = self._arenas[self._number].ledger.holders
            for slot in self._slots:
                holders[slot] = mine
        for place, slot in self.moving - self.retained:
            ledger = self._arenas[place].ledger
            ledger.gone.discard(slot)
            del ledger.movers[slot]
            ledger.holders[slot] = mine
        return head

    def undo(self) -> None:
        """Let everything go; blocks that were to move are retained."""
        for slot in self._slots:
            self._arenas[self._number].ledger.release(slot)
        self._slots = []
        self.retained = self.moving
        for descriptor in self.fds:
            os.close(descriptor)
        self.fds = []

    def _lying_in(self, raw: memoryview) -> Entry | None:
        """Return where *raw* lies, and have its block move, if that is this process's alone."""
        address, nbytes = address_of(raw), len(raw)
        for place, arena in self._arenas.items():
            ledger = arena.ledger
            offset = address - ledger.mapping.address
            if not 0 <= offset < ledger.span or (slot := ledger.block_at(offset)) < 0:
                continue
            kind = ledger.classes[slot]
            # Of a large block a small part had better be copied.
            if nbytes * PART >= CAPACITIES[kind] and self._moves(ledger, place, slot):
                return place, slot, ledger.turns[slot], offset - ledger.offsets[slot], nbytes
        return None

    def _moves(self, ledger: Ledger, place: int, slot: int) -> bool:
        if (place, slot) in self.moving:
            return True
        # Two threads may return the same object: one of them has it move.
        if ledger.movers.setdefault(slot, self) is not self:
            return False
        mine = ledger.holders[slot] == self._pid and ledger.codes[slot] == LEASED
        if not mine:
            del ledger.movers[slot]
            return False
        ledger.holders[slot] = MOVING | self._pid
        self.moving.add((place, slot))
        return True

    def _settle_moves(self) -> None:
        # Once for all: a view that dies from now on changes nothing.
        arenas = self._arenas
        self.retained = {key for key in self.moving if key[1] not in arenas[key[0]].ledger.gone}
        if self.retained:
            self._entries = [self._still_here(entry) for entry in self._entries]

    def _still_here(self, entry: Entry) -> Entry:
        place, slot, _, start, nbytes = entry
        if (place, slot) not in self.retained:
            return entry
        ledger = self._arenas[place].ledger
        start += ledger.offsets[slot]
        return self._placed(ledger.mapping.bytes[start : start + nbytes])

    def _placed(self, raw: memoryview) -> Entry:
        nbytes = len(raw)
        own = self._own
        slot = -1 if own is None else own.take(nbytes, self._pid)
        if own is None or slot < 0:
            return self._spilt(raw)
        self._slots.append(slot)
        ledger = own.ledger
        ledger.mapping.write(ledger.offsets[slot], raw)
        return self._number, slot, ledger.turns[slot], 0, nbytes

    def _spilt(self, raw: memoryview) -> Entry:
        self._short(len(raw))
        if self._spill is None:
            self._spill = Spill()
            self.fds = [self._spill.descriptor]
        return FILE, 0, 0, self._spill.add(raw), len(raw)

    def _head(self) -> bytes:
        entries = self._entries
        head = b"".join(
            (
                COUNT.pack(MANY, len(entries)),
                *[ENTRY.pack(*each) for each in entries],
                *self._small,
            )
        )
        if len(head) <= self._longest:
            return head
        return AWAY_BYTE + ENTRY.pack(*self._placed(memoryview(head)))
