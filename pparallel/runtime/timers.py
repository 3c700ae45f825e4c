"""Functions that are called when their time has come."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from time import monotonic

from pparallel.runtime.resources import start_thread
from pparallel.runtime.state_lock import state_lock

logger = logging.getLogger(__name__)

LONGEST = 3600.0  #: seconds that a lock is waited for at once


class Timer:
    """A function that is to be called."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Do not call it; harmless if it has been called."""
        self.callback = None


class Timers:
    """Calls functions later, one after another on one thread: they must not block."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._due: list[tuple[float, int, Timer]] = []
        self._ties = itertools.count()
        self._changed = threading.Condition(state_lock)
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread; harmless if it runs.

        Raises:
            ResourceExhaustedError: it cannot be started.
        """
        with state_lock:
            if self._thread is not None or self._closed:
                return
            self._thread = thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            start_thread(thread)
        except BaseException:
            self._thread = None
            raise

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* in *seconds*; never, if the timers are closed or cancelled by then."""
        timer, due = Timer(callback), monotonic() + seconds
        if self._thread is None:
            self.start()
        with state_lock:
            heapq.heappush(self._due, (due, next(self._ties), timer))
            if self._due[0][2] is timer:
                self._changed.notify()
        return timer

    def close(self) -> None:
        """Call nothing more, and wait for what is being called; safe to call again."""
        with state_lock:
            self._closed = True
            self._due.clear()
            self._changed.notify()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.ident:
            thread.join()

    def _run(self) -> None:
        while (timer := self._next()) is not None:
            callback = timer.callback
            if callback is None:
                continue
            try:
                callback()
            except BaseException:  # those behind it are to be called all the same
                logger.exception("A function that %s called has failed", self._name)
            del timer, callback  # what it holds is released before this thread waits

    def _next(self) -> Timer | None:
        with state_lock:
            while not self._closed:
                left = self._due[0][0] - monotonic() if self._due else LONGEST
                if left <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(min(left, LONGEST))
        return None
