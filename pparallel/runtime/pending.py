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
from pparallel.runtime.lean_future import LeanFuture

T = TypeVar("T")


def settle(future: Future[T], value: T) -> None:
    """Give *future* its result, unless it has ended meanwhile: a late reply is dropped."""
    with suppress(InvalidStateError):
        future.set_result(value)


def fail(future: Future[T], error: BaseException) -> None:
    """Fail *future*, unless it has ended meanwhile."""
    with suppress(InvalidStateError):
        future.set_exception(error)


def follow(future: Future[T], source: Future[T]) -> None:
    """Let *future* end as *source* does."""

    def ended(source: Future[T]) -> None:
        if error := source.exception():
            fail(future, error)
        else:
            settle(future, source.result())

    source.add_done_callback(ended)


class Pending(Generic[T]):
    """The futures of requests that wait for a reply, each ended in time whatever happens.

    One thread, started with the first request that has a time-out, sleeps until the nearest one;
    a request that expires later than those before it does not wake it.
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
        """
        future: Future[T] = LeanFuture()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            if self._closed is not None:
                raise ClosedError(self._what)
            if peer in self._lost:
                raise PeerLostError(peer, self._lost[peer])
            self._waiting[future] = (peer, deadline, timeout or 0.0)
            if deadline < self._next:
                self._next = deadline
                self._wake_clock()
        future.add_done_callback(self._forget)
        return future

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

    def _forget(self, future: Future[T]) -> None:
        with self._changed:
            self._waiting.pop(future, None)

    def _fail_where(
        self,
        chosen: Callable[[tuple[str, float, float]], bool],
        error: Callable[[tuple[str, float, float]], Exception],
    ) -> None:
        with self._changed:
            ended = [(future, each) for future, each in self._waiting.items() if chosen(each)]
        for future, each in ended:
            fail(future, error(each))

    def _wake_clock(self) -> None:
        if self._clock is None:
            self._clock = threading.Thread(target=self._tick, name="pparallel-clock", daemon=True)
            self._clock.start()
        self._changed.notify_all()

    def _tick(self) -> None:
        while True:
            with self._changed:
                while self._closed is None and (left := self._next - time.monotonic()) > 0:
                    self._changed.wait(None if left == math.inf else left)
                if self._closed is not None:
                    return
            self._expire(time.monotonic())
            with self._changed:
                self._next = min((each[1] for each in self._waiting.values()), default=math.inf)

    def _expire(self, now: float) -> None:
        self._fail_where(
            lambda waiting: waiting[1] <= now,
            lambda waiting: CallTimeoutError(f"a request to {waiting[0]!r}", waiting[2]),
        )
