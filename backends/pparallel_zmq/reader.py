"""Waits until one of several sources has something, and has it drained."""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from typing import Protocol

from pparallel.runtime import poll_times
from pparallel.runtime.leading import Leaders
from pparallel.runtime.polling import Polling
from pparallel.runtime.processes import forget_in_children, remember_in_children

logger = logging.getLogger(__name__)

PAUSE = 0.01  #: seconds for which nothing is received after what has failed
LAST = 1.0  #: seconds that the end waits for functions that run

Ready = list[tuple[int, int]]  #: descriptors, and what poll says of them


class Source(Protocol):
    """What a reader waits for.

    ZeroMQ's descriptors tell of changes, not of a state: whoever has touched the socket must look
    whether something is there, and call :meth:`Reader.tell` if he does not drain it himself.
    """

    @property
    def fd(self) -> int:
        """The descriptor that tells that something may have come."""

    def drain(self, signalled: bool) -> bool:
        """Handle some of what is there; return whether to be called again before waiting.

        Args:
            signalled: that something is there is known.
        """

    def tick(self, now: float) -> float | None:
        """Do what time has come for; return when to be called again."""

    def end(self) -> None:
        """Close: nothing more is drained."""


class Holder(Protocol):
    """Has messages that wait for others to leave with them."""

    def flush(self) -> None:
        """Send them."""


class Reader:
    """Drains its sources, each in turn, and runs what they ask for; one thread at a time does.

    Attributes:
        do: has an act run after those before it have started; for sources that are drained.
        rest: the acts that are still to run.
    """

    def __init__(self, name: str) -> None:
        self._sources: dict[int, Source] = {}
        # In order; with whether it is known that something is there.
        self._woken: dict[Source, bool] = {}
        self._holders: set[Holder] = set()
        self._changed = True
        self._polled = select.poll()
        self._left = math.inf
        self._polling = Polling(self._sleep, self._look)
        self._sleeping = False
        self._draining: Source | None = None
        self._receiving = 0  # the thread that drains or waits
        self._due = 0.0  # when to look at the sources' times
        self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        forget_in_children(self._nudge)
        self._lock = threading.RLock()  # a finalizer may send while its thread holds it
        self._leaders = Leaders(name, self._receive, self._nudge_it, self._end)
        self.do, self.rest = self._leaders.do, self._leaders.rest

    def is_draining(self, source: Source) -> bool:
        """Whether the calling thread drains *source*, and will again before it waits."""
        return self._draining is source and self.is_receiving

    @property
    def is_receiving(self) -> bool:
        """Whether the calling thread drains or waits just now, and others wait for it."""
        return self._receiving == threading.get_ident()

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is one of the reader's."""
        return threading.current_thread() in self._leaders.threads()

    def start(self) -> None:
        """Start the thread."""
        self._leaders.start()

    def add(self, source: Source) -> None:
        """Wait for *source* too; it is drained once at first."""
        with self._lock:
            self._sources[source.fd] = source
            self._changed = True
        self._woken[source] = False
        self.tick_soon()

    def remove(self, source: Source) -> None:
        """Wait for *source* no more; called by the thread that receives."""
        with self._lock:
            for number, found in list(self._sources.items()):
                if found is source:
                    del self._sources[number]
            self._changed = True

    def tell(self, source: Source, is_readable: bool) -> None:
        """Have *source* drained if something is there, as who touched it last has seen."""
        if not is_readable:
            self._woken.pop(source, None)
            return
        self._woken[source] = True
        if self._sleeping:
            self._nudge_it()

    def hold(self, holder: Holder) -> None:
        """Have *holder* flushed before anything is waited for."""
        self._holders.add(holder)
        if self._sleeping:
            self._sleeping = False  # one nudge is enough
            self._nudge_it()

    def tick_soon(self) -> None:
        """Have the thread look at its sources' times; one has changed."""
        self._due = 0.0
        if self._sleeping:
            self._nudge_it()

    def _nudge_it(self) -> None:
        with self._lock:
            if self._nudge >= 0:
                os.eventfd_write(self._nudge, 1)

    def close(self) -> None:
        """End the sources, by the thread that receives if one does. Does not wait."""
        self._leaders.close()

    def join(self) -> None:
        """Wait until the sources have been ended, and a while for functions that run."""
        self._leaders.wait(None)
        deadline = time.monotonic() + LAST
        for thread in self._leaders.threads():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _receive(self) -> None:
        self._receiving = threading.get_ident()
        try:
            while self._holders:
                self._holders.pop().flush()
            if self._woken and self._drain():
                return
            left = self._due - time.monotonic()
            if left <= 0:
                left = self._tick()
            self._sleeping = True
            if not self._woken and not self._holders and self._due:
                self._wait(left)
        except BaseException:  # without this thread the member would hear nothing any more
            logger.exception("Messages could not be received; that is tried again")
            self._due = 0.0
            time.sleep(PAUSE)
        finally:
            self._sleeping = False
            self._receiving = 0

    def _drain(self) -> bool:
        """Drain what was woken, each source once; return whether something is left."""
        for source in list(self._woken):
            signalled = self._woken.pop(source, None)
            if signalled is None:  # it was told meanwhile that nothing is there
                continue
            if self._drained(source, signalled):
                self._woken.setdefault(source, False)
        return bool(self._woken)

    def _drained(self, source: Source, signalled: bool) -> bool:
        self._draining = source
        try:
            return source.drain(signalled)
        except BaseException:  # a defect, and no reason to leave all other members unheard
            logger.exception("A message could not be handled")
            time.sleep(PAUSE)
            return True
        finally:
            self._draining = None

    def _wait(self, left: float) -> None:
        if self._changed:
            self._polled = self._poll()
        self._left = left
        for number, _ in self._polling.receive():
            if number == self._nudge:
                os.eventfd_read(number)
            elif (source := self._sources.get(number)) is not None:
                self._woken[source] = True

    def _sleep(self) -> Ready:
        return self._polled.poll(poll_times.milliseconds(self._left))

    def _look(self) -> Ready | None:
        return self._polled.poll(0) or None

    def _poll(self) -> select.poll:
        with self._lock:
            self._changed = False
            found = select.poll()
            for number in (self._nudge, *self._sources):
                found.register(number, select.POLLIN)
        return found

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
        with self._lock:
            self._sources.clear()
            if self._nudge >= 0:
                descriptor, self._nudge = self._nudge, -1
                remember_in_children(descriptor)
                os.close(descriptor)
