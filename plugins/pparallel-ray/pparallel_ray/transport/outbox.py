"""Messages to one other member."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ray.exceptions import RayError

from pparallel_ray.transport.dispatcher import Dispatcher
from pparallel_ray.transport.messages import Packed, Parcel

MOST = 256  #: messages on their way at once: the end of a member is reported behind them


class Outbox:
    """Gives messages to Ray in the order in which they are put here, so many bytes at a time.

    The others wait here, and not in the broker, which serves all members. The dispatcher's thread
    alone calls Ray: a signal's handler that raises inside would leave Ray's calls out of step.
    """

    def __init__(
        self,
        sender: int,
        proof: bytes,
        push: Callable[[Parcel, int], Any],
        failed: Callable[[BaseException], None],
        dispatcher: Dispatcher,
        limit: int,
    ) -> None:
        """Have nothing to send.

        Args:
            sender: this member's rank.
            proof: that a message is this member's.
            push: calls the broker with a parcel of so many bytes; returns Ray's reference.
            failed: called when a call has failed: the other member cannot be reached.
            dispatcher: runs what follows the end of a call.
            limit: bytes that may be on their way, unless it is one message.
        """
        self._sender, self._proof, self._push, self._failed = sender, proof, push, failed
        self._dispatcher, self._limit = dispatcher, limit
        self._waiting: deque[Packed] = deque()
        self._size = 0  # of what is on its way
        self._number = 0  # of the next message
        self._ended = False

    def put(self, message: Packed) -> None:
        """Send *message*, now or when those before it have been taken; in any thread."""
        if not self._ended:
            self._waiting.append(message)
            if self._dispatcher.is_here:
                self._send()
            else:
                self._dispatcher.call(self._send)

    def end(self) -> None:
        """Throw away what waits, and what will come."""
        self._ended = True
        self._waiting.clear()

    def _send(self) -> None:
        while self._waiting and not self._ended:
            data, large, size = self._waiting[0]
            size = max(size, self._limit // MOST)
            if self._size and self._size + size > self._limit:
                return
            parcel = self._sender, self._number, self._proof, data, large
            try:
                called = self._push(parcel, size)
            except (RayError, RuntimeError) as error:  # this process has been disconnected
                self._failed(error)
                return
            self._number += 1
            self._waiting.popleft()
            self._size += size
            self._dispatcher.when_done(called, partial(self._taken, size))

    def _taken(self, size: int, _: object, error: BaseException | None) -> None:
        self._size -= size
        if error is None:
            self._send()
        elif not self._ended:
            self._failed(error)
