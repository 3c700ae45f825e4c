"""What members say to one another, in a fixed binary form that is never pickled.

A message is a head, a table with the size of each frame, and the frames themselves::

    head:  kind u8, flags u8, zero u16, count of frames u32, number of the request u64
    table: for each frame a u64: twice its size, and one more if it was sent writable

One that is large leaves the frames out: they follow one after another as the bytes of pieces.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.flat_views import flat

HEAD = struct.Struct("<BBHIQ")
INLINE = 2**16  #: bytes of all frames, up to which they travel with the head

FAILED, LARGE = 1, 2  #: flags

Raw: TypeAlias = bytes | memoryview
#: One as it was received: kind, flags, number, table, and frames; none yet if it is large.
Message: TypeAlias = tuple[int, int, int, tuple[int, ...], list[Buffer]]


class Kind:
    """What a message is for."""

    HELLO = 1  #: to a member: who I am
    WELCOME = 2  #: back: you are let in, and this proves who I am
    REFUSED = 3  #: back: you are not, and why
    ROSTER = 4  #: from the first member: all have arrived, and this is what they said
    REQUEST = 5
    REPLY = 6
    PIECE = 7  #: bytes of a large request or reply
    MORE = 8  #: a piece was taken in, send another
    ABORT = 9  #: nobody waits for this request any more
    LOST = 10  #: from the first member: that one has ended, and how
    BYE = 11  #: back: I leave


_AFTER = HEAD.size
# Head and table of two frames, as most calls and results have: to read and write these takes a
# tenth of such a call otherwise.
_PAIR = struct.Struct(f"{HEAD.format}QQ")
_PAIR_END = _PAIR.size


class BadMessageError(Exception):
    """Raised for bytes that are no message; they are dropped."""


class Limits(NamedTuple):
    """What a message may hold."""

    frames: int
    size: int
    piece: int
    window: int = 4  #: pieces of one message that may be under way

    @property
    def part(self) -> int:
        """Bytes that one part of a message on a socket may have."""
        return max(self.piece, INLINE + 8 * self.frames) + HEAD.size


def pack(
    kind: int, number: int, frames: Frames, limits: Limits, flags: int = 0
) -> tuple[bytes, list[Raw]]:
    """Return a message, and what follows it in pieces: nothing unless it is large.

    Raises:
        SerializationError: no member would take it.
    """
    if len(frames) == 2:
        one, two = frames
        if type(one) is bytes and type(two) is bytes and len(one) + len(two) <= INLINE:
            head = _PAIR.pack(kind, flags, 0, 2, number, len(one) << 1, len(two) << 1)
            return head + one + two, []  # all limits allow as much
    raws: list[Raw] = []
    table: list[int] = []
    total = 0
    for each in frames:
        if type(each) is bytes:
            size = len(each)
            raws.append(each)
            table.append(size << 1)
        else:
            raw = flat(each)
            size = raw.nbytes
            raws.append(raw)
            table.append(size << 1 | (not raw.readonly))
        total += size
    count = len(table)
    if count > limits.frames:
        message = f"at most {limits.frames} are allowed; raise transport.max_frames"
        raise SerializationError(f"a message of {count} frames", message)
    if total > limits.size:
        message = f"at most {limits.size} are allowed; raise transport.max_message"
        raise SerializationError(f"a message of {total} bytes", message)
    sizes = struct.pack(f"<{count}Q", *table)
    if total > INLINE:
        return HEAD.pack(kind, flags | LARGE, 0, count, number) + sizes, raws
    return b"".join((HEAD.pack(kind, flags, 0, count, number), sizes, *raws)), []


def say(kind: int, *frames: bytes, number: int = 0) -> bytes:
    """Return a small message."""
    sizes = struct.pack(f"<{len(frames)}Q", *[len(each) << 1 for each in frames])
    return b"".join((HEAD.pack(kind, 0, 0, len(frames), number), sizes, *frames))


def unpack(part: bytes, limits: Limits) -> Message:
    """Return what was packed.

    Raises:
        BadMessageError: it is no message, or more than the limits allow.
    """
    if len(part) >= _PAIR_END:
        kind, flags, zero, count, number, one, two = _PAIR.unpack_from(part)
        middle = _PAIR_END + (one >> 1)
        if (
            count == 2
            and middle + (two >> 1) == len(part)
            and not zero | flags & LARGE | (one | two) & 1
        ):
            return kind, flags, number, (one, two), [part[_PAIR_END:middle], part[middle:]]
    if len(part) < _AFTER:
        raise BadMessageError("shorter than a head")
    kind, flags, zero, count, number = HEAD.unpack_from(part)
    at = _AFTER + 8 * count
    if count > limits.frames or at > len(part) or zero:
        raise BadMessageError("the head announces what is not there")
    table = struct.unpack_from(f"<{count}Q", part, _AFTER)
    if flags & LARGE:
        total = sum(each >> 1 for each in table)
        if total > limits.size or total <= INLINE or at != len(part):
            raise BadMessageError("a large message of another size than is allowed")
        return kind, flags, number, table, []
    frames: list[Buffer] = []
    for each in table:
        end = at + (each >> 1)
        frames.append(bytearray(part[at:end]) if each & 1 else part[at:end])
        at = end
    if at != len(part):
        raise BadMessageError("the frames are not of the sizes announced")
    return kind, flags, number, table, frames
