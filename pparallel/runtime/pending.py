"""Replies that have not come yet."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from typing import Generic, TypeVar

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.runtime.future import LeanFuture, fail, when_done
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.timers import Timers

AGAIN = 0.1  #: seconds after which what could not be ended in time is tried again

T = TypeVar("T")


def awaited(future: Future[T], peer: str, timeout: float | None) -> T:
    """Return what *peer* replies; the calling thread keeps the time, and no clock runs for it.

    Raises:
        CallTimeoutError: it did not reply within *timeout* seconds; a later reply is dropped.
    """
    try:
        return future.result(timeout)
    except TimeoutError as error:
        raise_interrupt(error)
        if future.done():  # so it failed, or came at the last moment
            return future.result()
        fail(future, error)
        raise CallTimeoutError(f"a request to {peer!r}", timeout or 0.0) from None


class Pending(Generic[T]):
    """The futures of requests that wait for a reply, each ended in time whatever happens.

    A timer looks at the nearest deadline; a request that expires later than those before it sets
    none.

    No lock is taken for a request: it is counted first, and looked at afterwards whether it may be.
    Whoever ends requests does it the other way round, so that one of the two sees the other.
    """

    def __init__(self, what: str, timers: Timers | None = None) -> None:
        """Keep no time yet.

        Args:
            what: whose requests they are, for errors.
            timers: its own, which it closes; ``None``: made here.
        """
        self._what = what
        self._waiting: dict[Future[T], tuple[str, float, float]] = {}  # peer, deadline, timeout
        self._lost: dict[str, str] = {}
        self._closed = False
        self._next = math.inf  # it looks then at the latest
        self._timers = timers or Timers("pparallel-timers")

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, peer: str, timeout: float | None) -> Future[T]:
        """Return a future of what *peer* will reply.

        Raises:
            ClosedError: after :meth:`close`.
            PeerLostError: *peer* was reported lost.
            ResourceExhaustedError: no thread can be started, which would keep the time.
        """
        future: Future[T] = LeanFuture()
        self.watch(future, peer, timeout)
        return future

    def watch(self, future: Future[T], peer: str, timeout: float | None) -> None:
        """Have *future* end in time, which *peer* is to complete; raises as :meth:`add`."""
        now = time.monotonic()
        deadline = math.inf if timeout is None else now + timeout
        self._waiting[future] = (peer, deadline, timeout or 0.0)
        if self._closed or peer in self._lost:
            del self._waiting[future]
            if self._closed:
                raise ClosedError(self._what)
            raise PeerLostError(peer, self._lost[peer])
        if deadline < self._next or self._next < now:
            try:
                self._look_at(deadline)
            except BaseException:
                self._waiting.pop(future, None)
                raise
        when_done(future, self._forget)

    def lose(self, peer: str, reason: str) -> None:
        """Fail every request that waits for *peer*, and those to come."""
        self._lost.setdefault(peer, reason)
        for future, each in self._waiting.copy().items():
            if each[0] == peer:
                fail(future, PeerLostError(peer, reason))

    def close(self) -> None:
        """Fail every request, and those to come; safe to call again."""
        self._closed = True
        for future in self._waiting.copy():
            fail(future, ClosedError(self._what))
        self._timers.close()

    def _forget(self, future: Future[T]) -> None:
        self._waiting.pop(future, None)  # an interrupted callback is called again

    def _look_at(self, deadline: float) -> None:
        # In this order: whoever finds a time set relies on the timer. One that is set too late, or
        # over a nearer one, looks once more than it has to.
        if deadline < math.inf:
            self._timers.call_later(deadline - time.monotonic(), self._expire)
            self._next = deadline

    def _expire(self) -> None:
        self._next = math.inf  # a request from now on sets it, if it is not seen below
        now, nearest = time.monotonic(), math.inf
        try:
            # A copy is made at once; a list of the items may run finalizers, which add some.
            for future, (peer, deadline, timeout) in self._waiting.copy().items():
                if deadline <= now:
                    fail(future, CallTimeoutError(f"a request to {peer!r}", timeout))
                    self._forget(future)  # for who was interrupted in :meth:`watch`
                else:
                    nearest = min(nearest, deadline)
        except BaseException:  # as for want of memory
            nearest = now + AGAIN
            raise
        finally:
            if nearest < self._next:
                self._look_at(nearest)
