"""Replies that have not come yet."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Generic, TypeVar

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.runtime.lean_future import LeanFuture, when_done
from pparallel.runtime.resources import start_thread

T = TypeVar("T")


def settle(future: Future[T], value: T) -> None:
    """Give *future* its result, unless it has ended meanwhile: a late reply is dropped."""
    try:  # a hot path, where suppress() would cost as much as all the rest
        future.set_result(value)
    except InvalidStateError:
        return


def fail(future: Future[T], error: BaseException) -> None:
    """Fail *future*, unless it has ended meanwhile."""
    with suppress(InvalidStateError):
        future.set_exception(error)


def awaited(future: Future[T], peer: str, timeout: float | None) -> T:
    """Return what *peer* replies; the calling thread keeps the time, and no clock runs for it.

    Raises:
        CallTimeoutError: it did not reply within *timeout* seconds; a later reply is dropped.
    """
    try:
        return future.result(timeout)
    except TimeoutError as error:
        if future.done():
            raise
        fail(future, error)
        raise CallTimeoutError(f"a request to {peer!r}", timeout or 0.0) from None


class Pending(Generic[T]):
    """The futures of requests that wait for a reply, each ended in time whatever happens.

    One thread, started with the first request that has a time-out, sleeps until the nearest one;
    a request that expires later than those before it does not wake it.

    No lock is taken for a request: it is counted first, and looked at afterwards whether it may be.
    Whoever ends requests does it the other way round, so that one of the two sees the other.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._changed = threading.Condition()
        self._waiting: dict[Future[T], tuple[str, float, float]] = {}  # peer, deadline, timeout
        self._lost: dict[str, str] = {}
        self._closed: ClosedError | None = None
        self._next = math.inf
        self._clock: threading.Thread | None = None

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
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._waiting[future] = (peer, deadline, timeout or 0.0)
        if self._closed is not None or peer in self._lost:
            del self._waiting[future]
            if self._closed is not None:
                raise ClosedError(self._what)
            raise PeerLostError(peer, self._lost[peer])
        if deadline < self._next:
            try:
                self._wake_clock(deadline)
            except BaseException:
                self._waiting.pop(future, None)
                raise
        when_done(future, self._waiting.__delitem__)

    def lose(self, peer: str, reason: str) -> None:
        """Fail every request that waits for *peer*, and those to come."""
        with self._changed:
            self._lost.setdefault(peer, reason)
        self._fail_where(lambda waiting: waiting[0] == peer, lambda _: PeerLostError(peer, reason))

    def close(self) -> None:
        """Fail every request, and those to come; safe to call again."""
        with self._changed:
            self._closed = ClosedError(self._what)
            self._changed.notify_all()
        self._fail_where(lambda _: True, lambda _: ClosedError(self._what))
        clock = self._clock
        if clock is not None and clock is not threading.current_thread():
            clock.join()

    def _fail_where(
        self,
        chosen: Callable[[tuple[str, float, float]], bool],
        error: Callable[[tuple[str, float, float]], Exception],
    ) -> None:
        for future, each in list(self._waiting.items()):
            if chosen(each):
                fail(future, error(each))

    def _wake_clock(self, deadline: float) -> None:
        with self._changed:
            if deadline >= self._next or self._closed is not None:
                return
            if self._clock is None:
                thread = threading.Thread(target=self._tick, name="pparallel-clock", daemon=True)
                self._clock = start_thread(thread)
            self._next = deadline
            self._changed.notify_all()

    def _tick(self) -> None:
        while True:
            with self._changed:
                while self._closed is None and (left := self._next - time.monotonic()) > 0:
                    self._changed.wait(None if left == math.inf else left)
                if self._closed is not None:
                    return
            with self._changed:
                self._next = math.inf  # a request from now on sets it, if it is not seen below
            self._expire(time.monotonic())
            nearest = min((each[1] for each in list(self._waiting.values())), default=math.inf)
            with self._changed:
                self._next = min(self._next, nearest)

    def _expire(self, now: float) -> None:
        self._fail_where(
            lambda waiting: waiting[1] <= now,
            lambda waiting: CallTimeoutError(f"a request to {waiting[0]!r}", waiting[2]),
        )
