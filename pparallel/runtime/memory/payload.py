"""Buffers on their way in one message: as bytes in it, or as places in shared memory.

What :meth:`Payload.pack` returns is plain data for :mod:`marshal`. A list is the frames themselves,
all ``bytes``: nothing is to be unpacked or dropped. In a tuple a frame is ``bytes``; a list of one
buffer, which arrives writable; or a place: the number of an arena, and a handle. A tuple that would
be long lies in a block itself: it is then one place.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any, NamedTuple

from typing_extensions import Buffer

from pparallel.runtime.flat_views import flat
from pparallel.runtime.memory.arena import Arena, Handle
from pparallel.runtime.memory.views import Lease

INLINE = 1 << 14  #: bytes from which on a buffer of a long message has a block of its own
LIMIT = 1 << 15  #: bytes of frames that travel in the message itself
VERSION = 2  #: of marshal's format: the last one without references, three times as quick

_PART = 8  #: a buffer that is less than one of so many parts of a block is copied, not moved
_ADDED = 10  #: bytes that marshal adds to a frame
_PLACE = 50  #: bytes of a place
_BYTES = frozenset({bytes})

Place = tuple[int, Handle]
Frame = bytes | list[Buffer] | Place
Packed = list[bytes] | tuple[Frame, ...] | Place


class Payload:
    """Packs buffers into messages between two processes, and unpacks them.

    A message has few bytes. More of them are copied once, into a block of this process's arena, and
    lie there for the receiver. What lies in a published block is not copied. Any thread may use it.

    Args:
        arenas: those that both ends know, in the order that both know.
        own: which of them this process allocates from.
        to: the process at the other end, whose death releases what it has not received; None: what
            was packed is released by :meth:`drop` only.
        limit: bytes of frames that travel in the message itself.
    """

    def __init__(
        self, arenas: Sequence[Arena | None], own: int, to: int | None = None, limit: int = LIMIT
    ) -> None:
        self.arenas, self.own, self.to, self.limit = arenas, own, to, limit

    def pack(self, frames: Sequence[Buffer]) -> Packed:
        """Return *frames* as they stand in a message; those that are large may be changed then.

        Raises:
            ResourceExhaustedError: there is no room. Nothing is packed then.
        """
        return self.short(frames) or self._packed(frames)

    def move(self, frames: list[Any]) -> Packed:
        """Return *frames* as :meth:`pack` does, and empty the list.

        A block to which nothing else refers then travels without a copy: it goes back if it was
        received, or leaves if it is this process's.

        Raises:
            ResourceExhaustedError: there is no room. Nothing is packed then.
        """
        if (short := self.short(frames)) is None:
            return self._packed(frames, frames)
        short = short if short is not frames else [*frames]
        frames.clear()
        return short

    def _packed(self, frames: Sequence[Buffer], emptied: list[Any] | None = None) -> Packed:
        packing = _Packing(self)
        try:
            packing.add(frames, moves=emptied is not None)
            if emptied is not None:
                emptied.clear()
                packing.settle()
            return packing.folded()
        except BaseException:
            packing.undo()
            raise

    def short(self, frames: Sequence[Any]) -> Packed | None:
        """Return *frames* as they travel in the message itself; None: they do not."""
        if len(frames) == 1 and type(only := frames[0]) is bytes and len(only) <= self.limit:
            return frames if type(frames) is list else [only]  # as most are
        sizes = [memoryview(each).nbytes for each in frames]
        if sum(sizes) + _ADDED * len(sizes) > self.limit:
            return None
        if _BYTES.issuperset(map(type, frames)):
            return list(frames)
        return tuple([each if type(each) is bytes else [_raw(each)] for each in frames])

    def unpack(self, packed: Packed) -> list[Buffer]:
        """Return the frames, this process's own: the last reference to a large one frees its block.

        Small ones are copies; ``bytes`` remain ``bytes``. What others read too is read-only.

        Raises:
            RuntimeError: it has been unpacked or dropped before, or lies in an arena that this end
                does not have.
        """
        if type(packed) is list:
            return packed  # type: ignore[return-value] # bytes
        frames = self._unfolded(packed)
        adopted: dict[tuple[int, int], memoryview] = {}
        try:
            return [self._buffer(each, adopted) for each in frames]
        except BaseException:
            self._drop(frames)  # those that have been adopted end with their views
            raise

    def drop(self, packed: Packed) -> None:
        """Let go of what was packed and that nobody will unpack; harmless if it has been."""
        try:
            self._drop(self._unfolded(packed))
        except RuntimeError:  # unpacked or dropped before, or the arena is closed
            return

    def _unfolded(self, packed: Packed) -> Sequence[Frame]:
        if not packed or type(packed[0]) is not int:
            return packed  # type: ignore[return-value] # no place
        return marshal.loads(self.arena(packed[0]).adopt(packed[1]))  # type: ignore[no-any-return] # as it was packed

    def _buffer(self, frame: Frame, adopted: dict[tuple[int, int], memoryview]) -> Buffer:
        if isinstance(frame, bytes):
            return frame
        if isinstance(frame, list):
            return bytearray(frame[0])
        number, handle = frame
        found = adopted.get((number, handle[0]))
        if found is None:
            found = adopted[number, handle[0]] = self.arena(number).adopt(handle)
            return found
        _, _, start, nbytes = handle
        memory = memoryview(found.obj).cast("B")[start : start + nbytes]
        return memory.toreadonly() if found.readonly else memory

    def _drop(self, frames: Sequence[Frame]) -> None:
        for each in frames:
            if isinstance(each, tuple):
                self.arena(each[0]).drop(each[1])

    def arena(self, number: int) -> Arena:
        """Return an arena that both ends know."""
        arena = self.arenas[number] if number < len(self.arenas) else None
        if arena is None:
            raise RuntimeError(
                f"a message lies in arena {number}, which this process does not have"
            )
        return arena


class _Packing:
    """Frames that are being packed, and the blocks that may move."""

    def __init__(self, payload: Payload) -> None:
        self._payload, self._own = payload, payload.arenas[payload.own]
        self._frames: list[Frame] = []
        self._moves: list[_Move] = []

    def add(self, frames: Sequence[Buffer], *, moves: bool) -> None:
        """Take the frames, except for what may move."""
        # No name may refer to a frame when it is looked whether something else does.
        limit = self._payload.limit
        for index, nbytes in enumerate([memoryview(each).nbytes for each in frames]):
            if nbytes < min(INLINE, limit):
                self._frames.append(_inline(frames[index], copies=moves))
            else:
                self._frames.append(self._placed(_raw(frames[index]), index, moves=moves))

    def settle(self) -> None:
        """Send the blocks to which nothing refers any more; copy the others."""
        moves, self._moves = self._moves, []
        views = {(each.number, each.lease.slot): each.lease() for each in moves}
        for each in moves:
            if views[each.number, each.lease.slot] is None:
                self._frames[each.at] = self._sent(each)
            else:
                each.lease.unclaim()  # its view releases it
        for each in moves:
            if views[each.number, each.lease.slot] is not None:
                arena = self._payload.arena(each.number)
                at = arena.offset(each.lease.slot) + each.start
                self._frames[each.at] = self._copied(arena.mapping.bytes[at : at + each.nbytes])

    def folded(self) -> Packed:
        """Return the frames, or where they lie if they are long."""
        frames = self._frames
        sizes = [_PLACE if isinstance(each, tuple) else _ADDED + _size(each) for each in frames]
        if sum(sizes) <= max(self._payload.limit, _PLACE):
            return tuple(frames)
        return self._copied(memoryview(marshal.dumps(frames, VERSION)))

    def undo(self) -> None:
        """Release what was taken, and what nothing else refers to."""
        for each in self._moves:
            if each.lease() is None:
                self._frames[each.at] = self._sent(each)
            each.lease.unclaim()
        self._payload.drop(tuple(self._frames))

    def _placed(self, raw: memoryview, index: int, *, moves: bool) -> Frame:
        own = self._own
        for number, arena in enumerate(self._payload.arenas):
            if arena is None or not (moves or (arena is own and own.publishes)):
                continue
            if (found := arena.locate(raw)) is None:
                continue
            lease, start = found
            if lease.published and arena is own:
                return number, own.share(lease.slot, start, len(raw), self._payload.to)
            # Of a large block a small part had better be copied.
            if moves and len(raw) * _PART >= arena.capacity(lease.slot) and self._claims(lease):
                self._moves.append(_Move(index, number, lease, start, len(raw)))
                return b""
        return self._copied(raw)

    def _claims(self, lease: Lease) -> bool:
        return any(each.lease is lease for each in self._moves) or lease.claim()

    def _sent(self, move: _Move) -> Place:
        to = self._payload.to if move.number == self._payload.own else None
        arena = self._payload.arena(move.number)
        return move.number, arena.send(move.lease.slot, move.start, move.nbytes, to)

    def _copied(self, raw: memoryview) -> Place:
        own = self._payload.arena(self._payload.own)
        slot = own.take(len(raw))
        own.mapping.write(own.offset(slot), raw)
        return self._payload.own, own.send(slot, 0, len(raw), self._payload.to)


class _Move(NamedTuple):
    """A frame in a block that goes on as it is if nothing else refers to the block."""

    at: int
    number: int
    lease: Lease
    start: int
    nbytes: int


def _inline(frame: Buffer, *, copies: bool) -> Frame:
    if type(frame) is bytes:
        return frame
    raw = _raw(frame)
    return [bytes(raw) if copies else raw]


def _size(frame: bytes | list[Buffer]) -> int:
    return memoryview(frame if isinstance(frame, bytes) else frame[0]).nbytes


def _raw(frame: Buffer) -> memoryview:
    try:
        return flat(frame)
    except BufferError:  # it has gaps
        return memoryview(memoryview(frame).tobytes())
