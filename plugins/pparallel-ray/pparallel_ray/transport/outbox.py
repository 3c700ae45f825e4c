"""What one member sends to another: together where it waits together, and within bounds."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from ray.exceptions import RayError

from pparallel.runtime.future import when_done
from pparallel_ray.transport.messages import Packed, Parcel
from pparallel_ray.transport.post import Post

CALLS = 2  #: of Ray, to one member, that may be under way; what comes meanwhile waits together
TOGETHER = 64 * 2**10  #: bytes of messages from which on no other is put beside them

#: Sends a parcel of so many bytes, and returns what Ray calls the result of doing so.
Send = Callable[[Parcel, int], Any]
Failed = Callable[[BaseException], None]


class Outbox:
    """Messages for one member, in the order in which they are put here."""

    def __init__(
        self, sender: int, proof: bytes, send: Send, failed: Failed, post: Post, limit: int
    ) -> None:
        """Know where messages go.

        Args:
            sender: this member's rank.
            proof: that it is this member's.
            send: makes the call.
            failed: called when a call has failed: the other member cannot be reached.
            post: which hears how calls ended.
            limit: bytes on their way from which on :meth:`wait_for_room` waits.
        """
        self._sender, self._proof, self._send, self._failed = sender, proof, send, failed
        self._post, self._limit = post, limit
        self._changed = threading.Condition()
        self._queue: deque[Packed] = deque()
        self._size = 0  # of what has not been taken
        self._number = 0  # of the next parcel
        self._calls = 0
        self._ended = False

    @property
    def was_used(self) -> bool:
        """Whether anything was ever put here."""
        return self._number > 0

    def wait_for_room(self, future: Future[Any]) -> bool:
        """Wait until there is room for a request; return whether *future* still waits for one."""
        with self._changed:
            if self._size < self._limit:
                return True
        when_done(future, self._wake)
        with self._changed:
            self._changed.wait_for(lambda: self._ended or future.done() or self._size < self._limit)
        return not future.done()

    def put(self, message: Packed) -> None:
        """Send *message*, now or when those before it have been taken."""
        with self._changed:
            if self._ended:
                return
            self._queue.append(message)
            self._size += message.size
            batch = self._next()
        if batch is not None:
            self._call(batch)

    def end(self) -> None:
        """Throw away what there is, and what will come."""
        with self._changed:
            self._ended = True
            self._queue.clear()
            self._changed.notify_all()

    def _next(self) -> _Batch | None:
        """Return what the next call carries, if there is to be one; with the lock."""
        if self._calls >= CALLS or not self._queue:
            return None
        data: list[bytes] = []
        large: list[Any] = []
        size = length = 0
        while self._queue and length < TOGETHER:
            message = self._queue.popleft()
            data.append(message.data)
            length += len(message.data)
            size += message.size
            if message.large is not None:
                large.append(message.large)
        self._calls += 1
        self._number += 1
        parcel = self._sender, self._number - 1, self._proof, b"".join(data), large
        return _Batch(parcel, size)

    def _call(self, batch: _Batch) -> None:
        try:
            called = self._send(*batch)
        except (RayError, RuntimeError) as error:  # this process has been disconnected
            self._post.do(partial(self._taken, batch.size, None, error))
        else:
            self._post.when_done(called, partial(self._taken, batch.size))

    def _taken(self, size: int, _: object, error: BaseException | None) -> None:
        with self._changed:
            self._calls -= 1
            self._size -= size
            batch = None if self._ended else self._next()
            self._changed.notify_all()
        if error is not None and not self._ended:
            self._failed(error)
        if batch is not None:
            self._call(batch)

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()


class _Batch(NamedTuple):
    parcel: Parcel
    size: int
