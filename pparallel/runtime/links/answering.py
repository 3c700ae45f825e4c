"""Answer a request that came over a wire."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from pparallel.errors import RemoteError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.request_transport import Handler

OK, FAILED = range(2)  #: how a request ended, where the handler itself may fail


def attempt(handler: Handler, sender: str, frames: Frames) -> tuple[int, Frames] | Future[Frames]:
    """Have *handler* handle a request; return how it ended with the reply, or a future of that."""
    try:
        found = handler(sender, frames)
    except Exception as error:  # noqa: BLE001 - a handler must not raise; its caller must know
        return FAILED, told(error)
    return found if isinstance(found, Future) else (OK, found)


def outcome(done: Future[Frames]) -> tuple[int, Frames]:
    """Return how a request ended whose future is done, and the reply."""
    error = done.exception()
    return (OK, done.result()) if error is None else (FAILED, told(error))


def answer(
    handler: Handler, sender: str, frames: Frames, reply: Callable[[int, Frames], None]
) -> None:
    """Have *handler* handle a request, and call *reply* with how it ended and what it answered.

    That is at once, or in another thread when the handler's future is done.
    """
    found = attempt(handler, sender, frames)
    if isinstance(found, Future):
        found.add_done_callback(lambda done: reply(*outcome(done)))
    else:
        reply(*found)


def failure(peer: str, frames: Frames) -> RemoteError:
    """Return what a reply that is ``FAILED`` says of the handler of *peer*."""
    kind, message = (bytes(each).decode(errors="replace") for each in frames)
    return RemoteError(peer, kind, message, "")


def told(error: BaseException) -> list[bytes]:
    """Return the reply of a request that has FAILED with *error*."""
    return [type(error).__name__.encode(), str(error).encode(errors="replace")]
