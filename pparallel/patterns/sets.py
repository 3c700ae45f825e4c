"""The set of slaves that a master has, and those that took its place."""

from __future__ import annotations

import threading
from typing import Any

from pparallel.errors import ClosedError
from pparallel.patterns.gathering import Gathering
from pparallel.patterns.matching import MASTER
from pparallel.patterns.slave import Codec


class Sets:
    """One set at a time: a registration after a round begins a new one."""

    def __init__(self, timeout: float | None, master: str | None = None) -> None:
        self.timeout = timeout
        self._master = master
        self._lock = threading.Lock()
        self._current = Gathering(master, timeout)
        self._closed = False

    @property
    def current(self) -> Gathering:
        """The set that takes part in the next round."""
        return self._current

    def join(self, identifier: Any, codec: Codec, holder: str) -> Gathering:
        """Count on a slave in member *holder*; return the set, which is never a new one.

        Members join together: one that has failed meanwhile must not be forgotten.

        Raises:
            ValueError: the identifier is taken.
            TypeError: it cannot be hashed, or not be sorted with the others.
        """
        with self._lock:
            self._current.enrol(identifier, codec, holder)
            return self._current

    def register(self, identifier: Any, codec: Codec) -> Gathering:
        """Count on one more slave in the next round; return the set that it is in.

        Raises:
            ClosedError: the master is closed.
            ValueError: the identifier is taken.
            TypeError: it cannot be hashed, or not be sorted with the others.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the SyncMaster")
            old = self._current
            new = Gathering(self._master, self.timeout) if old.used else old
            new.enrol(identifier, codec)
            self._current = new
        if new is not old:
            why = f"was replaced by a new one, which began with slave {identifier!r}"
            old.end(ClosedError("the set of slaves", why))
        return new

    def close(self) -> None:
        """Say that there will be no more rounds; safe to call again."""
        with self._lock:
            self._closed = True
        self._current.leave(MASTER)
