"""Functions that are called when their time has come."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from pparallel.runtime.resources import start_thread

logger = logging.getLogger(__name__)


class Clock:
    """Calls functions later, on one thread that starts with the first of them.

    The functions must not block, for those behind them wait.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def after(self, delay: float, what: Callable[[], None]) -> None:
        """Call *what* in *delay* seconds; never, if the clock is closed by then.

        Raises:
            ResourceExhaustedError: no thread can be started; *what* is not called.
        """
        entry = (time.monotonic() + delay, next(self._ties), what)
        with self._changed:
            if self._closed:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._tick, name=self._name, daemon=True)
                self._thread = start_thread(thread)
            heapq.heappush(self._due, entry)
            if self._due[0] is entry:
                self._changed.notify()

    def close(self) -> None:
        """Call nothing more; safe to call again."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _tick(self) -> None:
        while (what := self._next()) is not None:
            try:
                what()
            except Exception:  # those behind it are to be called all the same
                logger.exception("What %s had to call failed", self._name)
            del what  # what it holds is released before this thread waits again

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next function whose time has come; ``None`` ends the thread."""
        with self._changed:
            while not self._closed:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(left)
        return None
