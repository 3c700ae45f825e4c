"""The ledger of an arena: who holds which block. It lies in the arena's own first pages.

A block is told by its slot. Each slot has

- a code: the class of its block while that is free, else ``LEASED``: the block is free by one store
  of one byte, from any process, without a lock;
- a class, and an offset: where the block lies. Both are the block's for good;
- a holder: a process, and whether the block is on its way to another;
- a turn: how often the block has been leased, so that a message that was sent long ago cannot be
  taken for one that is on its way.

Blocks take slots from the first one up.

Every change is one store that counts, made last: a process may be killed at any instruction.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

from pparallel.runtime.memory import Mapping
from pparallel.runtime.shm.sizes import CAPACITIES

SLOTS = 1 << 16
LEASED = 0xFF

TRANSIT = 1 << 30  #: on its way: the holder is the sender, and lives on in the message if he dies
MOVING = 1 << 31  #: about to be on its way, unless a view of it is retained
PID = TRANSIT - 1

_LAST_TURN = (1 << 32) - 1

_MAGIC = b"pparena1"
_FIELDS = 64
_MUTEX = 256
_CODES = 4096
_CLASSES = _CODES + SLOTS
_BACKED = _CLASSES + SLOTS
_HOLDERS = _BACKED + SLOTS
_OFFSETS = _HOLDERS + 4 * SLOTS
_TURNS = _OFFSETS + 8 * SLOTS
DATA = _TURNS + 4 * SLOTS  #: where the blocks begin

_SPAN, _BUDGET, _SHARED, _FLOOR, _USED, _RESIDENT, _FLAG = range(7)

_HEAD = struct.Struct("<8sQ")


class Ledger:
    """The tables of an arena, in place."""

    def __init__(self, mapping: Mapping) -> None:
        whole = mapping.bytes
        self.mapping = mapping
        self.memory = mapping.memory
        self.codes = whole[_CODES:_CLASSES]
        self.classes = whole[_CLASSES:_BACKED]
        self.backed = whole[_BACKED:_HOLDERS]
        self.holders = whole[_HOLDERS:_OFFSETS].cast("I")
        self.offsets = whole[_OFFSETS:_TURNS].cast("Q")
        self.turns = whole[_TURNS:DATA].cast("I")
        self.fields = whole[_FIELDS:_MUTEX].cast("Q")
        self.mutex = mapping.address + _MUTEX
        #: blocks that move, or were to, and who has them do so
        self.movers: dict[int, object] = {}
        #: those of them whose view has died
        self.gone: set[int] = set()

    @classmethod
    def make(cls, mapping: Mapping, budget: int, *, shared: bool, smallest: int) -> Ledger:
        """Return the ledger of a new arena."""
        ledger, span = cls(mapping), len(mapping.bytes)
        fields = ledger.fields
        fields[_SPAN], fields[_BUDGET], fields[_SHARED], fields[_FLOOR] = (
            span,
            budget,
            shared,
            smallest,
        )
        _HEAD.pack_into(mapping.bytes, 0, _MAGIC, span)
        return ledger

    @staticmethod
    def span_of(head: bytes) -> int:
        """Return how many bytes to map of a file that begins with *head*.

        Raises:
            ValueError: it is no arena.
        """
        magic, span = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
        if magic != _MAGIC:
            raise ValueError("the descriptor is not that of an arena")
        return int(span)

    @property
    def span(self) -> int:
        """Bytes of addresses."""
        return self.fields[_SPAN]

    @property
    def budget(self) -> int:
        """Bytes that may be in memory."""
        return self.fields[_BUDGET]

    @property
    def shared(self) -> bool:
        """Whether every process may allocate."""
        return bool(self.fields[_SHARED])

    @property
    def floor(self) -> int:
        """The smallest class that is given out."""
        return self.fields[_FLOOR]

    @property
    def used(self) -> int:
        """How many slots stand for blocks."""
        return self.fields[_USED]

    @property
    def resident(self) -> int:
        """Bytes of the blocks whose pages are in memory, leased or free."""
        return self.fields[_RESIDENT]

    @property
    def flag(self) -> bool:
        """Whether :meth:`raise_flag` was called, by anyone."""
        return self.fields[_FLAG] != 0

    def raise_flag(self) -> None:
        """Tell everyone something that they agree on."""
        self.fields[_FLAG] = 1

    def find(self, code: int) -> int:
        """Return the first block's slot with that code, -1 where there is none."""
        # A slice is a copy whose find is memchr; mmap's own find compares byte by byte.
        return self.memory[_CODES : _CODES + self.fields[_USED]].find(code)

    def all_with(self, code: int) -> list[int]:
        """Return the slots of all blocks with that code."""
        codes = self.memory[_CODES : _CODES + self.fields[_USED]]
        found, slot = [], codes.find(code)
        while slot >= 0:
            found.append(slot)
            slot = codes.find(code, slot + 1)
        return found

    def claim(self, slot: int, holder: int) -> None:
        """Lease a free block to *holder*."""
        self.holders[slot] = holder
        self.turns[slot] = self.turns[slot] + 1 & _LAST_TURN
        if not self.backed[slot]:
            self._back(slot)
        self.codes[slot] = LEASED

    def add(self, kind: int, holder: int) -> int:
        """Return a new block of that class, leased to *holder*; -1: there is no room for it."""
        slot = self.fields[_USED]
        offset = self._end(CAPACITIES[kind])
        if slot >= SLOTS or offset + CAPACITIES[kind] > self.span:
            return -1
        self.offsets[slot] = offset
        self.classes[slot] = kind
        self.holders[slot] = holder
        self.turns[slot] = self.turns[slot] + 1 & _LAST_TURN
        self.codes[slot] = LEASED
        self._back(slot)
        self.fields[_USED] = slot + 1  # counts; before it nothing has happened
        return slot

    def release(self, slot: int) -> None:
        """Let a leased block go."""
        self.codes[slot] = self.classes[slot]

    def on_its_way(self, slot: int, turn: int) -> bool:
        """Return whether the block was sent in that turn, and has not been adopted or dropped."""
        return (
            self.turns[slot] == turn
            and self.holders[slot] & TRANSIT != 0
            and self.codes[slot] == LEASED
        )

    def block_at(self, offset: int) -> int:
        """Return the slot of the block that holds the byte at *offset*, -1 where there is none."""
        slot = bisect_right(self.offsets, offset, 0, self.fields[_USED]) - 1
        if slot < 0 or offset >= self.offsets[slot] + CAPACITIES[self.classes[slot]]:
            return -1
        return slot

    def unback(self, slot: int) -> int:
        """Give the pages of a free block back; return how many bytes."""
        nbytes = CAPACITIES[self.classes[slot]]
        self.mapping.discard(self.offsets[slot], nbytes)
        self.backed[slot] = 0
        self.fields[_RESIDENT] -= nbytes
        return nbytes

    def drop_last(self) -> None:
        """Forget the last block, which is free and has no pages."""
        self.fields[_USED] -= 1

    def recount(self) -> None:
        """Make good what a process that was killed did not finish counting."""
        classes, backed = self.classes, self.backed
        self.fields[_RESIDENT] = sum(
            CAPACITIES[classes[slot]] for slot in range(self.fields[_USED]) if backed[slot]
        )

    def _back(self, slot: int) -> None:
        self.fields[_RESIDENT] += CAPACITIES[self.classes[slot]]
        self.backed[slot] = 1

    def _end(self, capacity: int) -> int:
        """Return where a new block of that capacity would begin."""
        last = self.fields[_USED] - 1
        end = DATA if last < 0 else self.offsets[last] + CAPACITIES[self.classes[last]]
        step = min(capacity, 4096)
        return -(-end // step) * step
