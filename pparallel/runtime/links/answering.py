"""Answer a request that came over a wire."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from pparallel.errors import RemoteError
from pparallel.interfaces.transport import Frames, Handler

OK, FAILED = range(2)  #: how a request ended, where the handler itself may fail

Reply = Callable[[int, Frames], None]


def answer(handler: Handler, sender: str, frames: Frames, reply: Reply) -> None:
    """Have *handler* handle a request, and call *reply* with how it ended and what it answered.

    That is at once, or in another thread when the handler's future is done.
    """
    try:
        found = handler(sender, frames)
    except Exception as error:  # noqa: BLE001 - a handler must not raise; its caller must know
        reply(FAILED, _told(error))
        return
    if not isinstance(found, Future):
        reply(OK, found)
        return

    def ended(source: Future[Frames]) -> None:
        error = source.exception()
        if error is None:
            reply(OK, source.result())
        else:
            reply(FAILED, _told(error))

    found.add_done_callback(ended)


def failure(peer: str, frames: Frames) -> RemoteError:
    """Return what a reply that is ``FAILED`` says of the handler of *peer*."""
    kind, message = (bytes(each).decode(errors="replace") for each in frames)
    return RemoteError(peer, kind, message, "")


def _told(error: BaseException) -> list[bytes]:
    return [type(error).__name__.encode(), str(error).encode(errors="replace")]
