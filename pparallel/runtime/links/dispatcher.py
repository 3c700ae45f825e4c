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
from contextlib import suppress
from functools import partial

from pparallel.runtime.resources import start_thread
from pparallel.runtime.waits import Spin

logger = logging.getLogger(__name__)

READ, WRITE = select.EPOLLIN, select.EPOLLOUT

Act = Callable[[], object]
Event = Callable[[int], object]  #: called with what epoll says of a descriptor; true: once more


class Dispatcher:
    """Calls the owner of a descriptor when there is something to read, in one thread.

    The functions that it calls do not block. Any thread may call its methods.
    """

    def __init__(self, name: str, at_end: Act, *, spins: bool = False) -> None:
        """Make the descriptors that it needs.

        Args:
            name: of the thread.
            at_end: called by the thread last, whatever ends it.
            spins: whether the thread looks for a while before it sleeps.

        Raises:
            OSError: there is no descriptor for it.
        """
        self._at_end = at_end
        self._epoll = select.epoll()
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            self._epoll.close()
            raise
        self._epoll.register(self._wake, READ)
        self._events: dict[int, Event] = {}
        self._acts: deque[Act] = deque()
        self._later: list[tuple[float, int, Act]] = []  # by time
        self._count = itertools.count()
        self._lock = threading.Lock()  # guards the descriptors against being closed
        self._sleeps = self._ends = self._has_ended = False
        self._receive = Spin(self._wait, self._look).receive if spins else self._wait
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            ResourceExhaustedError: there is none.
        """
        start_thread(self._thread)

    def register(self, descriptor: int, event: Event) -> None:
        """Have *event* called when *descriptor* is readable, or what :meth:`watch` says."""
        with self._lock:
            if not self._has_ended:
                self._events[descriptor] = event
                self._epoll.register(descriptor, READ)

    def watch(self, descriptor: int, mask: int) -> None:
        """Have the event of *descriptor* called for what *mask* says; harmless if it has none."""
        with self._lock:
            if not self._has_ended and descriptor in self._events:
                self._epoll.modify(descriptor, mask)

    def look(self, descriptor: int) -> None:
        """Have the event of *descriptor* called soon, whatever epoll says; harmless likewise."""
        self.call(partial(self._happened, descriptor, READ))

    def unregister(self, descriptor: int) -> None:
        """Watch a descriptor no more; safe to call again. It is closed afterwards."""
        with self._lock:
            if self._events.pop(descriptor, None) is not None and not self._has_ended:
                with suppress(OSError):
                    self._epoll.unregister(descriptor)

    def call(self, act: Act) -> None:
        """Have *act* called by the thread soon; here and now if it has ended."""
        self._acts.append(act)
        if self._sleeps or self._has_ended:
            with self._lock:
                if not self._has_ended:
                    os.eventfd_write(self._wake, 1)
                    return
            self._do_acts()

    def call_later(self, seconds: float, act: Act) -> None:
        """Have *act* called by the thread after so long, unless it has ended."""
        when = time.monotonic() + seconds
        self.call(lambda: heapq.heappush(self._later, (when, next(self._count), act)))

    def is_here(self) -> bool:
        """Return whether the calling thread is this one."""
        return threading.current_thread() is self._thread

    def close(self, timeout: float | None = None) -> None:
        """End the thread, and wait for that unless it calls this; safe to call again."""
        self.call(self._end)
        self.join(timeout)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, unless it calls this."""
        if self._thread.ident is None:
            self._release()
        elif not self.is_here():
            self._thread.join(timeout)

    def _end(self) -> None:
        self._ends = True

    def _release(self) -> None:
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                self._epoll.close()
                os.close(self._wake)
        self._do_acts()

    def _run(self) -> None:
        try:
            while not self._ends:
                for descriptor, mask in self._receive():
                    if descriptor == self._wake:
                        os.eventfd_read(self._wake)
                    else:
                        self._happened(descriptor, mask)
                self._do_acts()
                now = time.monotonic()
                while self._later and self._later[0][0] <= now:
                    self._do(heapq.heappop(self._later)[2])
        finally:
            self._do(self._at_end)
            self._release()

    def _happened(self, descriptor: int, mask: int) -> None:
        event = self._events.get(descriptor)
        if event is not None and self._do(event, mask):
            self.look(descriptor)

    def _wait(self) -> list[tuple[int, int]]:
        timeout = max(0.0, self._later[0][0] - time.monotonic()) if self._later else None
        self._sleeps = True  # from here on whoever adds an act wakes this thread
        found = self._epoll.poll(0 if self._acts else timeout)
        self._sleeps = False
        return found

    def _look(self) -> list[tuple[int, int]] | None:
        found = self._epoll.poll(0)
        return found if found or self._acts else None

    def _do_acts(self) -> None:
        for _ in range(len(self._acts)):
            with suppress(IndexError):
                self._do(self._acts.popleft())

    def _do(self, act: Callable[..., object], *args: object) -> object:
        try:
            return act(*args)
        except Exception:
            logger.exception("An event of the dispatcher failed")
            return None
