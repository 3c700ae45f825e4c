"""The thread of a member that receives what nobody else waits for.

It also runs what is asked, as long as that is quick: to hand each request to another thread would
take longer than most of them do. A request that blocks, or has not ended after a while, keeps the
thread, and another one receives in its place.
"""

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
from typing import Protocol

from pparallel.runtime import dedicated
from pparallel.runtime.processes import forget_in_children, remember_in_children
from pparallel_ipc.patience import Patience

logger = logging.getLogger(__name__)

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
HELD = 0.001  #: seconds that a message may be held back so that others go with it
LAST = 1.0  #: seconds that the end waits for a request that is being handled
PATIENCE = 0.002  #: seconds after which another thread takes over from one that runs a request

Event = Callable[[int], None]  #: called with what epoll says of a descriptor


class Holder(Protocol):
    """Has messages that it holds back."""

    def flush(self) -> None:
        """Send them."""


class Hub:
    """Calls whoever a descriptor belongs to when there is something to read, in one thread.

    What it calls must not block; it puts what may take long into :meth:`do`. Any thread may
    register and unregister.
    """

    def __init__(self, name: str) -> None:
        self._poll = select.epoll()
        self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        forget_in_children(self._poll.fileno(), self._nudge)
        self._poll.register(self._nudge, READ)
        self._events: dict[int, Event] = {}
        self._holders: set[Holder] = set()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._sleeps = False
        self._ended = False
        self._name = name
        self._to_do: deque[Callable[[], None]] = deque()
        self._leader: threading.Thread | None = None
        self._threads: set[threading.Thread] = set()  # the leader, and those that led before
        self._watch = Patience(PATIENCE, self._pass_on)

    def start(self) -> None:
        """Start the thread."""
        self._lead_anew()

    def do(self, act: Callable[[], None]) -> None:
        """Have *act* run after what was put in before has started; for the leader alone to call."""
        self._to_do.append(act)

    def register(self, descriptor: int, event: Event, mask: int = READ) -> None:
        """Have *event* called when *descriptor* is readable, or whatever *mask* says."""
        self._events[descriptor] = event
        self._poll.register(descriptor, mask)

    def change(self, descriptor: int, mask: int) -> None:
        """Change what a descriptor is watched for; harmless if it is not."""
        with suppress(OSError, ValueError):
            self._poll.modify(descriptor, mask)

    def unregister(self, descriptor: int) -> None:
        """Watch a descriptor no more; safe to call again. It is to be closed afterwards."""
        if self._events.pop(descriptor, None) is not None:
            with suppress(OSError, ValueError):
                self._poll.unregister(descriptor)

    def hold(self, holder: Holder) -> None:
        """Have *holder* flushed within :data:`HELD` seconds."""
        self._holders.add(holder)
        if self._sleeps:
            self._sleeps = False
            self.nudge()

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """Have *act* called in *delay* seconds."""
        with self._lock:
            heapq.heappush(self._timers, (time.monotonic() + delay, next(self._numbers), act))
        self.nudge()

    def nudge(self) -> None:
        """Have the thread look around."""
        with self._lock:
            if not self._ended:
                os.eventfd_write(self._nudge, 1)

    def close(self) -> None:
        """End the thread and wait a while for that, unless it is the caller; safe to call again."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            os.eventfd_write(self._nudge, 1)
            leader = self._leader
        self._watch.close()
        if leader is None:
            self._give_back()
        elif leader is not threading.current_thread():
            leader.join(LAST)  # it may be in a function of the user; it gives back what there is

    def threads(self) -> list[threading.Thread]:
        """Return the threads that run what was asked, and may go on for a while."""
        with self._lock:
            return list(self._threads)

    def _lead_anew(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-ipc", daemon=True)
        with self._lock:
            if self._ended:
                return
            self._leader = thread
            self._threads.add(thread)
        thread.start()

    def _pass_on(self, leader: threading.Thread) -> None:
        """Have another thread lead, if *leader* still does."""
        if self._leader is leader:
            self._lead_anew()

    def _run(self) -> None:
        me = threading.current_thread()
        dedicated.mark_leading(partial(self._pass_on, me))
        try:
            while self._leads(me):
                self._work(me)
                if not self._leads(me):
                    return
                self._flush()
                for descriptor, said in self._wait():
                    self._handle(descriptor, said)
                self._run_timers()
        finally:
            with self._lock:
                self._threads.discard(me)
            if self._leads_no_more(me):
                self._give_back()

    def _leads(self, thread: threading.Thread) -> bool:
        return self._leader is thread and not self._ended

    def _leads_no_more(self, thread: threading.Thread) -> bool:
        return self._leader is thread and self._ended

    def _work(self, me: threading.Thread) -> None:
        """Run what is to be done, as long as this thread leads."""
        to_do, watch = self._to_do, self._watch
        while to_do and self._leader is me:
            act = to_do.popleft()
            watch.begin(me)
            try:
                act()
            except Exception:
                logger.exception("A request could not be handled")
            del act  # what it holds is released before this thread waits
        watch.end(me)

    def _wait(self) -> list[tuple[int, int]]:
        self._sleeps = True
        timeout = self._timeout()
        if self._holders:
            timeout = HELD if timeout is None else min(timeout, HELD)
        found = self._poll.poll(timeout)
        self._sleeps = False
        return found

    def _timeout(self) -> float | None:
        with self._lock:
            return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _handle(self, descriptor: int, said: int) -> None:
        if descriptor == self._nudge:
            with suppress(BlockingIOError):
                os.eventfd_read(self._nudge)
            return
        event = self._events.get(descriptor)
        if event is None:
            return
        try:
            event(said)
        except Exception:
            logger.exception("A connection could not be served")
            self.unregister(descriptor)

    def _run_timers(self) -> None:
        while True:
            with self._lock:
                if not self._timers or self._timers[0][0] > time.monotonic():
                    return
                _, _, act = heapq.heappop(self._timers)
            act()

    def _flush(self) -> None:
        while self._holders:
            self._holders.pop().flush()

    def _give_back(self) -> None:
        with self._lock:
            nudge, self._nudge = self._nudge, -1
        if nudge >= 0:
            remember_in_children(self._poll.fileno(), nudge)
            self._poll.close()
            os.close(nudge)
