"""Waiting until the file changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

FIRST = 0.0005  #: seconds after which one who begins to wait looks first
GROWTH = 1.5  #: how much longer each pause is than the one before


class Watch:
    """Wakes those who wait for a change, at once if it is made in this process.

    sqlite tells nobody of what other processes commit. So one of the waiting threads looks for
    them all, now and then; to look costs some microseconds and reads shared memory alone.

    Args:
        look: returns whether other processes may have changed the file since it was last called.
        pause: seconds that may pass between two looks.
    """

    def __init__(self, look: Callable[[], bool], pause: float) -> None:
        self._look = look
        self._pause = pause
        self._changed = threading.Condition()
        self._is_watched = False
        self.changes = 0

    def tell(self) -> None:
        """Wake all who wait, to see what concerns them."""
        with self._changed:
            self.changes += 1
            self._changed.notify_all()

    def wait(self, seen: int, deadline: float) -> None:
        """Return when there are other changes than *seen*, or it is later than *deadline*."""
        while True:
            with self._changed:
                while self._is_watched and self._left(seen, deadline) > 0:
                    self._changed.wait(_finite(self._left(seen, deadline)))
                if self._left(seen, deadline) <= 0:
                    return
                self._is_watched = True
            try:
                self._watch(seen, deadline)
            finally:
                with self._changed:
                    self._is_watched = False
                    self._changed.notify_all()  # for another to take over

    def _watch(self, seen: int, deadline: float) -> None:
        pause = FIRST
        while True:
            with self._changed:
                if (left := self._left(seen, deadline)) <= 0:
                    return
                self._changed.wait(min(left, pause, self._pause))
                if self.changes != seen:
                    return
            pause = min(pause * GROWTH, self._pause)
            if self._look():
                self.tell()

    def _left(self, seen: int, deadline: float) -> float:
        """Return the seconds left to wait, none if there is something new."""
        return 0.0 if self.changes != seen else deadline - monotonic()


def _finite(seconds: float) -> float:
    return min(seconds, threading.TIMEOUT_MAX)
