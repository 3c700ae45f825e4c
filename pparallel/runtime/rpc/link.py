"""Messages over a transport of requests: each is a request whose reply is nothing."""

from __future__ import annotations

from concurrent.futures import Future

from typing_extensions import override

from pparallel.interfaces.request_transport import RequestTransport
from pparallel.interfaces.transport import Frames, Receiver, Transport
from pparallel.runtime.future import LeanFuture


class RequestLink(Transport):
    """A transport of requests as one of messages."""

    def __init__(self, transport: RequestTransport) -> None:
        self._transport = transport
        self._receiver: Receiver | None = None
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
        def take(sender: str, frames: Frames) -> Frames:
            receiver.on_message(sender, frames)
            return ()

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
