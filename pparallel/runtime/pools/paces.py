"""How many tasks make up a lot: as many as take a few milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pparallel.runtime.pools import board

TARGET = 0.0015  #: seconds of work in a lot: results do not wait longer than that
WHOLE = 0.008  #: the same where only all results together are wanted
TOGETHER = 3e-5  #: seconds of work that a worker runs without looking up
_WORTHWHILE = 3e-4  #: seconds of work below which a lot is not cut further
_QUICKEST = 1e-8
_GROWTH = 8  #: a lot is at most this many times as large as the one before
_MOST = 8000
_MOST_TOGETHER = 256
_FADING = 0.7  #: weight of what was known: a function that got quicker is believed slowly
_PATIENCE = 0.05  #: seconds of work in front of which a further lot may wait at a worker
_KNOWN = 1024  #: functions


class Pace:
    """How long the tasks of a function take.

    Attributes:
        seconds: of one task, estimated: rises at once, falls slowly; ``None``: unknown.
        last: how many tasks the lot had from which that is known.
    """

    __slots__ = ("last", "seconds")

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.last = 1

    def learn(self, seconds: float, tasks: int) -> None:
        """Take in that *tasks* took *seconds* in all."""
        each = seconds / tasks
        old = self.seconds
        self.seconds = each if old is None else max(each, _FADING * old + (1 - _FADING) * each)
        self.last = max(tasks, self.last // 2)

    def lot(self, left: int, workers: int, hint: int, target: float = TARGET) -> int:
        """Return how many of *left* tasks to send at once, for about *target* seconds of work.

        *hint* is the caller's chunk size.
        """
        if self.seconds is None:
            return min(left, max(1, hint), board.LIMIT)
        share = -(-left // (2 * workers))  # so that all end at about the same time
        if self.seconds * share < _WORTHWHILE:
            share = int(_WORTHWHILE / max(self.seconds, _QUICKEST))
        most = min(self.last * _GROWTH, share, _MOST)
        if self.seconds * most > target:
            most = int(target / self.seconds)
        return min(left, max(most, hint, 1), board.LIMIT)

    def together(self, tasks: int) -> int:
        """Return how many of *tasks* a worker may run without looking up."""
        if self.seconds is None or tasks == 1:
            return 1
        if self.seconds * _MOST_TOGETHER < TOGETHER:
            return _MOST_TOGETHER
        return max(1, int(TOGETHER / self.seconds))

    def is_quick(self, tasks: int) -> bool:
        """Return whether *tasks* will have ended soon: another lot may wait behind them."""
        return self.seconds is not None and self.seconds * tasks < _PATIENCE


class Paces:
    """The paces of the functions of one pool, by their code: that of a closure is known too."""

    def __init__(self) -> None:
        self._known: dict[object, Pace] = {}

    def of(self, func: Callable[..., Any]) -> Pace:
        """Return the pace of *func*."""
        inner: Any = func
        while isinstance(inner, partial):
            inner = inner.func
        inner = getattr(inner, "__func__", inner)
        key = getattr(inner, "__code__", None) or getattr(inner, "__qualname__", None)
        key = key or type(inner)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            found = self._known[key] = Pace()
        return found
