"""Back-pressure: how much a member may have in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from pparallel.errors import ClosedError


class Window:
    """Counts the bytes of calls that have been sent and not answered.

    A caller that would exceed the limit waits until there is room. One call alone may exceed it:
    otherwise it could never be sent.
    """

    OVERHEAD = 1024  #: bytes that a call is taken to cost beyond its frames

    def __init__(self, limit: int, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self._limit = limit
        self._waiting = waiting
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._waiters = 0
        self._used = 0
        self._closed = False

    def take(self, size: int) -> int:
        """Wait for room for *size* bytes; return what to give back.

        Raises:
            ClosedError: the window was closed, before or meanwhile.
        """
        size += self.OVERHEAD
        with self._lock:
            if self._used + size > self._limit:
                self._wait_for(size)
            if self._closed:
                raise ClosedError("the runtime")
            self._used += size
        return size

    def give_back(self, size: int, _: object = None) -> None:
        """Make room for others; also as what a future calls when it is done."""
        with self._lock:
            self._used -= size
            if self._waiters:
                self._room.notify_all()

    def close(self) -> None:
        """Wake whoever waits."""
        with self._lock:
            self._closed = True
            self._room.notify_all()

    def _wait_for(self, size: int) -> None:
        if not self._full(size):
            return
        self._waiters += 1
        try:
            with self._waiting():
                while self._full(size):
                    self._room.wait()
        finally:
            self._waiters -= 1

    def _full(self, size: int) -> bool:
        return not self._closed and self._used > 0 and self._used + size > self._limit
