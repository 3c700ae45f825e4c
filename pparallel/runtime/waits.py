"""Waits: the longest time that one takes at once, and a short look before a thread sleeps."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from time import perf_counter
from typing import Generic, TypeVar

LONGEST_WAIT = 1 << 20  #: seconds, some 12 days; see :func:`at_most`
SPIN = 150e-6  #: seconds for which a thread looks before it sleeps
REST = 16  #: receives without a look after one in vain

_pays = (os.cpu_count() or 1) > 1

T = TypeVar("T")


def at_most(timeout: float | None) -> float | None:
    """Return what a wait of *timeout* seconds takes at once; ``None``: without end.

    The system's calls take an int of milliseconds, and raise ``OverflowError`` from 24 days on. A
    wait that ends in vain after :data:`LONGEST_WAIT` seconds is to be repeated.
    """
    return None if timeout is None else min(timeout, LONGEST_WAIT)


def milliseconds(timeout: float | None) -> int | None:
    """Return the same as :func:`at_most` in milliseconds, not less than asked."""
    return None if timeout is None else math.ceil(min(timeout, LONGEST_WAIT) * 1000)


class Spin(Generic[T]):
    """Receives from one source, by one thread at a time.

    The thread looks again and again for :data:`SPIN` seconds, and lets others run in between.
    Where nothing comes within that time, the next :data:`REST` receives wait at once: another
    thread may hold the core or the interpreter's lock, and each look would wait for that as well.
    """

    __slots__ = ("_look", "_wait", "_waits")

    def __init__(self, wait: Callable[[], T], look: Callable[[], T | None]) -> None:
        """Know how to receive.

        Args:
            wait: returns what comes next.
            look: returns what has come, ``None`` if nothing has.
        """
        self._wait, self._look = wait, look
        self._waits = 0 if _pays else -1  # receives that do not look; negative: none ever looks

    def receive(self) -> T:
        """Return what comes next; raises what *wait* and *look* do."""
        if self._waits:
            self._waits -= 1
            return self._wait()
        began, look = perf_counter(), self._look
        found = look()
        while found is None and perf_counter() - began < SPIN:
            os.sched_yield()
            found = look()
        if found is None:
            found = self._wait()
        if perf_counter() - began >= SPIN:
            self._waits = REST
        return found
