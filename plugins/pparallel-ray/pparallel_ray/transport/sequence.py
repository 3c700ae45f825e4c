"""Puts what one member sends back in order: Ray starts calls of such actors in any."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Sequence:
    """Acts on parcels in the order of their numbers, from 0, and on each once.

    The thread that brings what is next acts on it, and on what waited for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: dict[int, Callable[[], None]] = {}
        self._next = 0
        self._is_acting = False

    def arrived(self, number: int, act: Callable[[], None]) -> None:
        """Have *act* called when all with a lower number have been; it must not block or raise."""
        with self._lock:
            if number < self._next or number in self._early:
                return
            self._early[number] = act
            if self._is_acting:
                return
            self._is_acting = True
        while (following := self._following()) is not None:
            following()

    def _following(self) -> Callable[[], None] | None:
        with self._lock:
            found = self._early.pop(self._next, None)
            if found is None:
                self._is_acting = False
            else:
                self._next += 1
            return found
