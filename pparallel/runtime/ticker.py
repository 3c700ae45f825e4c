"""Functions that are called every now and then, as long as there are any."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from pparallel.runtime.resources import start_thread

logger = logging.getLogger(__name__)

_IDLE = 50  #: rounds with nothing to call after which the thread sleeps

Tick = Callable[[float], None]  #: called with the time, as ``time.monotonic`` has it


class Ticker:
    """Calls functions again and again, on one thread that starts with the first of them.

    To add and to remove one costs next to nothing while others come and go, which a clock for each
    does not. The functions must not block, for others wait. A signal handler may add one while its
    thread adds another.
    """

    def __init__(self, name: str, interval: float) -> None:
        """Know what is to be done.

        Args:
            name: of the thread.
            interval: seconds between two rounds.
        """
        self._name, self._interval = name, interval
        self._there: set[Tick] = set()
        self._lock = threading.RLock()
        self._awakened: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_asleep = True
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, what: Tick) -> None:
        """Call *what* from now on.

        Raises:
            ResourceExhaustedError: no thread can be started; *what* is not called.
        """
        self._there.add(what)
        if self._is_asleep:
            try:
                self._wake()
            except BaseException:
                self._there.discard(what)
                raise

    def remove(self, what: Tick) -> None:
        """Call *what* no more; harmless if it was not called. It may be just being called."""
        self._there.discard(what)

    def close(self) -> None:
        """Call nothing more; safe to call again."""
        self._closed.set()
        self._awakened.put(None)
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._there.clear()

    def _wake(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                # Set first: a signal handler that adds one meanwhile is to start no other.
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    start_thread(self._thread)
                except BaseException:
                    self._thread = None
                    raise
        self._awakened.put(None)

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
        while not self._awakened.empty():  # of what came when it was awake still
            self._awakened.get()
        self._is_asleep = True
        if not self._there and not self._closed.is_set():
            self._awakened.get()  # once: where things come and go it stays awake for a while
        self._is_asleep = False
