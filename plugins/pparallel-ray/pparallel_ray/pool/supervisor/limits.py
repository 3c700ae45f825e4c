"""How long a worker's task may take, and how much memory the worker."""

from __future__ import annotations

import os
from time import monotonic

from pparallel.runtime.pools.board import Board
from pparallel_ray.pool.wire.orders import Settings

_RSS = 0.05  #: seconds between looks at a worker's memory
_SOON = 0.001


class Limits:
    """Watches one process.

    Args:
        pid: its number.
        board: where it writes what it runs.
        settings: of its supervisor.

    Attributes:
        was_late: a task has taken too long.
    """

    def __init__(self, pid: int, board: Board, settings: Settings) -> None:
        self._pid = pid
        self._board = board
        self._timeout = settings.task_timeout
        self._max_rss = settings.max_rss
        self._baseline: int | None = None
        self._looked = 0.0
        self.was_late = False

    def due(self) -> float:
        """Return in how many seconds to look."""
        soonest = _RSS if self._baseline is not None else 1.0
        if self._timeout is not None:
            since = self._board.since(0)
            left = since + self._timeout - monotonic() if since else self._timeout
            soonest = min(soonest, max(_SOON, left))
        return soonest

    def measure_from(self, memory: int) -> None:
        """Note how many bytes of memory it had when it had started."""
        self._baseline = memory

    def is_late(self) -> bool:
        """Return whether a task takes too long; from then on no other starts."""
        if self._timeout is None or self.was_late:
            return False
        since = self._board.since(0)
        if not since or monotonic() - since < self._timeout:
            return False
        place = self._board.place(0)
        self._board.recall(0, place.lot)
        # Only now is it certain that what it runs is what it will be found to have run.
        self.was_late = self._board.since(0) == since and self._board.place(0) == place
        return self.was_late

    def has_grown(self) -> bool:
        """Return whether it has taken too much memory; looked at now and then."""
        now = monotonic()
        if self._max_rss is None or self._baseline is None or now - self._looked < _RSS:
            return False
        self._looked = now
        return own_memory(self._pid) - self._baseline >= self._max_rss


def own_memory(pid: int) -> int:
    """Return how many bytes of memory a process has that it does not share; 0: unknown."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
