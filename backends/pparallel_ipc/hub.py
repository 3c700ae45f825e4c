"""The thread of a member that receives what nobody else waits for, and runs it if it is quick."""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from pparallel.runtime.event_fd import EventFd
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.leading import Leaders
from pparallel.runtime.processes import close_private, private
from pparallel.runtime.timers import at_most

logger = logging.getLogger(__name__)

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
HELD = 0.001  #: seconds that a message waits for others, and a connection for who reads it
LAST = 1.0  #: seconds that the end waits for what is being received

NOT_SERVED = "A connection could not be served"

Event = Callable[[int], None]  #: called with what epoll says of a descriptor


class Hub:
    """Calls whoever a descriptor belongs to when there is something to read, in one thread.

    What it calls must not block; it puts what may take long into :attr:`do`. Any thread may
    register and unregister.

    Attributes:
        do: has an act run after those put in before; for what the hub calls.
        held: what the hub is going to call for messages that are held back.
    """

    def __init__(self, name: str) -> None:
        self._poll = private(select.epoll)
        try:
            self._nudge = EventFd()
        except OSError:
            close_private(self._poll)
            raise
        self._poll.register(self._nudge.fd, READ)
        self._events: dict[int, Event] = {}
        self._masks: dict[int, int] = {}
        self._watched: dict[int, tuple[int]] = {}  # what epoll was told; not the same while lent
        self.held: set[Callable[[], None]] = set()
        self._lent: dict[int, bool] = {}  # descriptors that others read, and whether just now
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._sleeps = False
        self._due_back = 0.0  # when to look which are not used any more
        self._leaders = Leaders(f"{name}-ipc", self._receive, self._nudge.set, self._give_back)
        self.do = self._leaders.do

    def start(self) -> None:
        """Start the thread."""
        self._leaders.start()

    def register(self, descriptor: int, event: Event, mask: int = READ) -> None:
        """Have *event* called when *descriptor* is readable, or whatever *mask* says."""
        self._events[descriptor] = event
        self._masks[descriptor], self._watched[descriptor] = mask, (mask,)
        try:
            self._poll.register(descriptor, mask)
        except ValueError as error:  # this was closed meanwhile
            raise OSError(errno.EBADF, "this member is leaving") from error

    def change(self, descriptor: int, *, add: int = 0, remove: int = 0) -> None:
        """Watch a descriptor for more, or less; harmless if it is not watched.

        Nobody waits for a lock. Who finds another to have changed it meanwhile does it once more.
        """
        modify = self._poll.modify
        try:  # a signal's handler runs after a call only, and may do the same
            self._masks[descriptor] = self._masks[descriptor] & ~remove | add
            while (mask := self._mask(descriptor)) != self._watched[descriptor][0]:
                told = self._watched[descriptor] = (mask,)
                modify(descriptor, mask)
                if self._watched[descriptor] is not told:
                    self._watched[descriptor] = (-1,)
        except (KeyError, OSError, ValueError) as error:
            raise_interrupt(error)
            logger.debug("%s is not watched any more: %r", descriptor, error)

    def _mask(self, descriptor: int) -> int:
        mask = self._masks[descriptor]
        return mask & ~READ if self._lent.get(descriptor) else mask

    def unregister(self, descriptor: int) -> None:
        """Watch a descriptor no more; safe to call again. It is to be closed afterwards."""
        self._lent.pop(descriptor, None)
        self._masks.pop(descriptor, None)
        self._watched.pop(descriptor, None)
        if self._events.pop(descriptor, None) is not None:
            with suppress(OSError, ValueError):
                self._poll.unregister(descriptor)

    def hold(self, flush: Callable[[], None]) -> None:
        """Have *flush*, which sends what is held back, called within :data:`HELD` seconds."""
        self.held.add(flush)
        if self._sleeps:
            self._wake()

    def lend(self, descriptor: int) -> None:
        """Do not look whether *descriptor* is readable while somebody else does.

        That is until :meth:`take_back`, or until it has not been lent again for :data:`HELD`
        seconds: who receives again and again in its own thread is not disturbed in between.
        """
        # In this order, should a signal's handler raise in between: what is lent, the thread of the
        # hub takes back by itself.
        is_lent = self._lent.get(descriptor)
        self._lent[descriptor] = True
        if self._sleeps:
            self._wake()
        if not is_lent:
            self.change(descriptor)

    def take_back(self, descriptor: int) -> None:
        """Look at *descriptor* again; harmless if it is not lent."""
        if descriptor in self._lent:
            self._lent[descriptor] = False
            self.change(descriptor)
            if descriptor in self._lent and not self._lent[descriptor]:
                del self._lent[descriptor]  # without a call in between

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """Have *act* called in *delay* seconds."""
        heapq.heappush(self._timers, (time.monotonic() + delay, next(self._numbers), act))
        self._nudge.set()

    def _wake(self) -> None:
        with self._nudge.lock:
            if self._sleeps and self._nudge.fd >= 0:
                self._sleeps = False  # no signal's handler runs between this and the next line
                os.eventfd_write(self._nudge.fd, 1)

    def close(self) -> None:
        """Receive nothing any more; safe to call again. What runs goes on: see :meth:`threads`."""
        self._leaders.close()
        self._leaders.wait(LAST)

    def threads(self) -> list[threading.Thread]:
        """Return the threads that run what was asked, and may go on for a while."""
        return self._leaders.threads()

    def _receive(self) -> None:
        for flush in list(self.held):  # while another thread sends what is held, it stays there
            self.held.discard(flush)
            try:
                flush()
            except MemoryError:
                self.held.add(flush)  # for the next round
        if self._lent and time.monotonic() >= self._due_back:
            self._take_back_unused()
        for descriptor, said in self._wait():
            self._handle(descriptor, said)
        while self._timers and self._timers[0][0] <= time.monotonic():
            _, _, act = heapq.heappop(self._timers)  # only this thread takes one out
            try:
                act()
            except MemoryError:
                self.later(HELD, act)
            except Exception:
                logger.exception("What was to be done later could not be done")

    def _wait(self) -> list[tuple[int, int]]:
        timeout = None
        if self._timers:
            timeout = max(0.0, self._timers[0][0] - time.monotonic())
        self._sleeps = not self._lent
        if self.held or self._lent:
            timeout = HELD if timeout is None else min(timeout, HELD)
        found = self._poll.poll(at_most(timeout))
        self._sleeps = False
        return found

    def _handle(self, descriptor: int, said: int) -> None:
        if descriptor == self._nudge.fd:
            self._nudge.clear()
            return
        event = self._events.get(descriptor)
        if event is None:
            return
        try:
            event(said)
        except Exception:
            logger.exception(NOT_SERVED)
            self.unregister(descriptor)

    def _take_back_unused(self) -> None:
        self._due_back = time.monotonic() + HELD
        for descriptor, is_used in list(self._lent.items()):
            if is_used:
                self._lent[descriptor] = False
            else:
                self._lent.pop(descriptor, None)
                self.change(descriptor)
                self._handle(descriptor, READ)  # who read may have been interrupted

    def _give_back(self) -> None:
        self._nudge.close()
        if not self._poll.closed:
            close_private(self._poll)
