"""A parcel being opened."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import Buffer

from pparallel.runtime.shm.arena import Arena
from pparallel.runtime.shm.files import Spilt
from pparallel.runtime.shm.heads import AWAY, COUNT, ENTRY, FILE, HERE, ONE, Entry
from pparallel.runtime.shm.views import adopt


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
            if head[0] == ONE:
                return
            away: list[Entry] = []
            if head[0] == AWAY:
                away = [ENTRY.unpack(head[1:])]
                head = (
                    self._spilt.part(*away[0][3:]) if away[0][0] == FILE else self._bytes(away[0])
                )
            entries, _ = _parts(head)
            self._release([*entries, *away])
        finally:
            self._spilt.close()

    def _each(self, entries: Sequence[Entry], small: memoryview) -> Iterator[Buffer]:
        start = 0
        for entry in entries:
            if entry[0] == HERE:
                end = start + entry[4]
                yield bytearray(small[start:end])
                start = end
            else:
                yield self._memory(entry)

    def _memory(self, entry: Entry) -> memoryview:
        place, slot, turn, start, nbytes = entry
        if place == FILE:
            return self._spilt.part(start, nbytes)
        view = self._views.get((place, slot))
        if view is None:
            view = self._views[place, slot] = adopt(
                self._arenas[place].ledger, slot, turn, self._pid
            )
        return memoryview(view).cast("B")[start : start + nbytes]

    def _bytes(self, entry: Entry) -> memoryview:
        place, slot, _, start, nbytes = entry
        ledger = self._arenas[place].ledger
        start += ledger.offsets[slot]
        return ledger.mapping.bytes[start : start + nbytes]

    def _release(self, entries: Iterator[Entry] | Sequence[Entry]) -> None:
        for place, slot, turn in {each[:3] for each in entries if each[0] not in (HERE, FILE)}:
            ledger = self._arenas[place].ledger
            if ledger.on_its_way(slot, turn):
                ledger.release(slot)


def _parts(head: memoryview) -> tuple[list[Entry], memoryview]:
    _, count = COUNT.unpack_from(head)
    end = COUNT.size + count * ENTRY.size
    return list(ENTRY.iter_unpack(head[COUNT.size : end])), head[end:]
