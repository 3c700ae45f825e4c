"""Count what becomes of gradients, and tell of it."""

from __future__ import annotations

import threading

from pparallel.interfaces.reducer import Counters
from pparallel.runtime.events import (
    Events,
    GradientsLost,
    GradientsRefused,
    Pulled,
    Pushed,
    Reduced,
)


class Tally:
    """The counters of one reducer in one member, which several threads raise.

    All that is counted is told of as well, so that events and counters agree.
    """

    def __init__(self, events: Events, reducer: str) -> None:
        self._events = events
        self._where = (events.member, reducer)
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("pushed", "reduced", "late", "refused", "lost"), 0)
        self._behind = self._sent_bytes = 0

    def pushed(self) -> None:
        """Count a gradient of this member that was accepted."""
        self._add("pushed", 1)
        if self._events.listening:
            self._events.emit(Pushed(*self._where))

    def reduced(self, count: int, behind: int, version: int) -> None:
        """Count a step on *count* gradients, together *behind* steps behind, to *version*."""
        with self._lock:
            self._counts["reduced"] += count
            self._behind += behind
        if self._events.listening:
            self._events.emit(Reduced(*self._where, count, version, behind / max(1, count)))

    def pulled(self, version: int) -> None:
        """Tell that this member took the parameters of *version*."""
        if self._events.listening:
            self._events.emit(Pulled(*self._where, version))

    def refused(self, count: int, sender: str, reason: object, *, late: bool = False) -> None:
        """Count *count* gradients from *sender* that were refused here."""
        self._add("late" if late else "refused", count)
        if self._events.listening:
            self._events.emit(GradientsRefused(*self._where, count, sender, late, str(reason)))

    def lost(self, count: int, holder: str) -> None:
        """Count *count* acknowledged gradients of this member that ended with *holder*."""
        self._add("lost", count)
        if self._events.listening:
            self._events.emit(GradientsLost(*self._where, count, holder))

    def sent(self, nbytes: int) -> None:
        """Count *nbytes* of gradients or parameters that left for another member."""
        with self._lock:
            self._sent_bytes += nbytes

    def counters(self) -> Counters:
        """Return the counts so far."""
        with self._lock:
            staleness = self._behind / max(1, self._counts["reduced"])
            return Counters(**self._counts, staleness=staleness, sent_bytes=self._sent_bytes)

    def _add(self, what: str, count: int) -> None:
        with self._lock:
            self._counts[what] += count
