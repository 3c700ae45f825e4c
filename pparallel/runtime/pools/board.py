"""Words that the pool and its workers share: who runs what, read without asking the worker.

A worker writes where it is before it starts a task, so that a death can be laid at the right door;
the pool writes which of its lots a worker is not to go on with. Each word has one writer, and is
written with one store.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from pparallel.machine.barriers import finish_stores

_WORDS = 4  #: per worker
_AT, _SINCE, _RECALLED = range(3)
_BITS = 14  #: of the index in a lot, and of the number of tasks run together
LIMIT = (1 << _BITS) - 1  #: most tasks of a lot
_MASK = LIMIT


class Place(NamedTuple):
    """Where a worker is.

    Attributes:
        lot: the number of the lot; 0: none.
        first: the first task that it runs.
        span: how many tasks it runs together from there.
    """

    lot: int
    first: int
    span: int


class Board:
    """The words of one pool's workers.

    Args:
        fd: a descriptor of the board's memory; the caller keeps it.
    """

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self.words = memoryview(self._map).cast("Q")

    @staticmethod
    def create(workers: int) -> int:
        """Return a descriptor of memory for a board."""
        fd = os.memfd_create("pparallel-board", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, max(mmap.PAGESIZE, workers * _WORDS * 8))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def close(self) -> None:
        """Give the memory back."""
        self.words.release()
        self._map.close()

    def clear(self, worker: int) -> None:
        """Make the words of *worker* as new, for its successor."""
        for word in range(_WORDS):
            self.words[worker * _WORDS + word] = 0

    def place(self, worker: int) -> Place:
        """Return where *worker* is."""
        word = self.words[worker * _WORDS + _AT]
        return Place(word >> 2 * _BITS, word >> _BITS & _MASK, word & _MASK)

    def since(self, worker: int) -> float:
        """Return when *worker* started the task that it runs: ``time.monotonic``; 0: never."""
        return self.words[worker * _WORDS + _SINCE] / 1e9

    def recall(self, worker: int, lot: int) -> None:
        """Have *worker* start nothing more of the lots up to *lot*.

        On return either it has seen that, or :meth:`place` tells what it had started.
        """
        self.words[worker * _WORDS + _RECALLED] = lot
        # The worker stores its place and then looks whether it is recalled. A processor may let a
        # load overtake a store, so both could miss the other; this costs the worker nothing.
        finish_stores()


class Spot:
    """A worker's own words on the board."""

    def __init__(self, board: Board, worker: int) -> None:
        self.words = board.words
        self.at = worker * _WORDS + _AT
        self.since = worker * _WORDS + _SINCE
        self.recalled = worker * _WORDS + _RECALLED

    def move(self, lot: int, first: int, span: int) -> None:
        """Say that the worker runs, of *lot*, *span* tasks from *first* on."""
        self.words[self.at] = word_of(lot) + first * STEP + span - 1


def word_of(lot: int) -> int:
    """Return what stands for task 0 of *lot*; see :data:`STEP`."""
    return lot << 2 * _BITS | 1


STEP = 1 << _BITS  #: added to the word once for each task
