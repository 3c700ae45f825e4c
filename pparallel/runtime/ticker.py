"""Functions that are called every now and then, as long as there are any."""

from __future__ import annotations

import logging
import threading
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
    """

    def __init__(self, name: str, interval: float) -> None:
        """Know what is to be done.

        Args:
            name: of the thread.
            interval: seconds between two rounds.
        """
        self.clock, self._interval = Clock(name), interval
        self._there: set[Tick] = set()
        self._awake = threading.Lock()  # held as long as there is a next round; nobody waits for it
        self._in_vain = 0

    @property
    def is_idle(self) -> bool:
        """Whether there is no next round, for there has been nothing to call for a while."""
        return not self._awake.locked()

    def add(self, what: Tick) -> None:
        """Call *what* from now on.

        Raises:
            ResourceExhaustedError: no thread can be started; *what* is not added.
        """
        self._there.add(what)
        if not self._awake.locked() and self._awake.acquire(blocking=False):
            try:
                self.clock.after(self._interval, self._round)
            except BaseException:
                self._there.discard(what)
                self._awake.release()
                raise

    def remove(self, what: Tick) -> None:
        """Call *what* no more; harmless if it was not called. It may be just being called."""
        self._there.discard(what)

    def close(self) -> None:
        """Call nothing more; safe to call again."""
        self.clock.close()
        self._there.clear()

    def _round(self) -> None:
        self._in_vain = 0 if self._there else self._in_vain + 1
        if self._in_vain > _IDLE:
            self._in_vain = 0
            self._awake.release()
            # Whoever adds one looks afterwards whether there is a next round, or is seen here.
            if not self._there or not self._awake.acquire(blocking=False):
                return
        try:
            self._call_all(time.monotonic())
        finally:  # also where there is no memory for that
            self.clock.after(self._interval, self._round)

    def _call_all(self, now: float) -> None:
        for each in self._there.copy():
            try:
                each(now)
            except BaseException:  # the others are to be called all the same
                logger.exception("A function that is called every now and then has failed")
