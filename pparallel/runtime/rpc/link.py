"""Messages and exchanges over a transport of requests and replies.

An exchange is a request whose reply is the answer, on a way of the calling thread's own where the
transport has one. A message is a request too. Its reply is the next message with results for its
sender, where these are small, or nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Protocol

from pparallel.interfaces.transport import Frames, Transport
from pparallel.runtime import dedicated
from pparallel.runtime.dedicated import ALONE
from pparallel.runtime.future import LeanFuture, settle
from pparallel.runtime.rpc import context
from pparallel.runtime.rpc.codec import CALL_EXCHANGE, CALLS, RESULTS, SERVICE_EXCHANGE, kind_of

_EXCHANGES = (CALL_EXCHANGE, SERVICE_EXCHANGE)
_NOTHING: Frames = ()

MOST = 2  #: messages of a member whose replies may be used later


class Receiver(Protocol):
    """Whom the link hands what arrives: the endpoint."""

    def on_message(
        self, sender: str, frames: Frames, when_new: Callable[[], object] = lambda: None
    ) -> None:
        """Take a message; never blocks. *when_new* is called before what is new in it is run."""

    def on_exchange(self, sender: str, frames: Frames) -> Frames | Future[Frames]:
        """Answer in this thread, which may block."""

    def on_shared_exchange(self, sender: str, frames: Frames) -> Frames | Future[Frames]:
        """Answer, or return a future of the answer; never blocks."""

    def on_lost(self, name: str, reason: str) -> None:
        """Take note that a member has ended."""


class TransportLink:
    """The messages and exchanges of one member."""

    def __init__(self, transport: Transport, receiver: Receiver) -> None:
        self._transport, self._receiver = transport, receiver
        self._owed: defaultdict[str, deque[Future[Frames]]] = defaultdict(deque)

    def open(self) -> None:
        """Meet the other members."""
        self._transport.when_lost(self._lost)
        self._transport.open(self._handle)

    def send(
        self,
        to: str,
        frames: Frames,
        failed: Callable[[BaseException], object],
        timeout: float | None = None,
    ) -> None:
        """Send a message; *failed* is called if it is known not to have arrived."""
        owed = self._owed[to]
        if owed and len(frames) == 1 and kind_of(frames) == RESULTS:
            with suppress(IndexError):  # another thread has taken it
                settle(owed.popleft(), frames)
                return

        def ended(sent: Future[Frames]) -> None:
            if (error := sent.exception()) is not None:
                failed(error)
            elif reply := sent.result():
                with context.internal():
                    self._receiver.on_message(to, reply)

        sent: LeanFuture[Frames] = LeanFuture()
        sent.when_done(ended)
        self._transport.send(to, frames, timeout, sent)

    def exchange(self, to: str, frames: Frames, timeout: float | None) -> Frames:
        """Send a request and return the reply; raises as ``Transport.call``."""
        return self._transport.call(to, frames, timeout)

    def _owe(self, sender: str, reply: Future[Frames]) -> None:
        owed = self._owed[sender]
        owed.append(reply)
        if len(owed) > MOST:  # results leave together, and leave some over
            settle(owed.popleft(), _NOTHING)

    def reply_to_all(self, to: str) -> None:
        """Reply with nothing to what a member has sent: there are no results for it now."""
        owed = self._owed[to]
        with suppress(IndexError):
            while owed:
                settle(owed.popleft(), _NOTHING)

    def awaiting(
        self, to: str, is_done: Callable[[], bool], timeout: float | None
    ) -> AbstractContextManager[object]:
        """Return what a thread is inside of while it waits for results: it may receive them."""
        return self._transport.awaiting(to, is_done, timeout)

    def _handle(self, sender: str, frames: Frames) -> Frames | Future[Frames]:
        kind = kind_of(frames)
        is_exchange = kind in _EXCHANGES
        if is_exchange and dedicated.here.role.kind == ALONE:
            return self._receiver.on_exchange(sender, frames)
        before, context.here.internal = context.here.internal, True
        try:
            if is_exchange:
                return self._receiver.on_shared_exchange(sender, frames)
            if kind != CALLS:
                self._receiver.on_message(sender, frames)
                return _NOTHING
            reply: Future[Frames] = LeanFuture()
            # One that has come before is not replied to, so that the first reply is not overtaken.
            self._receiver.on_message(sender, frames, partial(self._owe, sender, reply))
            return reply
        finally:
            context.here.internal = before

    def _lost(self, name: str, reason: str) -> None:
        with context.internal():
            self._receiver.on_lost(name, reason)
