"""Values in the file: the serializer's buffers, end to end, cut into pieces.

Pieces keep a value clear of sqlite's limit for one blob, and are small enough to be copied in the
processor's cache.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence

from typing_extensions import Buffer

from pparallel.runtime.scratch import Loan
from pparallel_servers.sqlite.faults import DamagedRowError

SPAN = 1 << 20  #: pieces that a value may have: those of value n have the ids from n * SPAN on
PIECE = 1 << 18  #: bytes of a piece
ALIGN = 64  #: buffers begin at a multiple of it
INLINE = 4096  #: bytes of a value up to which it lies in the row of its version

_LENGTH = struct.calcsize("<Q")
_NUMBERS = (1 << 63) // SPAN  #: of values: sqlite's ids have 63 bits
_OF_VALUE = "id BETWEEN ? AND ? AND typeof(data) = 'blob'"


def write(
    connection: sqlite3.Connection,
    key: bytes,
    version: bytes,
    buffers: Sequence[Buffer],
) -> None:
    """Insert a value as the newest of *key*.

    Raises:
        ValueError: it is too large.
    """
    views = [memoryview(each).cast("B") for each in buffers]
    sizes = [each.nbytes for each in views]
    if sum(sizes) > SPAN * PIECE:
        message = f"a value has at most {SPAN * PIECE:,} bytes in a file, and this {sum(sizes):,}"
        raise ValueError(message)
    inline = b"".join(views) if sum(sizes) <= INLINE else None
    lengths = struct.pack(f"<{len(sizes)}Q", *sizes)
    row = (key, version, lengths, inline)
    sql = "INSERT INTO held (key, version, lengths, data) VALUES (?, ?, ?, ?)"
    number = connection.execute(sql, row).lastrowid
    if inline is None and number is not None:
        numbered = enumerate(_pieces(views), _ids(number)[0])
        connection.executemany("INSERT INTO piece (id, data) VALUES (?, ?)", numbered)


def read(connection: sqlite3.Connection, number: int, scratch: Loan | None = None) -> list[Buffer]:
    """Return the buffers of value *number*.

    They are the caller's for good, or where there is *scratch* lie there.

    Raises:
        DamagedRowError: they are not all there.
    """
    row = connection.execute("SELECT lengths, data FROM held WHERE id = ?", (number,)).fetchone()
    lengths, inline = row or (None, None)
    if not isinstance(lengths, bytes) or len(lengths) % _LENGTH:
        raise DamagedRowError(number, "it is not there as a whole")
    sizes = struct.unpack(f"<{len(lengths) // _LENGTH}Q", lengths)
    if inline is None:
        held, pieces = _size_of_pieces(connection, number), _pieces_of(connection, number)
    else:
        held, pieces = _size(inline), iter([inline])
    if held != sum(sizes):
        raise DamagedRowError(number, f"its value has {held} bytes, and was of {sum(sizes)}")
    stream = _Stream(pieces)
    return _new(sizes, stream) if scratch is None else _laid_out(sizes, stream, scratch)


def delete(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Delete the values with these numbers."""
    for each in numbers:
        connection.execute("DELETE FROM held WHERE id = ?", (each,))
        connection.execute("DELETE FROM piece WHERE id BETWEEN ? AND ?", _ids(each))


def _ids(number: int) -> tuple[int, int]:
    """Return the first and last id that the pieces of value *number* may have.

    Raises:
        DamagedRowError: no value has such a number.
    """
    if not (isinstance(number, int) and 0 <= number < _NUMBERS):  # a damaged index has no numbers
        raise DamagedRowError(number, "no value has that number")
    return number * SPAN, (number + 1) * SPAN - 1


def _size(data: object) -> int:
    return len(data) if isinstance(data, bytes) else -1


def _size_of_pieces(connection: sqlite3.Connection, number: int) -> int:
    """Return how many bytes the pieces of a value have; of none is more read than its size."""
    sql = f"SELECT coalesce(sum(length(data)), 0) FROM piece WHERE {_OF_VALUE}"
    return int(connection.execute(sql, _ids(number)).fetchone()[0])


def _pieces_of(connection: sqlite3.Connection, number: int) -> Iterator[bytes]:
    sql = f"SELECT data FROM piece WHERE {_OF_VALUE} ORDER BY id"
    for (data,) in connection.execute(sql, _ids(number)):
        yield data


def _pieces(views: Iterable[memoryview]) -> Iterator[Buffer]:
    """Cut *views*, laid end to end; only a piece that spans two of them is copied."""
    waiting: list[memoryview] = []
    room = PIECE
    for view in views:
        rest = view
        while rest.nbytes:
            waiting.append(rest[:room])
            rest, room = rest[room:], room - waiting[-1].nbytes
            if not room:
                yield _joined(waiting)
                waiting, room = [], PIECE
    if waiting:
        yield _joined(waiting)


def _joined(views: list[memoryview]) -> Buffer:
    return views[0] if len(views) == 1 else b"".join(views)


class _Stream:
    """Pieces, laid end to end; no more is taken than they hold."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._following = iter(pieces)
        self._piece = memoryview(b"")

    def take(self, most: int) -> memoryview:
        """Return the next bytes, as many as there are at hand and *most* at most."""
        while not self._piece.nbytes:
            self._piece = memoryview(next(self._following))
        part, self._piece = self._piece[:most], self._piece[most:]
        return part


def _new(sizes: Iterable[int], stream: _Stream) -> list[Buffer]:
    """Return buffers of these sizes, in memory of their own."""
    buffers: list[Buffer] = []
    for size in sizes:
        buffer = bytearray()  # grown and not made at its size, which would be to write it twice
        while len(buffer) < size:
            buffer += stream.take(size - len(buffer))
        buffers.append(buffer)
    return buffers


def _laid_out(sizes: Sequence[int], stream: _Stream, scratch: Loan) -> list[Buffer]:
    """Return buffers of these sizes, in memory that is used again."""
    spans = [-(-size // ALIGN) * ALIGN for size in sizes]
    memory = scratch.take(sum(spans))
    buffers: list[Buffer] = []
    for size, span in zip(sizes, spans, strict=True):
        rest = memory[:size]
        buffers.append(rest)
        memory = memory[span:]
        while rest.nbytes:
            part = stream.take(rest.nbytes)
            rest[: part.nbytes] = part
            rest = rest[part.nbytes :]
    return buffers
