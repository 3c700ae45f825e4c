"""Looks for what comes next for a short while before it is waited for.

To sleep, and to be woken on another core, takes longer than most calls do. But a thread that looks
takes its core from others, so it does that only while what it waits for comes soon, and is not made
on the same core.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

SHORT = 150e-6  #: seconds for which it looks at least
SOON = 2e-3  #: seconds: what took longer to come is not looked for the next time
ROUND = 8e-6  #: seconds: where looking takes longer, another thread runs on this core meanwhile
SELDOM = 64  #: waits after which it is tried again there, at the most

_alone = threading.Lock()  # two threads of a process would only take the interpreter off each other
_pays = (os.cpu_count() or 1) > 1

T = TypeVar("T")


class Polling(Generic[T]):
    """Receives from one source, by one thread at a time."""

    __slots__ = ("_in_vain", "_limit", "_look_once", "_wait", "_waits")

    def __init__(self, wait: Callable[[], T], look: Callable[[], T | None]) -> None:
        """Know how to receive.

        Args:
            wait: returns what comes next.
            look: returns what has come, ``None`` if nothing has.
        """
        self._wait, self._look_once = wait, look
        self._limit = 0.0  # seconds for which to look
        self._in_vain = 1
        self._waits = 0 if _pays else -1  # how many times to wait without a look at the time

    def receive(self) -> T:
        """Return what comes next; raises what *wait* and *look* do."""
        if self._waits:
            self._waits -= 1
            return self._wait()
        data, began = None, time.perf_counter()
        if self._limit:
            data = self._look_once()
            if data is not None:  # it was there: who had waited for it would not have slept
                return data
            if _alone.acquire(False):
                data = self._look(began)
        if data is None:
            data = self._wait()
        waited = time.perf_counter() - began
        self._limit = min(max(2 * waited, SHORT), SOON) if waited < SOON else 0.0
        return data

    def _look(self, began: float) -> T | None:
        look, now, rest, limit = self._look_once, time.perf_counter, os.sched_yield, self._limit
        rounds, data = 0, None
        try:
            first = at = now()
            while data is None and at - began < limit:
                rest()
                data = look()
                rounds += 1
                at = now()
        finally:
            _alone.release()
        if at - first <= rounds * ROUND:
            self._in_vain = 1
        else:
            self._in_vain = self._waits = min(2 * self._in_vain, SELDOM)
        return data
