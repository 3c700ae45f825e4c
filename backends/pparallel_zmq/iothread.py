"""The thread of a member that receives, and does what others leave to it."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from pparallel.runtime.resources import start_thread

logger = logging.getLogger(__name__)

Act = Callable[[], object]


class IoThread:
    """Looks after sockets in one thread; what it calls does not block.

    The descriptors of ZeroMQ's sockets report changes, not a state: a socket is to be emptied
    whenever its descriptor is readable, and looked at after each use.
    """

    def __init__(self, name: str) -> None:
        """Make the descriptors that it needs.

        Raises:
            OSError: there is no descriptor for it.
        """
        self._epoll = select.epoll()
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            self._epoll.close()
            raise
        self._epoll.register(self._wake, select.EPOLLIN)
        self._empty: dict[int, Callable[[], bool]] = {}
        self._full: set[int] = set()  # descriptors whose sockets have not been emptied
        self._acts: deque[Act] = deque()
        self._later: list[tuple[float, int, Act]] = []
        self._count = itertools.count()
        self._lock = threading.Lock()  # guards the descriptors against being closed
        self._sleeps = self._ends = self._has_ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, at_end: Act) -> None:
        """Start the thread, which calls *at_end* last.

        Raises:
            ResourceExhaustedError: there is none.
        """
        self._at_end = at_end
        start_thread(self._thread)

    def register(self, descriptor: int, empty: Callable[[], bool]) -> None:
        """Have *empty* called when a socket is readable, again while it returns true."""
        with self._lock:
            self._empty[descriptor] = empty
            self._epoll.register(descriptor, select.EPOLLIN)
        self.look(descriptor)

    def look(self, descriptor: int) -> None:
        """Have a socket emptied soon: it has been used, and its descriptor may report nothing."""
        self.call(partial(self._full.add, descriptor))

    def unregister(self, descriptor: int) -> None:
        """Look at a descriptor no more; it is closed afterwards."""
        with self._lock:
            if self._empty.pop(descriptor, None) is not None and not self._has_ended:
                self._epoll.unregister(descriptor)

    def call(self, act: Act) -> None:
        """Have *act* called by the thread soon; not any more once it ends."""
        self._acts.append(act)
        if self._sleeps:
            with self._lock:
                if not self._has_ended:
                    os.eventfd_write(self._wake, 1)

    def call_at(self, when: float, act: Act) -> None:
        """Have *act* called at *when*, by :func:`time.monotonic`; for the thread itself."""
        heapq.heappush(self._later, (when, next(self._count), act))

    def end(self) -> None:
        """End the thread; for the thread itself."""
        self._ends = True

    def join(self) -> None:
        """Wait until the thread has ended, unless it is the calling one."""
        if self._thread.ident is not None and not self.is_here():
            self._thread.join()

    def is_here(self) -> bool:
        """Return whether the calling thread is this one."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Close the descriptors; safe to call again."""
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                self._epoll.close()
                os.close(self._wake)

    def _run(self) -> None:
        try:
            while not self._ends:
                for descriptor, _ in self._poll():
                    if descriptor == self._wake:
                        os.eventfd_read(self._wake)
                    else:
                        self._full.add(descriptor)
                full = list(self._full)
                self._full.clear()
                for descriptor in full:
                    empty = self._empty.get(descriptor)
                    if empty is not None and self._do(empty):
                        self._full.add(descriptor)
                for _ in range(len(self._acts)):
                    self._do(self._acts.popleft())
                now = time.monotonic()
                while self._later and self._later[0][0] <= now:
                    self._do(heapq.heappop(self._later)[2])
        finally:
            self._do(self._at_end)
            self.close()

    def _poll(self) -> list[tuple[int, int]]:
        if self._full or self._acts:
            return self._epoll.poll(0)
        timeout = max(0.0, self._later[0][0] - time.monotonic()) if self._later else None
        self._sleeps = True  # from here on whoever adds an act wakes this thread
        found = self._epoll.poll(0 if self._acts else timeout)
        self._sleeps = False
        return found

    def _do(self, act: Act) -> object:
        try:
            return act()
        except Exception:
            logger.exception("An act of the thread that receives failed")
            return False
