"""Values as Redis keeps them.

A small value lies in the record of its version. A large one lies beside it, cut into pieces that
are keys of their own: no script touches those, and none is larger than Redis takes.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

INLINE = 16 << 10  #: bytes of a value up to which it lies in its record
PIECE = 128 << 20  #: bytes of a piece; Redis takes up to four times as much
TOKEN = 33  #: letters by which the pieces of a value are told from all others
HEAD = 1 + TOKEN + 4  #: letters of a record of pieces before its sizes; the scripts know them

Views = list[memoryview]


class Value(NamedTuple):
    """A value, ready to be stored.

    Attributes:
        record: what is stored with its version.
        pieces: what is stored beside it, each in one or more views.
    """

    record: bytes
    pieces: list[Views]


class Record(NamedTuple):
    """What a record says.

    Attributes:
        sizes: of the value's buffers.
        content: the buffers, end to end, if they are in it.
        token: where their pieces are, otherwise.
        pieces: how many there are.
    """

    sizes: tuple[int, ...]
    content: memoryview
    token: bytes = b""
    pieces: int = 0


def made(buffers: Sequence[Buffer], token: bytes) -> Value:
    """Return *buffers* as a value, whose pieces are to be found by *token*; nothing is copied.

    Raises:
        ValueError: the value is too large.
    """
    views = [memoryview(each).cast("B") for each in buffers]
    sizes = [each.nbytes for each in views]
    packed = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    if sum(sizes) <= INLINE:
        return Value(b"".join((b"i", packed, *views)), [])
    pieces = cut(views)
    if len(pieces) > 0xFFFF:
        message = f"a value has at most {0xFFFF * PIECE:,} bytes in Redis, and this {sum(sizes):,}"
        raise ValueError(message)
    return Value(b"x%b%04x%b" % (token, len(pieces), packed), pieces)


def read(record: bytes) -> Record:
    """Return what *record* says.

    Raises:
        ValueError: nothing: no ordered server has written it.
    """
    try:
        if record[:1] == b"x":
            sizes, _ = _sizes(record, HEAD)
            count = int(record[1 + TOKEN : HEAD], 16)
            return Record(sizes, memoryview(b""), record[1 : 1 + TOKEN], count)
        sizes, end = _sizes(record, 1)
    except struct.error as error:
        raise _damaged() from error
    if record[:1] != b"i" or len(record) - end != sum(sizes):
        raise _damaged()
    return Record(sizes, memoryview(record)[end:])


def split(content: memoryview, sizes: Iterable[int]) -> list[Buffer]:
    """Return the buffers that lie end to end in *content*."""
    buffers: list[Buffer] = []
    for size in sizes:
        buffers.append(content[:size])
        content = content[size:]
    return buffers


def cut(views: Iterable[memoryview]) -> list[Views]:
    """Cut *views*, laid end to end, into pieces."""
    pieces: list[Views] = []
    room = 0
    for view in views:
        rest = view
        while rest.nbytes:
            if not room:
                pieces.append([])
                room = PIECE
            part, rest = rest[:room], rest[room:]
            pieces[-1].append(part)
            room -= part.nbytes
    return pieces


def memory(nbytes: int) -> memoryview:
    """Return memory of so many bytes, which may hold anything."""
    numpy = sys.modules.get("numpy")  # which has memory that nobody has to write to first
    return memoryview(bytearray(nbytes) if numpy is None else numpy.empty(nbytes, "u1"))


def _sizes(record: bytes, start: int) -> tuple[tuple[int, ...], int]:
    (count,) = struct.unpack_from("<I", record, start)
    if count > len(record):
        raise _damaged()
    return struct.unpack_from(f"<{count}Q", record, start + 4), start + 4 + 8 * count


def _damaged() -> ValueError:
    return ValueError("a value is damaged, or was written by something else")
