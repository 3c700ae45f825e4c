"""Functions that are called every now and then, as long as there are any."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from pparallel.runtime.clock import Clock

logger = logging.getLogger(__name__)

_IDLE = 50  #: rounds with nothing to call after which there are no more

Tick = Callable[[float], None]  #: called with the time, as ``time.monotonic`` has it


class Ticker:
    """Calls functions again and again, on the thread of a clock.

    To add and to remove one costs next to nothing while others come and go, which an entry in the
    clock for each does not. The functions must not block, for others wait.

    Attributes:
        clock: the clock.
        is_idle: whether there is no next round, for there has been nothing to call for a while.
    """

    def __init__(self, name: str, interval: float) -> None:
        """Know what is to be done.

        Args:
            name: of the thread.
            interval: seconds between two rounds.
        """
        self.clock, self._interval = Clock(name), interval
        self._there: set[Tick] = set()
        self._last = -math.inf  # when the last round was
        self._in_vain = 0
        self.is_idle = True

    def add(self, what: Tick) -> None:
        """Call *what* from now on.

        Raises:
            ResourceExhaustedError: no thread can be started; *what* is not added.
        """
        self._there.add(what)
        # Only a round says that there are rounds: what is interrupted here leaves no trace. Those
        # that come too many are none.
        if self.is_idle:
            try:
                self.clock.after(self._interval, self._round)
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

    def _round(self) -> None:
        now = time.monotonic()
        if now - self._last < self._interval / 2:  # the rounds that go on are others
            return
        self.is_idle = False
        self._in_vain = 0 if self._there else self._in_vain + 1
        if self._in_vain > _IDLE:
            self._in_vain, self.is_idle = 0, True
            # Whoever adds one looks afterwards whether there is a next round, or is seen here.
            if not self._there:
                return
        try:
            self._call_all(now)
        finally:  # where there is no memory for the next one, the clock calls this one again
            self._last = -math.inf
            self.clock.after(self._interval, self._round)
            self._last = now

    def _call_all(self, now: float) -> None:
        for each in self._there.copy():
            try:
                each(now)
            except BaseException:  # the others are to be called all the same
                logger.exception("A function that is called every now and then has failed")
