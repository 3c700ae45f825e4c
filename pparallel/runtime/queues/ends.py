"""What a process holds of a queue: a pipe for tickets, one that ends it, and an arena."""

from __future__ import annotations

import array
import errno
import fcntl
import math
import os
import select
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.runtime import lending, stopping
from pparallel.runtime.event_fd import EventFd
from pparallel.runtime.queues.tickets import LONGEST, SIZE
from pparallel.runtime.reopening import Handle, handle, reopened
from pparallel.runtime.shm import Arena, Parcels
from pparallel.runtime.waits import milliseconds

Handles: TypeAlias = tuple[Handle, Handle, Handle]  #: of the two pipes and the arena

_PIPE = os.O_RDWR | os.O_NONBLOCK
_LEAST = 1 << 12


class Deadline:
    """When a call gives up."""

    __slots__ = ("_at", "_timeout", "_what")

    def __init__(self, what: str, timeout: float | None) -> None:
        self._what, self._timeout = what, timeout
        self._at = math.inf if timeout is None else time.monotonic() + timeout

    def left(self) -> float:
        """Return how many seconds are left.

        Raises:
            TaskTimeoutError: none.
        """
        left = self._at - time.monotonic()
        if left <= 0:
            raise TaskTimeoutError(self._what, self._timeout or 0.0)
        return left


class Ends:
    """The descriptors of a queue; closed when nobody uses them any more.

    A call that is under way refers to them, so that closing the queue in another thread pulls
    nothing from under it.
    """

    def __init__(self, tickets: int, end: int, arena: Arena) -> None:
        self.tickets, self._end = tickets, end
        self.arena = arena
        self.parcels = Parcels(arena, {}, longest=LONGEST, files=False)
        self.closed = False
        self._wakers: dict[int, int] = {}

    @classmethod
    def create(cls, capacity: int, budget: int | None) -> Ends:
        """Return those of a new queue.

        Raises:
            OSError: no descriptors are left, or there is no shared memory.
        """
        with ExitStack() as undo:
            arena = Arena.create("pparallel-queue", budget=budget, shared=True, smallest=64)
            undo.callback(arena.close)
            tickets, end = (_pipe(undo) for _ in range(2))
            _widen(tickets, capacity * SIZE)
            undo.pop_all()
        return cls(tickets, end, arena)

    @classmethod
    def reopen(cls, handles: Handles) -> Ends:
        """Return those of a queue that another process has open.

        Raises:
            OSError: it has not, or no descriptors are left.
        """
        tickets, end, memory = handles
        with ExitStack() as undo:
            descriptors = []
            for found, flags in ((tickets, _PIPE), (end, _PIPE), (memory, os.O_RDWR)):
                descriptors.append(reopened(found, flags, "a queue"))
                undo.callback(os.close, descriptors[-1])
            arena = Arena.attach(descriptors[2])
            undo.pop_all()
        os.close(descriptors[2])
        return cls(descriptors[0], descriptors[1], arena)

    def handles(self) -> Handles:
        """Return what another process finds the queue by."""
        return handle(self.tickets), handle(self._end), handle(self.arena.fd)

    @property
    def ended(self) -> bool:
        """Whether the queue takes nothing more, whoever said so."""
        return self.arena.ledger.flag

    def waiting(self) -> int:
        """Return how many tickets wait to be taken."""
        nbytes = array.array("i", [0])
        fcntl.ioctl(self.tickets, termios.FIONREAD, nbytes)
        return nbytes[0] // SIZE

    def shut_down(self) -> None:
        """Let the queue take nothing more, and wake all that wait for it, everywhere."""
        if not self.ended:
            self.arena.ledger.raise_flag()
            os.write(self._end, b"\0")  # never read: whoever waits sees it, now or later

    def wake(self) -> None:
        """Wake this process's threads that wait, for good."""
        self.closed = True
        waker = self._wakers.get(os.getpid())
        if waker is not None:
            os.eventfd_write(waker, 1)

    def wait(
        self,
        events: int,
        deadline: Deadline,
        longest: float = math.inf,
        others: Sequence[Ends] = (),
    ) -> None:
        """Wait until the pipe is ready for *events*, the queue ends, or it is time to look again.

        Args:
            events: of ``select.poll``; 0 for none.
            deadline: when to give up.
            longest: seconds after which to look again.
            others: of further queues, any of which ends the wait likewise.

        Raises:
            ClosedError: this process closes the queue, or the calling rank is told to stop.
            TaskTimeoutError: the deadline has passed.
        """
        timeout = milliseconds(min(deadline.left(), longest))
        poll = select.poll()
        every = (self, *others)
        for each in every:
            each._register(poll, events)
        with _stopped_by(poll) as stopped:
            if not any(each.closed for each in every):
                poll.poll(timeout)
            if stopped:
                raise ClosedError("the wait for a queue", "is over: the job ends", consequence=True)
        if any(each.closed for each in every):
            raise ClosedError("the queue")

    def _register(self, poll: select.poll, events: int) -> None:
        if events:
            poll.register(self.tickets, events)
        poll.register(self._end, select.POLLIN)
        poll.register(self._woken_by(), select.POLLIN)

    def _woken_by(self) -> int:
        # Made when first needed, and anew in a child that was forked, which must not wake the
        # parent's threads. Without a lock, since a fork might catch another thread holding it.
        pid = os.getpid()
        found = self._wakers.get(pid)
        if found is not None:
            return found
        made = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        found = self._wakers.setdefault(pid, made)
        if found != made:
            os.close(made)
        return found

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # what this would call may be gone, and the kernel closes all
            return
        os.close(self.tickets)
        os.close(self._end)
        for waker in self._wakers.values():
            os.close(waker)
        self.arena.close()
        lending.tidy()


@contextmanager
def _stopped_by(poll: select.poll) -> Iterator[list[bool]]:
    """Have *poll* woken when the calling rank is told to stop; there is an item then."""
    stopped: list[bool] = []
    if stopping.current() is None:
        yield stopped
        return
    waker = EventFd()

    def stop() -> None:
        stopped.append(True)
        waker.set()  # harmless where this runs when it has been forgotten

    poll.register(waker.fd, select.POLLIN)
    try:
        with stopping.telling(stop):
            yield stopped
    finally:
        waker.close()


def _pipe(undo: ExitStack) -> int:
    """Return a pipe's descriptor that both reads and writes."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        descriptor = os.open(f"/proc/self/fd/{reading}", _PIPE | os.O_CLOEXEC)
    finally:
        os.close(reading)
        os.close(writing)
    undo.callback(os.close, descriptor)
    return descriptor


def _widen(pipe: int, nbytes: int) -> None:
    """Let *pipe* hold that much, or as much as this user may have."""
    while nbytes >= _LEAST:
        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, nbytes)
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
            nbytes //= 2
        else:
            return
