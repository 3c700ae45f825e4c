"""Back-pressure: how many bytes of calls may wait for replies of one member."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from pparallel.errors import CallTimeoutError, ClosedError
from pparallel.runtime import dedicated
from pparallel.runtime.timers import at_most

PATIENCE = 0.2  #: seconds that a call inside a function called by another member waits for room


class Room:
    """What a call takes of a window; who is interrupted in between may give it back again."""

    def __init__(self, to: str) -> None:
        """Have nothing yet, of what calls to member *to* may take."""
        self.to, self.size = to, 0


class Window:
    """Counts, for each member, the bytes of calls that have been sent and not answered.

    A caller that would exceed the limit waits until there is room, or until its call has timed
    out; calls to other members pass. One call alone may exceed the limit: otherwise it could never
    be sent. Inside a function that another member has called, where members that call one another
    in a circle would wait for one another's replies, a synchronous call does not wait, and an
    asynchronous one no longer than :data:`PATIENCE`.
    """

    OVERHEAD = 1024  #: bytes that a call is taken to cost beyond its frames

    def __init__(self, limit: int, is_called: Callable[[], bool]) -> None:
        """Make one that is empty.

        Args:
            limit: bytes for each member.
            is_called: whether the calling thread runs a function for another member.
        """
        self._limit, self._is_called = limit, is_called
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._waiters = 0
        self._used: defaultdict[str, int] = defaultdict(int)  # += is one step for signal handlers
        self._closed = False

    def take(
        self, room: Room, size: int, timeout: float | None, *, is_sync: bool = False
    ) -> float | None:
        """Wait for room for *size* bytes.

        Args:
            room: has it afterwards, whatever is raised meanwhile, and is to be given back.
            size: of the frames.
            timeout: seconds; ``None``: no limit.
            is_sync: whether the calling thread then waits for the reply.

        Returns:
            The seconds of *timeout* that are left.

        Raises:
            ClosedError: the window was closed, before or meanwhile.
            CallTimeoutError: there was no room within *timeout* seconds.
        """
        size += self.OVERHEAD
        left, to = timeout, room.to
        with self._lock:
            if self._used[to] + size > self._limit:
                left = self._wait_for(to, size, timeout, is_sync)
            if self._closed:
                raise ClosedError("the runtime")
            self._used[to] += size
            room.size = size  # without a call in between, as below
        return left

    def give_back(self, room: Room, _: object = None) -> None:
        """Make room for others; also what a future calls when it is done. Safe to call again."""
        with self._lock:
            self._used[room.to] -= room.size
            room.size = 0
            if self._waiters:
                self._room.notify_all()

    def close(self) -> None:
        """Wake all that wait."""
        with self._lock:
            self._closed = True
            self._room.notify_all()

    def _wait_for(self, to: str, size: int, timeout: float | None, is_sync: bool) -> float | None:
        began, longest = time.monotonic(), math.inf if timeout is None else timeout
        patience = (0.0 if is_sync else PATIENCE) if self._is_called() else math.inf
        if dedicated.is_awaited():  # in a finalizer or a signal's handler: nobody would make room
            patience = 0.0

        def has_room() -> bool:
            used = self._used[to]
            return self._closed or used <= 0 or used + size <= self._limit

        self._waiters += 1
        try:
            waited = self._room.wait_for(has_room, at_most(min(longest, patience)))
        finally:
            self._waiters -= 1
        if not waited and longest < patience:
            what = f"a call to {to!r} that waited for room (transport.max_in_flight)"
            raise CallTimeoutError(what, timeout or 0.0)
        return None if timeout is None else max(began + timeout - time.monotonic(), 0.001)
