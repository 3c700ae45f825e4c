"""Count what becomes of gradients."""

from __future__ import annotations

import threading

from pparallel.interfaces.reducer import Counters


class Tally:
    """The counters of one member, which several threads raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("pushed", "reduced", "late", "refused", "lost"), 0)
        self._behind = 0

    def add(self, what: str, count: int = 1) -> None:
        """Count *count* more gradients that were *what*, a field of :class:`Counters`."""
        with self._lock:
            self._counts[what] += count

    def reduced(self, count: int, behind: int) -> None:
        """Count *count* reduced gradients, which together were *behind* steps behind."""
        with self._lock:
            self._counts["reduced"] += count
            self._behind += behind

    def counters(self) -> Counters:
        """Return the counts so far."""
        with self._lock:
            staleness = self._behind / max(1, self._counts["reduced"])
            return Counters(**self._counts, staleness=staleness)
