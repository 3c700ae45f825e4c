"""Large messages: cut to pieces by their sender, put together by their receiver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from typing_extensions import Buffer

from pparallel_zmq.memory import LEAST, Memory
from pparallel_zmq.wire import INLINE, BadMessageError, Raw


class Outgoing:
    """What is still to be sent of a large message.

    Attributes:
        left: how many bytes that is.
    """

    def __init__(self, raws: Sequence[Raw], piece: int) -> None:
        self._pieces = _cut(raws, piece)
        self.left = sum(map(len, raws))

    def take(self, count: int = 1) -> list[Raw]:
        """Return the next pieces, none at the end; large ones are the sender's own memory."""
        pieces = list(islice(self._pieces, count))
        self.left -= sum(map(len, pieces))
        return pieces


def _cut(raws: Sequence[Raw], size: int) -> Iterator[Raw]:
    small: list[Raw] = []
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


class Incoming:
    """A large message that is being received, into memory of the receiver's own.

    That grows as bytes come, whatever was announced: small frames are extended, and the system
    gives pages to large ones when they are written to.

    Attributes:
        size: bytes of the message.
        flags: those of the message.
    """

    def __init__(self, table: Sequence[int], memory: Memory, flags: int = 0) -> None:
        self._table, self._memory = table, memory
        self._frames: list[Buffer] = []
        self._view = memoryview(b"")  # of the last frame, if it is large
        self._room = 0  # bytes of the last frame that are still to come
        self._left = self.size = sum(each >> 1 for each in table)
        self.flags = flags

    def feed(self, piece: memoryview) -> bool:
        """Take in a piece; return whether it was the last.

        Raises:
            BadMessageError: more comes than was announced, or nothing.
        """
        size = len(piece)
        if not 0 < size <= self._left:
            raise BadMessageError("a piece of another size than was announced")
        self._left -= size
        while piece:
            if self._room == 0:  # the next frame begins
                self._room = self._table[len(self._frames)] >> 1
                is_large = self._room >= LEAST
                self._frames.append(self._memory.take(self._room) if is_large else bytearray())
                self._view = memoryview(self._frames[-1] if is_large else b"")
            part, piece = piece[: self._room], piece[self._room :]
            frame, at = self._frames[-1], len(self._view) - self._room
            if isinstance(frame, bytearray):
                frame += part
            else:
                self._view[at : at + len(part)] = part
            self._room -= len(part)
        return self._left == 0

    def frames(self) -> list[Buffer]:
        """Return the frames, once all is there."""
        self._view = memoryview(b"")
        empty = [bytearray() for _ in self._table[len(self._frames) :]]
        return [
            frame if entry & 1 else memoryview(frame).toreadonly()
            for frame, entry in zip([*self._frames, *empty], self._table, strict=True)
        ]
