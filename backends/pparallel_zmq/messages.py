"""The bytes of messages between members, in a fixed binary form that is never pickled.

The first byte is the kind. A message that is one small frame of ``bytes`` follows as it is. Others
have a count and a table with the size of each frame, and then the frames::

    kind u8, zero[3], count of frames u32, number of the message u32
    for each frame a u64: twice its size, and one more if it was sent writable

Where the frames have more than :data:`INLINE` bytes they follow as the bytes of pieces: messages of
ZeroMQ with two parts, the second of which is the piece.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from mmap import mmap
from typing import NamedTuple

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.flat_views import flat

LARGE = 2**20  #: bytes of a frame, from which on it has a mapping of its own
INLINE = 2**16  #: bytes of all frames, up to which they travel with the head

FRAME = 1  #: one small frame
FRAMES = 2  #: frames with a table
HELLO = 3  #: says who the sender is
REFUSED = 4  #: back: it is not let in, and why
ROSTER = 5  #: from the first member: all have arrived, with their hellos
LOST = 6  #: from the first member: which one has ended, and how
BYE = 7  #: the sender leaves
LEFT = 8  #: back: all that it has sent has arrived
PIECE = 9  #: bytes of a large message
MORE = 10  #: back: a piece has been taken, send another
DIRECT = 11  #: where the sender waits for a direct connection
SERVED = 12  #: the first message of a direct connection, of the end that answers

_HEAD = struct.Struct("<B3xII")
_FRAME = bytes([FRAME])
MORE_BACK = bytes([MORE])
_numbers = itertools.count(1)

Part = bytes | memoryview
#: the parts of a message of ZeroMQ
Parts = tuple[Part, ...]


class BadMessageError(Exception):
    """Raised for bytes that are no message; they are dropped."""


class Limits(NamedTuple):
    """The most that a message may hold.

    Attributes:
        frames: how many.
        size: bytes of them together.
        piece: bytes of a part of the message.
    """

    frames: int
    size: int
    piece: int

    @property
    def part(self) -> int:
        """Bytes that one part of a message on a socket may have."""
        return max(self.piece, INLINE + 8 * self.frames) + _HEAD.size


def pack(frames: Frames, limits: Limits, kind: int = FRAMES) -> list[Parts]:
    """Return a message, and the pieces that follow it; those are the sender's own memory.

    Raises:
        SerializationError: it is more than the limits allow.
    """
    if len(frames) == 1 and kind == FRAMES:
        one = frames[0]
        if type(one) is bytes and len(one) <= INLINE:
            return [(_FRAME + one,)]
    raws: list[Part] = []
    table: list[int] = []
    total = 0
    for each in frames:
        raw = each if type(each) is bytes else flat(each)
        size = len(raw)
        raws.append(raw)
        table.append(size << 1 | (type(raw) is memoryview and not raw.readonly))
        total += size
    count = len(table)
    if count > limits.frames:
        message = f"at most {limits.frames} are allowed; raise transport.max_frames"
        raise SerializationError(f"a message of {count} frames", message)
    if total > limits.size:
        message = f"at most {limits.size} are allowed; raise transport.max_message"
        raise SerializationError(f"a message of {total} bytes", message)
    number = next(_numbers) & 0xFFFFFFFF
    head = _HEAD.pack(kind, count, number) + struct.pack(f"<{count}Q", *table)
    if total <= INLINE:
        return [(b"".join((head, *raws)),)]
    of = _HEAD.pack(PIECE, 0, number)
    return [(head,), *((of, piece) for piece in _cut(raws, limits.piece))]


def _cut(raws: Sequence[Part], size: int) -> Iterator[Part]:
    small: list[Part] = []
    held = 0
    for raw in raws:
        length = len(raw)
        if small and (length > INLINE or held + length > size):
            yield b"".join(small)
            small, held = [], 0
        if length > INLINE:
            view = memoryview(raw)
            for start in range(0, length, size):
                yield view[start : start + size]
        elif length:
            small.append(raw)
            held += length
    if small:
        yield b"".join(small)


def unpack(part: bytes, limits: Limits) -> list[Buffer] | Incoming:
    """Return the frames of a message, as memory of the receiver's own, or what will have them.

    Raises:
        BadMessageError: it is no message, or more than the limits allow.
    """
    if part[:1] == _FRAME:
        return [part[1:]]
    if len(part) < _HEAD.size:
        raise BadMessageError("shorter than a head")
    _, count, number = _HEAD.unpack_from(part)
    at = _HEAD.size + 8 * count
    if count > limits.frames or at > len(part):
        raise BadMessageError("the head announces more than there is")
    table = struct.unpack_from(f"<{count}Q", part, _HEAD.size)
    total = sum(each >> 1 for each in table)
    if total > limits.size or at + (total if total <= INLINE else 0) != len(part):
        raise BadMessageError("the frames are not of the sizes announced")
    if total > INLINE:
        return Incoming(part[0], number, table)
    frames: list[Buffer] = []
    for each in table:
        end = at + (each >> 1)
        frames.append(bytearray(part[at:end]) if each & 1 else part[at:end])
        at = end
    return frames


class Incoming:
    """A large message that is being received, into memory of the receiver's own.

    It is taken as bytes come, whatever was announced: a frame when its first byte does, and the
    pages of a large one when they are written to.

    Attributes:
        kind: that of the message.
    """

    def __init__(self, kind: int, number: int, table: Sequence[int]) -> None:
        self.kind, self._of = kind, _HEAD.pack(PIECE, 0, number)
        self._table = table
        self._frames: list[memoryview] = []
        self._room = 0  # bytes of the last frame that are still to come
        self._left = sum(each >> 1 for each in table)

    def feed(self, head: bytes, piece: memoryview) -> bool:
        """Take in a piece; return whether it was the last.

        Raises:
            BadMessageError: it is no piece of this message.
        """
        size = len(piece)
        if head != self._of or not 0 < size <= self._left:
            raise BadMessageError("a piece of another message, or larger than was announced")
        self._left -= size
        while piece:
            if self._room == 0:  # the next frame begins
                self._room = room = self._table[len(self._frames)] >> 1
                is_large = room >= LARGE
                self._frames.append(memoryview(mmap(-1, room) if is_large else bytearray(room)))
            part, piece = piece[: self._room], piece[self._room :]
            at = len(self._frames[-1]) - self._room
            self._frames[-1][at : at + len(part)] = part
            self._room -= len(part)
        return self._left == 0

    def frames(self) -> list[Buffer]:
        """Return the frames, once all is there."""
        empty = [memoryview(bytearray())] * (len(self._table) - len(self._frames))
        return [
            frame if entry & 1 else frame.toreadonly()
            for frame, entry in zip([*self._frames, *empty], self._table, strict=True)
        ]
