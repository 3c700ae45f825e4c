"""Functions that are called every now and then, as long as there are any."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial

from pparallel.runtime.clock import Clock

logger = logging.getLogger(__name__)

_IDLE = 50  #: rounds with nothing to call after which there are no more
_OVERDUE = 0.1  #: seconds after which a round that has not come is taken for one that will not

Tick = Callable[[float], None]  #: called with the time, as ``time.monotonic`` has it


class Ticker:
    """Calls functions again and again, on the thread of a clock.

    To add and to remove one costs next to nothing while others come and go, which an entry in the
    clock for each does not. The functions must not block, for others wait.

    Attributes:
        clock: the clock.
    """

    def __init__(self, name: str, interval: float) -> None:
        """Know what is to be done.

        Args:
            name: of the thread.
            interval: seconds between two rounds.
        """
        self.clock, self._interval = Clock(name), interval
        self._there: set[Tick] = set()
        self._due = -math.inf  # by when the next round comes; past: there is none
        self._rounds: object = None  # what the rounds that count are known by
        self._in_vain = 0

    @property
    def is_idle(self) -> bool:
        """Whether there is no next round, for there has been nothing to call for a while."""
        return time.monotonic() >= self._due

    def add(self, what: Tick) -> None:
        """Call *what* from now on.

        Raises:
            ResourceExhaustedError: no thread can be started; *what* is not added.
        """
        self._there.add(what)
        if time.monotonic() >= self._due:  # also where a signal's handler has raised just below
            try:
                self._next(object())
            except BaseException:
                self._there.discard(what)
                raise

    def remove(self, what: Tick) -> None:
        """Call *what* no more; harmless if it was not called. It may be just being called."""
        self._there.discard(what)

    def close(self) -> None:
        """Call nothing more; safe to call again."""
        self.clock.close()
        self._there.clear()

    def _next(self, rounds: object) -> None:
        """Have the next round come; those that are known by anything else end."""
        self._rounds = rounds
        self.clock.after(self._interval, partial(self._round, rounds))
        self._due = time.monotonic() + self._interval + _OVERDUE

    def _round(self, rounds: object) -> None:
        if rounds is not self._rounds:
            return
        self._in_vain = 0 if self._there else self._in_vain + 1
        if self._in_vain > _IDLE:
            self._in_vain = 0
            self._due = -math.inf
            # Whoever adds one looks afterwards whether there is a next round, or is seen here.
            if not self._there:
                return
        try:
            self._call_all(time.monotonic())
        finally:  # also where there is no memory for that
            if rounds is self._rounds:
                self._next(rounds)

    def _call_all(self, now: float) -> None:
        for each in self._there.copy():
            try:
                each(now)
            except BaseException:  # the others are to be called all the same
                logger.exception("A function that is called every now and then has failed")
