"""Messages over a transport of requests: each is a request whose reply is nothing.

Only while transports move to messages. Exchanges go by lanes, where a transport has these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from typing_extensions import override

from pparallel.interfaces.transport import Frames, Receiver, Transport
from pparallel.runtime import dedicated
from pparallel.runtime.future import LeanFuture, fail, settle
from pparallel.runtime.request_transport import RequestTransport
from pparallel.runtime.rpc.codec import CALL_EXCHANGE, SERVICE_EXCHANGE, kind_of

_EXCHANGES = (CALL_EXCHANGE, SERVICE_EXCHANGE)


class RequestLink(Transport):
    """A transport of requests as one of messages."""

    def __init__(self, transport: RequestTransport) -> None:
        self._transport = transport
        self._receiver: Receiver | None = None
        self.run: Callable[[Callable[[], None]], object] = _in_thread
        if hasattr(transport, "arena"):
            self.arena = transport.arena

    @property
    @override
    def name(self) -> str:
        return self._transport.name

    @override
    def members(self) -> list[str]:
        return self._transport.members()

    @override
    def open(self, receiver: Receiver) -> None:
        def take(sender: str, frames: Frames) -> Frames | Future[Frames]:
            if kind_of(frames) not in _EXCHANGES:
                receiver.on_message(sender, frames)
                return ()
            if dedicated.here.role.kind == dedicated.ALONE:
                return receiver.on_exchange(sender, frames)
            reply: LeanFuture[Frames] = LeanFuture()
            self.run(partial(_exchange, receiver, sender, frames, reply))
            return reply

        self._receiver = receiver
        self._transport.when_lost(receiver.on_lost)
        self._transport.open(take)

    @override
    def close(self) -> None:
        self._transport.close()

    @override
    def send(self, to: str, frames: Frames) -> None:
        def ended(sent: Future[Frames]) -> None:
            error = sent.exception()
            if error is not None and self._receiver is not None:
                self._receiver.on_reset(to, error)

        sent: LeanFuture[Frames] = LeanFuture()
        sent.when_done(ended)
        self._transport.send(to, frames, None, sent)

    @override
    def exchange(self, to: str, frames: Frames, timeout: float | None) -> Frames | None:
        return self._transport.call(to, frames, timeout) if self._transport.has_lanes else None


def _in_thread(act: Callable[[], None]) -> None:
    threading.Thread(target=act, daemon=True).start()


def _exchange(receiver: Receiver, sender: str, frames: Frames, reply: LeanFuture[Frames]) -> None:
    try:
        found = receiver.on_exchange(sender, frames)
    except Exception as error:  # noqa: BLE001 - goes to whoever waits
        fail(reply, error)
        return
    if isinstance(found, Future):
        found.add_done_callback(lambda done: settle(reply, done.result()))
    else:
        settle(reply, found)
