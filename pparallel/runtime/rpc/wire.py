"""What the frames between two members mean.

A request is a header, the frames of its body, and raw buffers that nobody need understand::

    header: kind u8, zero u8, frames of the body u16, sending thread u64, request number u64

A reply is the same with a status for its kind. The body goes through the serializer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.transport import Frames

_HEADER = struct.Struct("<BxHxxxxQQ")


class Kind(IntEnum):
    """What a request asks for."""

    SERVICE = 0  #: a service of the system, answered at once or by a deferred reply
    CALL = 1  #: a function that comes with the request
    REGISTERED = 2  #: a function that is registered there
    REMOTE = 3  #: as CALL or REGISTERED, but the result stays there


class Status(IntEnum):
    """How a request ended."""

    OK = 0
    FAILED = 1  #: the body is the envelope of an exception
    NOT_REGISTERED = 2  #: nothing was run


class Message(NamedTuple):
    """The parts of a request or reply."""

    kind: int
    body: Frames
    buffers: list[Buffer]
    thread: int
    number: int


def join(
    kind: int, body: Frames, buffers: Sequence[Buffer] = (), thread: int = 0, number: int = 0
) -> list[Buffer]:
    """Return the frames of a request or reply."""
    return [_HEADER.pack(kind, len(body), thread, number), *body, *buffers]


def split(frames: Frames) -> Message:
    """Return the parts of a request or reply.

    Raises:
        SerializationError: *frames* are none.
    """
    try:
        kind, count, thread, number = _HEADER.unpack(frames[0])
    except (IndexError, struct.error) as error:
        raise SerializationError("a message without a header", error, loading=True) from error
    if count + 1 > len(frames):
        missing = f"{count} frames announced, {len(frames) - 1} there"
        raise SerializationError("a message", missing, loading=True)
    return Message(kind, frames[1 : count + 1], list(frames[count + 1 :]), thread, number)


def size(frames: Frames) -> int:
    """Return how many bytes *frames* hold."""
    return sum(memoryview(frame).nbytes for frame in frames)
