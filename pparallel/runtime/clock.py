"""Functions that are called when their time has come."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable

from pparallel.runtime import dedicated, poll_times
from pparallel.runtime.resources import start_thread

logger = logging.getLogger(__name__)

AGAIN = 0.01  #: seconds after which a function that had no memory is called again

Entry = tuple[float, int, Callable[[], None]]


class Clock:
    """Calls functions later, on one thread that starts with the first of them.

    The functions must not block, for those behind them wait. One that raises ``MemoryError`` is
    called again. Signal handlers and finalizers may use a clock at any moment: no lock is waited
    for where its thread runs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._new: deque[Entry] = deque()  # which the thread has not looked at yet
        self._due: list[Entry] = []  # a heap, which is the thread's own
        self._ties = itertools.count()
        self._until = -math.inf  # when the thread looks again without a call; past: it is awake
        self._alarm = threading.Lock()  # held, unless the thread is to look at once
        self._alarm.acquire()
        self._running = threading.Lock()  # held by the one thread that runs, of several started
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Have the thread run, as :meth:`after` does; harmless if it does already.

        Raises:
            ResourceExhaustedError: it cannot be started; the next call tries again.
        """
        # No lock is held meanwhile: the new thread may run a finalizer before it says that it runs.
        if self._thread is None and not self._closed:
            thread = start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
            if self._thread is None:
                self._thread = thread

    def after(self, delay: float, what: Callable[[], None]) -> None:
        """Call *what* in *delay* seconds; never, if the clock is closed by then.

        Raises:
            ResourceExhaustedError: there is no thread, and none can be started.
        """
        if self._thread is None:
            self.start()
        self.put(delay, what)

    def put(self, delay: float, what: Callable[[], None]) -> None:
        """As :meth:`after`, but start no thread, as a finalizer must not.

        If there is none yet, *what* is called when there is one.
        """
        if self._closed:
            return
        due = time.monotonic() + delay
        self._new.append((due, next(self._ties), what))
        if due < self._until:
            self._wake()

    def close(self) -> None:
        """Call nothing more; safe to call again."""
        self._closed = True
        self._wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._new.clear()

    def _wake(self) -> None:
        try:
            self._alarm.release()
        except RuntimeError:  # it was told already
            return

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return
        self._thread = threading.current_thread()
        dedicated.mark_receiving()
        what = None
        while not self._closed:
            try:
                if what is None:
                    what = self._next()
                if what is not None:
                    what()
            except MemoryError:  # it is called again: it may not have put in what follows it
                time.sleep(AGAIN)
                continue
            except BaseException:  # those behind it are to be called all the same
                logger.exception("A function that %s called has failed", self._name)
            what = None  # what it holds is released before this thread waits again
        self._due.clear()

    def _next(self) -> Callable[[], None] | None:
        """Return the next function whose time has come, or ``None`` after a wait for it."""
        while self._new:
            heapq.heappush(self._due, self._new[0])  # first: there may be no memory for it
            self._new.popleft()
        self._until = until = self._due[0][0] if self._due else math.inf
        left = until - time.monotonic()
        if left <= 0:
            return heapq.heappop(self._due)[2]
        # Whoever adds one looks at the time that is set above afterwards, or is seen here.
        if not (self._new or self._closed):
            self._alarm.acquire(timeout=min(left, poll_times.LONGEST))
        return None
