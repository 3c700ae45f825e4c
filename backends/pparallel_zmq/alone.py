"""What a member asks of itself, which needs no network."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from pparallel.interfaces.transport import Frames, Handler
from pparallel.runtime.delivery import own
from pparallel.runtime.links import FAILED, answer, failure
from pparallel.runtime.pending import Pending, fail, settle

FLUSH = 1.0  #: seconds that closing waits for requests that are being handled


class Alone:
    """Handles requests of the member itself, in the thread that sends them."""

    def __init__(self, name: str, handler: Handler, pending: Pending[Frames]) -> None:
        self._name, self._handler, self._pending = name, handler, pending
        self._handled = threading.Condition()
        self._handling: list[int] = []  # threads that are inside the handler

    def send(self, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        """Handle a request, whose reply completes *future*."""
        self._pending.watch(future, self._name, timeout)

        def reply(status: int, frames: Frames) -> None:
            if status == FAILED:
                fail(future, failure(self._name, frames))
            else:
                settle(future, own(frames))

        me = threading.get_ident()
        with self._handled:
            self._handling.append(me)
        try:
            answer(self._handler, self._name, own(frames), reply)
        finally:
            with self._handled:
                self._handling.remove(me)
                self._handled.notify_all()

    def finish(self) -> None:
        """Let replies that are known be given; handlers never block, so that it is soon done."""
        me = threading.get_ident()
        with self._handled:
            self._handled.wait_for(lambda: all(each == me for each in self._handling), FLUSH)
