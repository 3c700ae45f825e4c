"""Requests that reach their handler in this process, by a call."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from pparallel.errors import RemoteError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.flat_views import own
from pparallel.runtime.future import fail, settle
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.request_transport import Handler

FLUSH = 1.0  #: seconds that the end waits for requests that are being handled


class Delivery:
    """Hands requests to the handler of one member, in the thread of whoever sends them.

    Memory that could change is copied once each way: what arrives is the receiver's own.
    """

    def __init__(self, name: str, handler: Handler) -> None:
        self._name, self._handler = name, handler
        self._handled = threading.Condition()
        self._handling: list[int] = []  # threads that are inside the handler

    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        """Handle a request of *sender* and complete *future* with the reply."""
        thread = threading.get_ident()
        with self._handled:
            self._handling.append(thread)
        try:
            self._handle(sender, frames, future)
        finally:
            with self._handled:
                self._handling.remove(thread)
                self._handled.notify_all()

    def finish(self) -> None:
        """Let replies that are known be given; handlers never block, so that it is soon done.

        The limit is for two members that each close while they handle a request of the other.
        """
        me = threading.get_ident()
        with self._handled:
            self._handled.wait_for(lambda: all(each == me for each in self._handling), FLUSH)

    def _handle(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        try:
            reply = self._handler(sender, own(frames))
            if not isinstance(reply, Future):
                settle(future, own(reply))
                return
        except Exception as error:  # noqa: BLE001 - a handler must not raise; its caller must know
            raise_interrupt(error)
            fail(future, self._told(error))
            return

        def replied(source: Future[Frames]) -> None:
            try:
                settle(future, own(source.result()))
            except Exception as error:  # noqa: BLE001 - as above
                raise_interrupt(error)
                fail(future, self._told(error))

        reply.add_done_callback(replied)

    def _told(self, error: BaseException) -> RemoteError:
        return RemoteError(self._name, type(error).__name__, str(error), "")
