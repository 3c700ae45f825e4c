"""Callbacks that are called later."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from pparallel.runtime.resources import start_thread
from pparallel.runtime.waits import LONGEST_WAIT

logger = logging.getLogger(__name__)

_TOGETHER = 0.001  #: seconds between two times at which the thread looks what is due
_MANY = 100  #: cancelled timers that are kept until their time has come, at least


class Timer:
    """A callback whose time has not come."""

    __slots__ = ("_callback", "_timers")

    def __init__(self, timers: Timers, callback: Callable[[], object]) -> None:
        self._timers = timers
        self._callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Do not call the callback; harmless once it was called, or is being called."""
        timers = self._timers
        with timers._lock:
            callback, self._callback = self._callback, None
            if callback is not None:
                timers._forget_one()


class Timers:
    """The timers of one owner, on one thread that starts with the first of them.

    Callbacks come up to a millisecond late, so that many timers wake the thread once. They must not
    block, for others wait. What they raise is logged.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Start nothing yet.

        Args:
            name: of the thread.
            clock: returns seconds that never decrease.
        """
        self._name, self._clock = name, clock
        self._lock = threading.RLock()
        self._heap: list[tuple[float, int, Timer]] = []  # by time, then in the order of the calls
        self._ties = itertools.count()
        self._cancelled = 0  # how many in the heap are
        self._wakes_at = -math.inf  # the thread looks then at the latest; in the past: it is awake
        self._wake = SimpleQueue[None]()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* in *seconds*, unless these timers are closed by then.

        Raises:
            ResourceExhaustedError: there is no thread, and none can be started.
        """
        if self._thread is None:
            self.start()
        timer = Timer(self, callback)
        due = self._clock() + seconds
        entry = due, next(self._ties), timer
        with self._lock:
            if self._closed:
                return timer
            heapq.heappush(self._heap, entry)
            if due < self._wakes_at:
                self._wake.put(None)  # first: whoever is interrupted here leaves no thread asleep
                self._wakes_at = due
        return timer

    def start(self) -> None:
        """Start the thread, as :meth:`call_later` does; harmless if it runs."""
        with self._lock:
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread = start_thread(thread)

    def run_due(self) -> float:
        """Call what is due, for the thread; return for how many seconds nothing more is."""
        while True:
            with self._lock:
                if self._closed or not self._heap:
                    self._wakes_at = math.inf
                    return math.inf
                due, _, timer = self._heap[0]
                left = due - self._clock()
                if left > 0:  # though it be cancelled: those that are set meanwhile wake no thread
                    self._wakes_at = due
                    return left
                heapq.heappop(self._heap)
                callback, timer._callback = timer._callback, None
                self._cancelled -= callback is None
            if callback is not None:
                try:
                    callback()
                except BaseException:  # those behind it are to be called all the same
                    logger.exception("A callback that %s called has failed", self._name)
                del callback  # nothing is kept while the thread waits

    def close(self) -> None:
        """Call nothing more, and end the thread; safe to call again, also in a callback."""
        with self._lock:
            self._closed = True
        self._wake.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._heap.clear()

    def _run(self) -> None:
        while not self._closed:
            left = self.run_due()
            with suppress(Empty):
                self._wake.get(timeout=min(max(left, _TOGETHER), LONGEST_WAIT))

    def _forget_one(self) -> None:
        """Count a cancelled timer, and drop such once most are; called with the lock held."""
        self._cancelled += 1
        if self._cancelled > _MANY and 2 * self._cancelled > len(self._heap):
            left = [each for each in self._heap if each[2]._callback is not None]
            heapq.heapify(left)
            self._heap, self._cancelled = left, 0
