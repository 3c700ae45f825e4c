"""Puts messages back in order, where what brings them hands each to any thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Ordering:
    """What one member sends to this one, acted on in the order of its numbers, from 0, each once.

    The thread that brings what is next acts on it, and on what waited for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: dict[int, Callable[[], None]] = {}
        self._last: Callable[[], None] | None = None
        self._next = 0
        self._ended = self._busy = False

    @property
    def has_begun(self) -> bool:
        """Whether anything has been acted on."""
        return self._next > 0

    def arrived(self, number: int, act: Callable[[], None]) -> None:
        """Have *act* called when all with a lower number have been; it must not block or raise."""
        with self._lock:
            if number < self._next or number in self._early or self._ended:  # it came twice
                return
            self._early[number] = act
        self._go_on()

    def end(self, act: Callable[[], None]) -> None:
        """Have *act* called after what can be acted on now, and nothing else later."""
        with self._lock:
            if self._ended:
                return
            self._ended, self._last = True, act
        self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            if self._busy:
                return
            self._busy = True
        while (following := self._following()) is not None:
            try:
                following()
            except BaseException:  # those behind it are to be acted on all the same
                logger.exception("What a member has sent could not be acted on")

    def _following(self) -> Callable[[], None] | None:
        with self._lock:
            found = self._early.pop(self._next, None)
            if found is not None:
                self._next += 1
                return found
            found, self._last = self._last, None
            if found is not None:
                self._early.clear()
            else:
                self._busy = False
            return found
