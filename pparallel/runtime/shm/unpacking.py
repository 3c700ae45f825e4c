"""A parcel being opened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import Buffer

from pparallel.runtime.shm.arena import Arena
from pparallel.runtime.shm.files import Spilt
from pparallel.runtime.shm.heads import AWAY, COUNT, ENTRY, FILE, HERE, LONE, ONE, Entry
from pparallel.runtime.shm.ledger import LEASED, Ledger
from pparallel.runtime.shm.views import adopt, take


class Unpacking:
    """Finds the buffers of a head."""

    def __init__(self, arenas: Mapping[int, Arena], fds: Sequence[int]) -> None:
        self._arenas = arenas
        self._pid = os.getpid()
        self._spilt = Spilt(fds)
        self._views: dict[tuple[int, int], Any] = {}

    def buffers(self, head: memoryview) -> list[Buffer]:
        """Return the buffers, this process's own."""
        try:
            if head[0] == ONE:
                return [bytearray(head[1:])]
            if head[0] == LONE:
                return [self._lone(*ENTRY.unpack(head[1:]))]
            if head[0] == AWAY:
                head = self._memory(ENTRY.unpack(head[1:]))
            entries, small = _parts(head)
            try:
                return list(self._each(entries, small))
            except BaseException:
                self._release(each for each in entries if each[:2] not in self._views)
                raise
        finally:
            self._spilt.close()

    def drop(self, head: memoryview) -> None:
        """Let everything go."""
        try:
            self._release(self._all(head))
        finally:
            self._spilt.close()

    def mark(self, head: memoryview, before: int, after: int) -> None:
        """Change what is said of this process's blocks beside its number."""
        for place, slot, turn in self.blocks(head):
            ledger = self._ledger(place)
            if ledger.turns[slot] == turn and ledger.holders[slot] == before | self._pid:
                ledger.holders[slot] = after | self._pid

    def blocks(self, head: memoryview) -> set[tuple[int, int, int]]:
        """Return number of arena, slot and turn of each block."""
        return _blocks(self._all(head))

    def _all(self, head: memoryview) -> list[Entry]:
        """Return all entries, without adopting anything."""
        if head[0] == ONE:
            return []
        if head[0] == LONE:
            return [ENTRY.unpack(head[1:])]
        away: list[Entry] = []
        if head[0] == AWAY:
            away = [ENTRY.unpack(head[1:])]
            found = self._bytes(*away)
            if found is None:
                return []
            head = found
        return [*_parts(head)[0], *away]

    def _each(self, entries: Sequence[Entry], small: memoryview) -> Iterator[Buffer]:
        start = 0
        for entry in entries:
            if entry[0] == HERE:
                end = start + entry[4]
                yield bytearray(small[start:end])
                start = end
            else:
                yield self._memory(entry)

    def _lone(self, place: int, slot: int, turn: int, start: int, nbytes: int) -> bytearray:
        ledger = self._ledger(place)
        take(ledger, slot, turn, self._pid)
        start += ledger.offsets[slot]
        content = bytearray(ledger.mapping.bytes[start : start + nbytes])
        ledger.release(slot)
        return content

    def _memory(self, entry: Entry) -> memoryview:
        place, slot, turn, start, nbytes = entry
        if place == FILE:
            return self._spilt.part(start, nbytes)
        view = self._views.get((place, slot))
        if view is None:
            view = adopt(self._ledger(place), slot, turn, self._pid)
            self._views[place, slot] = view
        return memoryview(view).cast("B")[start : start + nbytes]

    def _bytes(self, entry: Entry) -> memoryview | None:
        """Return what nobody has let go of yet, without adopting it."""
        place, slot, turn, start, nbytes = entry
        if place == FILE:
            return self._spilt.part(start, nbytes)
        ledger = self._known(place)
        if ledger is None or ledger.turns[slot] != turn or ledger.codes[slot] != LEASED:
            return None
        start += ledger.offsets[slot]
        return ledger.mapping.bytes[start : start + nbytes]

    def _release(self, entries: Iterable[Entry]) -> None:
        for place, slot, turn in _blocks(entries):
            ledger = self._known(place)
            if ledger is not None and ledger.on_its_way(slot, turn):
                ledger.release(slot)

    def _ledger(self, place: int) -> Ledger:
        arena = self._arenas.get(place)
        if arena is None:
            raise RuntimeError(f"a message lies in arena {place}, which is not known here")
        return arena.ledger

    def _known(self, place: int) -> Ledger | None:
        """Return where the arena is; None if it is closed, with all that lay in it, or unknown."""
        try:
            return self._ledger(place)
        except RuntimeError:  # as ClosedError is
            return None


def _parts(head: memoryview) -> tuple[list[Entry], memoryview]:
    _, count = COUNT.unpack_from(head)
    end = COUNT.size + count * ENTRY.size
    return list(ENTRY.iter_unpack(head[COUNT.size : end])), head[end:]


def _blocks(entries: Iterable[Entry]) -> set[tuple[int, int, int]]:
    return {each[:3] for each in entries if each[0] not in (HERE, FILE)}
