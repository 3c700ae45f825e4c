"""Another member: messages to it, within bounds, and those from it, in order."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from typing_extensions import Buffer

from pparallel.runtime.links.ordering import Ordering
from pparallel_ray.transport.dispatcher import Dispatcher, Then
from pparallel_ray.transport.messages import UNREAD, Packed, unpack

logger = logging.getLogger(__name__)

MOST = 256  #: messages on their way at once: the end of a member is reported behind them

Push = Callable[[int, Packed, int, Then], None]  #: (number, message, size, what follows)
Take = Callable[[int, Sequence[Buffer]], None]  #: (kind, frames)


class Peer:
    """Gives messages to Ray in the order in which they are put here, so many bytes at a time.

    The others wait here, and not in the broker, which serves all members. The dispatcher's thread
    alone calls Ray: a signal's handler that raises inside would leave Ray's calls out of step. It
    does all else as well, but for :meth:`put`.

    Attributes:
        confirmed: whether nothing sent here is needed of this member any more.
    """

    def __init__(
        self,
        push: Push,
        failed: Callable[[BaseException], None],
        take: Take,
        dispatcher: Dispatcher,
        limit: int,
    ) -> None:
        """Have nothing to send.

        Args:
            push: calls the broker with a message of that number, which counts as so many bytes.
            failed: called when a call has failed: the member cannot be reached.
            take: takes what comes; of kind ``UNREAD``, with the reason, where it cannot be had.
            dispatcher: runs what follows the end of a call.
            limit: bytes that may be on their way, unless it is one message.
        """
        self._push, self._failed, self._take = push, failed, take
        self._dispatcher, self._limit = dispatcher, limit
        self._waiting: deque[Packed] = deque()
        self._size = 0  # of what is on its way
        self._number = 1  # of the next message; 0 is the arrival of its sender
        self._ended = False
        self._order = Ordering()
        self.confirmed = threading.Event()

    @property
    def was_used(self) -> bool:
        """Whether anything was sent to it."""
        return self._number > 1 or bool(self._waiting)

    # -- messages to it -----------------------------------------------------------------------

    def put(self, message: Packed) -> None:
        """Send *message*, now or when those before it have been taken; in any thread."""
        if not self._ended:
            self._waiting.append(message)
            if self._dispatcher.is_here:
                self._send()
            else:
                self._dispatcher.call(self._send)

    def _send(self) -> None:
        while self._waiting and not self._ended:
            size = max(self._waiting[0].size, self._limit // MOST)
            if self._size and self._size + size > self._limit:
                return
            self._size += size
            self._push(self._number, self._waiting.popleft(), size, partial(self._pushed, size))
            self._number += 1

    def _pushed(self, size: int, _: object, error: BaseException | None) -> None:
        self._size -= size
        if error is None:
            self._send()
        elif not self._ended:
            self._failed(error)

    # -- messages from it ---------------------------------------------------------------------

    def admit(self) -> None:
        """Let in what it has sent, and will send."""
        self._order.arrived(0, lambda: None)

    def arrived(self, number: int, data: bytes, large: Sequence[Any]) -> None:
        """Take a message; frames in the object store are waited for in no thread."""
        if large:
            self._dispatcher.when_done(large[0], partial(self._fetched, number, data))
        else:
            self._order.arrived(number, partial(self._open, data, []))

    def _fetched(self, number: int, data: bytes, large: Any, error: BaseException | None) -> None:
        if error is None:
            act = partial(self._open, data, large)
        else:
            why = f"its large frames were lost in Ray's object store ({error})"
            act = partial(self._take, UNREAD, [why.encode()])
        self._order.arrived(number, act)

    def _open(self, data: bytes, large: Sequence[Buffer]) -> None:
        try:
            kind, frames = unpack(data, large)
        except (ValueError, MemoryError) as error:
            logger.error("a message cannot be read: %s", error)
            kind, frames = UNREAD, [f"it cannot be read: {error}".encode()]
        self._take(kind, frames)

    def end(self, act: Callable[[], None]) -> None:
        """Call *act* after the messages that are here; take and send no more."""

        def last() -> None:
            self._ended = True
            self._waiting.clear()
            self.confirmed.set()
            act()

        self._order.end(last)
