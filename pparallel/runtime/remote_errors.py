"""Carry an exception from one member to another."""

from __future__ import annotations

import traceback
from typing import Any, NamedTuple

from pparallel.errors import RemoteError
from pparallel.interfaces.serializer import Serializer


class Envelope(NamedTuple):
    """An exception on its way: plain text, and the exception itself if it can be rebuilt."""

    type_name: str
    message: str
    traceback: str
    exception: list[bytes] | None


def pack(error: BaseException, serializer: Serializer) -> Envelope:
    """Return *error* as something that every serializer can send; never raises."""
    try:
        message = str(error)
    except Exception as unreadable:  # noqa: BLE001 - the user's __str__ may raise anything
        message = f"<no message: __str__ raised {type(unreadable).__name__}>"
    kind = type(error)
    return Envelope(
        f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
        message,
        "".join(traceback.format_exception(error)),
        _rebuildable(error, serializer),
    )


def unpack(envelope: Any, member: str, serializer: Serializer) -> BaseException:
    """Return the exception of *envelope*, raised in *member*, with its traceback as the cause."""
    type_name, message, text, exception = envelope
    remote = RemoteError(member, type_name, message, text)
    if exception is None:
        return remote
    try:
        error = serializer.loads(exception)
    except Exception:  # noqa: BLE001 - its type does not exist here, or refuses to be rebuilt
        return remote
    if not isinstance(error, Exception):
        return remote
    error.__cause__ = remote
    return error


def _rebuildable(error: BaseException, serializer: Serializer) -> list[bytes] | None:
    # SystemExit and KeyboardInterrupt would end the caller: they travel as text.
    if not isinstance(error, Exception):
        return None
    try:
        frames = [bytes(each) for each in serializer.dumps(error)]
        copy = serializer.loads(frames)
    except Exception:  # noqa: BLE001 - the user's exception may refuse in any way
        return None
    return frames if type(copy) is type(error) else None
