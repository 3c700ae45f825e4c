"""Functions that are called every now and then, as long as there are any."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

_IDLE = 50  #: rounds with nothing to call after which the thread sleeps

Tick = Callable[[float], None]  #: called with the time, as ``time.monotonic`` has it


class Ticker:
    """Calls functions again and again, on one thread that starts with the first of them.

    To add and to remove one costs next to nothing while others come and go, which a clock for each
    does not. The functions must not block, for others wait.
    """

    def __init__(self, name: str, interval: float) -> None:
        """Know what is to be done.

        Args:
            name: of the thread.
            interval: seconds between two rounds.
        """
        self._name, self._interval = name, interval
        self._there: set[Tick] = set()
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._is_asleep = True
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, what: Tick) -> None:
        """Call *what* from now on."""
        self._there.add(what)
        if self._is_asleep:
            self._wake()

    def remove(self, what: Tick) -> None:
        """Call *what* no more; harmless if it was not called. It may be just being called."""
        self._there.discard(what)

    def close(self) -> None:
        """Call nothing more; safe to call again."""
        self._closed.set()
        self._begun.set()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._there.clear()

    def _wake(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
        self._begun.set()

    def _run(self) -> None:
        in_vain = 0
        while not self._closed.wait(self._interval):
            if in_vain > _IDLE:
                self._sleep()
                in_vain = 0
            in_vain = 0 if self._there else in_vain + 1
            now = time.monotonic()
            for each in list(self._there):
                try:
                    each(now)
                except Exception:  # the others are to be called all the same
                    logger.exception("What %s had to call failed", self._name)

    def _sleep(self) -> None:
        """Wait for the next function; who adds it sees that nobody is awake, or is seen here."""
        self._begun.clear()
        self._is_asleep = True
        if not self._there and not self._closed.is_set():
            self._begun.wait()
        self._is_asleep = False
