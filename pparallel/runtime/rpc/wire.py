"""What the frames between two members mean.

A request is a header, the frames of its body, and raw buffers that nobody need understand::

    header: kind u8, flags u8, frames of the body u32, sender's session u32,
            sending thread u64, request number u64, seconds f32

The seconds are those within which the caller wants the reply, 0 for no limit. A request that has
waited longer for a thread is not run: nobody waits for its reply.

The requests of one session (one opened runtime of one member) to one other member are numbered
from 0 on. A reply is the same with a status for its kind, and zeros otherwise; instead of a
request's, it may have the number of a function that the member keeps from now on
(:mod:`pparallel.runtime.rpc.closures`). The body goes through the serializer, or, where it is
flagged as quick, is plain data in a form that takes less time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.interfaces.transport import Frames

_HEADER = struct.Struct("<BBIIQQf")
header, fields = _HEADER.pack, _HEADER.unpack  #: of and from the fields above

IDEMPOTENT = 1  #: flag of a request that may come again, and is then to be answered again
QUICK = 2  #: flag of what has the form of :mod:`pparallel.runtime.rpc.quick`

SMALL = 4096  #: bytes up to which a quick request counts for nothing where each thread has one


class Kind:
    """What a request asks for, as numbers: to look one up in an enum costs four times as much."""

    SERVICE = 0  #: a service of the system, answered at once or by a deferred reply
    CALL = 1  #: a function that comes with the request
    REGISTERED = 2  #: a function that is registered there
    REMOTE = 3  #: as CALL or REGISTERED, but the result stays there
    BATCH = 4  #: several calls: see :mod:`pparallel.runtime.rpc.batches`
    REST = 5  #: those results of a batch that were not there when it was answered


class Status:
    """How a request ended."""

    OK = 0
    FAILED = 1  #: the body is the envelope of an exception
    NOT_REGISTERED = 2  #: nothing was run


CALLS = frozenset((Kind.CALL, Kind.REGISTERED))  #: what is to return a result
QUICK_OK = header(Status.OK, QUICK, 1, 0, 0, 0, 0.0)  #: the header of a quick answer


class Message(NamedTuple):
    """The parts of a request or reply."""

    kind: int
    flags: int
    body: Frames
    buffers: list[Buffer]
    session: int
    thread: int
    number: int
    limit: float = 0.0


def join(kind: int, body: Frames, buffers: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return the frames of a reply."""
    return [header(kind, 0, len(body), 0, 0, 0, 0.0), *body, *buffers]


def result(serializer: Serializer, value: object, buffers: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return the frames of a reply that brings *value*.

    Raises:
        SerializationError: it cannot be sent.
    """
    try:
        return join(Status.OK, serializer.dumps(value), buffers)
    except SerializationError as error:
        error.locate({"": "result"})
        raise


def renumbered(frames: Frames, number: int) -> list[Buffer]:
    """Return the frames of a request or reply as one with another number."""
    kind, flags, count, session, thread, _, limit = fields(frames[0])
    return [header(kind, flags, count, session, thread, number, limit), *frames[1:]]


def split(frames: Frames) -> Message:
    """Return the parts of a request or reply.

    Raises:
        SerializationError: *frames* are none.
    """
    try:
        kind, flags, count, session, thread, number, limit = fields(frames[0])
    except (IndexError, struct.error) as error:
        raise SerializationError("a message without a header", error, loading=True) from error
    end = count + 1
    if end > len(frames):
        missing = f"{count} frames announced, {len(frames) - 1} there"
        raise SerializationError("a message", missing, loading=True)
    return Message(kind, flags, frames[1:end], list(frames[end:]), session, thread, number, limit)


def is_service(frames: Frames) -> bool:
    """Return whether *frames* are a request to a service of the system."""
    first = memoryview(frames[0]) if frames else memoryview(b"")
    return first.nbytes == _HEADER.size and first.cast("B")[0] == Kind.SERVICE


def size(frames: Frames) -> int:
    """Return how many bytes *frames* hold."""
    total = 0
    for frame in frames:
        total += len(frame) if type(frame) is bytes else memoryview(frame).nbytes
    return total
