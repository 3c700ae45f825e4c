"""Waits until one of several sources has something, and has it drained."""

from __future__ import annotations

import logging
import math
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import zmq
from typing_extensions import override

from pparallel.runtime.event_fd import EventFd
from pparallel.runtime.leading import Leaders
from pparallel.runtime.polling import Polling
from pparallel.runtime.timers import milliseconds
from pparallel_zmq.sockets import PAUSE, Socket, events

logger = logging.getLogger(__name__)

LAST = 1.0  #: seconds that the end waits for functions that run


class Source:
    """What a reader waits for.

    ZeroMQ's descriptors tell of changes, not of a state: whoever has touched the socket must look
    whether something is there, and call :meth:`Reader.wake` if so.

    Attributes:
        fd: the descriptor that tells that something may have come.
    """

    fd: int

    def drain(self, is_there: bool) -> bool:
        """Handle some of what has come; return whether more may have.

        Args:
            is_there: whether it is known that something has.
        """
        raise NotImplementedError

    def tick(self, now: float) -> float | None:
        """Do what time has come for; return when to be called again: by default never."""
        return None

    def end(self) -> None:
        """Close what is this source's own: nothing more is drained."""


class Monitor(Source):
    """What becomes of the connections of a socket."""

    def __init__(self, socket: Socket, happened: Callable[[int, int], None]) -> None:
        """Call *happened* with each event of *socket*, and with its value."""
        self._socket, self._happened = socket, happened
        self.fd = int(socket.getsockopt(zmq.FD))

    @override
    def drain(self, is_there: bool) -> bool:
        for event, value in events(self._socket):
            self._happened(event, value)
        return False


class Reader:
    """Drains its sources, each in turn, and runs what they ask for; one thread at a time does.

    Attributes:
        do: has an act run after those before it have started; for sources that are drained.
        start: starts the thread.
        close: ends the sources, by the thread that receives if one does; does not wait.
    """

    def __init__(self, name: str) -> None:
        self._sources: dict[int, Source] = {}
        self._woken: dict[Source, bool] = {}  # and whether it is known that something is there
        self._polled = select.poll()
        self._left = math.inf
        self._polling = Polling(
            lambda: self._polled.poll(milliseconds(self._left)),
            lambda: self._polled.poll(0) or None,
        )
        self._sleeping = False
        self._due = 0.0  # when to look at the sources' times
        self._nudge = EventFd()
        self._polled.register(self._nudge.fd, select.POLLIN)
        leaders = self._leaders = Leaders(name, self._receive, self._nudge.set, self._end)
        self.do, self.start, self.close = leaders.do, leaders.start, leaders.close

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is one of the reader's."""
        return threading.current_thread() in self._leaders.threads()

    def add(self, source: Source) -> None:
        """Wait for *source* too; it is drained once at first."""
        self._sources[source.fd] = source
        self._polled.register(source.fd, select.POLLIN)
        self._woken[source] = False
        self.tick_soon()

    def remove(self, source: Source) -> None:
        """Wait for *source* no more; called by the thread that receives."""
        self._sources.pop(source.fd, None)
        with suppress(KeyError):  # it was interrupted while it was added
            self._polled.unregister(source.fd)

    def wake(self, source: Source) -> None:
        """Have *source* drained: something is there."""
        self._woken[source] = True
        if self._sleeping:
            self._nudge.set()

    def tick_soon(self) -> None:
        """Have the thread look at its sources' times; one has changed."""
        self._due = 0.0
        if self._sleeping:
            self._nudge.set()

    def join(self) -> None:
        """Wait until the sources have been ended, and a while for functions that run."""
        self._leaders.wait(None)
        deadline = time.monotonic() + LAST
        for thread in self._leaders.threads():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _receive(self) -> None:
        try:
            self._drain()
            if self._woken or self._leaders.rest:
                return
            left = self._due - time.monotonic()
            if left <= 0:
                left = self._tick()
            self._sleeping = True
            if not self._woken and self._due:
                self._wait(left)
        except BaseException:
            self._due = 0.0
            raise
        finally:
            self._sleeping = False

    def _drain(self) -> None:
        """Drain what was woken, each source once."""
        for source in list(self._woken):
            is_there = self._woken.pop(source, None)
            if is_there is None:  # another thread has looked meanwhile
                continue
            try:
                if source.drain(is_there):
                    self._woken.setdefault(source, False)
            except BaseException:  # a defect, and no reason to leave all other members unheard
                self._woken.setdefault(source, False)
                logger.exception("A message could not be handled")
                time.sleep(PAUSE)

    def _wait(self, left: float) -> None:
        self._left = left
        for number, _ in self._polling.receive():
            if number == self._nudge.fd:
                self._nudge.clear()
            elif (source := self._sources.get(number)) is not None:
                self._woken[source] = True

    def _tick(self) -> float:
        """Have the sources do what is due; return how long until the next is."""
        now = time.monotonic()
        self._due = math.inf  # who changes a time meanwhile sets it anew
        times = [source.tick(now) for source in list(self._sources.values())]
        until = min((each for each in times if each is not None), default=math.inf)
        if self._due:
            self._due = until
        return until - now

    def _end(self) -> None:
        for source in list(self._sources.values()):
            source.end()
        self._sources.clear()
        self._nudge.close()
