"""Requests that are sent again until they are answered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, PparallelError
from pparallel.interfaces.transport import Frames, Transport
from pparallel.runtime.clock import Clock
from pparallel.runtime.pending import fail, settle

LONGEST = 30.0  #: seconds up to which the time between two attempts doubles
GIVEN_UP = 2 * LONGEST  #: seconds after which an attempt is one that others have followed
SOON = 0.5  #: seconds after which a member is told again that its answer has come

#: Tells a member which requests are settled.
Release = Callable[[str, Sequence[int]], Future[Any]]


class Retries:
    """Sends idempotent requests; one clock serves all of them.

    The other member answers a request that comes again as it did the first time. It keeps its
    answer for that, and is told when it may forget it.
    """

    def __init__(self, transport: Transport, first: float, release: Release, name: str) -> None:
        self.transport, self.first, self._release = transport, first, release
        self.clock = Clock(f"{name}-retries")

    def send(self, to: str, number: int, frames: Frames, timeout: float | None) -> Future[Frames]:
        """Send the request *number* and return a future of its answer."""
        answer: Future[Frames] = Future()
        attempts = _Attempts(self, to, frames, timeout, answer)

        def ended(answer: Future[Frames]) -> None:
            attempts.end()
            self._tell(to, number)

        answer.add_done_callback(ended)
        attempts.start()
        return answer

    def close(self) -> None:
        """Send nothing more; safe to call again."""
        self.clock.close()

    def _tell(self, to: str, number: int) -> None:
        def told(reply: Future[Any]) -> None:
            # Lost itself, perhaps; to say it twice does no harm.
            if isinstance(reply.exception(), (CallTimeoutError, PeerLostError)):
                self.clock.after(SOON, partial(self._tell, to, number))

        try:
            self._release(to, [number]).add_done_callback(told)
        except (ClosedError, PeerLostError):
            return  # it forgets with the end of this member, or its own


class _Attempts:
    """One request on its way, and its answer."""

    def __init__(
        self,
        retries: Retries,
        to: str,
        frames: Frames,
        timeout: float | None,
        answer: Future[Frames],
    ) -> None:
        self._retries, self._to, self._timeout = retries, to, timeout
        self._deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._delay = retries.first
        self._waiting: tuple[Frames, Future[Frames]] | None = (frames, answer)

    def start(self) -> None:
        """Send the request, now and again until there is an answer."""
        if self._waiting is None:
            return
        left = self._deadline - time.monotonic()
        if left <= 0:
            self._fail(CallTimeoutError(f"a request to {self._to!r}", self._timeout or 0.0))
            return
        # First, for it may raise: an attempt that nobody repeats is not made.
        self._retries.clock.after(min(self._delay, left), self.start)
        self._delay = min(2 * self._delay, LONGEST)
        transport, frames = self._retries.transport, self._waiting[0]
        try:
            sent = transport.request(self._to, frames, min(left, GIVEN_UP))
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for the answer
            self._failed(error)
        else:
            sent.add_done_callback(self._came)

    def end(self) -> None:
        """Send nothing more, and hold nothing: an attempt may wait in vain for long."""
        self._waiting = None

    def _came(self, sent: Future[Frames]) -> None:
        if error := sent.exception():
            self._failed(error)
        elif (waiting := self._waiting) is not None:
            settle(waiting[1], sent.result())

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, CallTimeoutError):
            return  # the clock knows whether that was the last attempt
        if isinstance(error, PeerLostError) and self._is_there():
            return  # only the connection broke: the clock sends it again
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if (waiting := self._waiting) is not None:
            fail(waiting[1], error)

    def _is_there(self) -> bool:
        try:
            return self._to in self._retries.transport.members()
        except PparallelError:
            return False
