"""Large data on its way: in pieces, several of which are under way at once.

Source: partitions of at most 4 MB, BytePS (Jiang et al., OSDI 2020).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

from typing_extensions import Buffer

from pparallel.runtime.rpc import Reply

PIECE = 4 * 2**20  #: bytes at most
UNDER_WAY = 4  #: pieces at most

Piece = list[memoryview]


def cut(memory: Iterable[Buffer], size: int = PIECE) -> list[Piece]:
    """Return views of *memory* in pieces of *size* bytes, the last of which may be smaller."""
    pieces: list[Piece] = []
    room = 0
    for buffer in memory:
        if not (left := memoryview(buffer)).nbytes:
            continue  # of which no view of bytes can be made
        left = left.cast("B")
        while left:
            if not room:
                pieces.append([])
                room = size
            pieces[-1].append(left[:room])
            left, room = left[room:], room - min(room, len(left))
    return pieces


def fill(piece: Piece, buffers: Sequence[Buffer]) -> None:
    """Copy *buffers* into *piece*, a piece of the same cut.

    Raises:
        ValueError: they are not of its sizes.
    """
    sizes = [memoryview(each).nbytes for each in buffers]
    if sizes != [each.nbytes for each in piece]:
        message = f"a piece of {sizes} bytes arrived, not of {[each.nbytes for each in piece]}"
        raise ValueError(message)
    for place, buffer in zip(piece, buffers, strict=True):
        place[:] = memoryview(buffer).cast("B")


def pipelined(asks: Iterable[Callable[[], Future[Reply]]]) -> Iterator[Reply]:
    """Ask all of *asks*, some of them at once, and return the replies in order.

    Raises:
        Exception: what the first that fails raises.
    """
    under_way: deque[Future[Reply]] = deque()
    for ask in asks:
        if len(under_way) == UNDER_WAY:
            yield under_way.popleft().result()
        under_way.append(ask())
    while under_way:
        yield under_way.popleft().result()


class Draft:
    """Memory that arrives piece by piece, in any order."""

    def __init__(self, number: int, sizes: Sequence[int]) -> None:
        self.number = number
        self._memory: list[Buffer] = [bytearray(size) for size in sizes]
        self._pieces = cut(self._memory)
        self._missing = set(range(len(self._pieces)))

    def take(self, index: int, buffers: Sequence[Buffer]) -> None:
        """Take piece *index*.

        Raises:
            ValueError: it is not of the right size.
        """
        fill(self._pieces[index], buffers)
        self._missing.discard(index)

    def whole(self) -> list[Buffer]:
        """Return the memory, once all pieces have come.

        Raises:
            ValueError: one has not.
        """
        if self._missing:
            message = f"{len(self._missing)} of {len(self._pieces)} pieces have not come"
            raise ValueError(message)
        return self._memory
