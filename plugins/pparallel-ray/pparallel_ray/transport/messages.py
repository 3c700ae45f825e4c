"""What travels: messages, many of which are one parcel, which is one call of an actor."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.transport import Frames

#: Bytes from which on a frame lies in Ray's object store. There it is copied once on each side and
#: by nobody between, but to find it costs a call of its own.
LARGE = 64 * 2**10

_HEAD = struct.Struct("<BQI")  # kind, number, frames
_SIZE = struct.Struct("<q")  # of a frame; in the object store, as a negative number


class Kind(IntEnum):
    """What a message is."""

    REQUEST = 0
    REPLY = 1
    FAILED = 2  #: a reply that says how the handler itself failed
    FLUSH = 3  #: is replied to when all before it has been handled


class Packed(NamedTuple):
    """A message on its way.

    Attributes:
        data: its head, the sizes of its frames, and the contents of the small ones.
        large: where the large ones are, if there are any: one object, a list of buffers.
        size: how many bytes it all is.
    """

    data: bytes
    large: Any
    size: int


class Message(NamedTuple):
    """A message that has arrived; its frames are the receiver's own.

    Attributes:
        kind: what it is.
        number: of the request, as its sender counts them.
        frames: what was sent; ``None`` if the large ones could not be had.
    """

    kind: int
    number: int
    frames: list[Buffer] | None


#: Sender's rank, number on its way to this member, proof of who sends, data, large: a plain tuple,
#: for Ray's own pickle to carry.
Parcel = tuple[int, int, bytes, bytes, list[Any]]


def pack(kind: Kind, number: int, frames: Frames) -> Packed:
    """Return a message; its frames have been copied.

    Raises:
        SerializationError: Ray's object store has no room for it.
    """
    views = [_flat(frame) for frame in frames]
    parts: list[bytes | memoryview] = [_HEAD.pack(kind, number, len(views))]
    large = [view for view in views if view.nbytes >= LARGE]
    parts += [_SIZE.pack(-view.nbytes if view.nbytes >= LARGE else view.nbytes) for view in views]
    parts += [view for view in views if view.nbytes < LARGE]
    data = b"".join(parts)
    if not large:
        return Packed(data, None, len(data))
    size = len(data) + sum(view.nbytes for view in large)
    try:
        ref = ray.put([pickle.PickleBuffer(view) for view in large])
    except RayError as error:  # of memory, and of disk to spill to
        raise SerializationError(f"a message of {size} bytes", error) from error
    return Packed(data, ref, size)


def unpack(data: bytes, large: Sequence[Sequence[Buffer] | None]) -> Iterator[Message]:
    """Yield the messages of a parcel.

    Args:
        data: of all of them.
        large: what lay in the object store, one for each message that has large frames; ``None``
            where it could not be had.

    Raises:
        ValueError: it is no parcel.
    """
    stored, whole, at = iter(large), memoryview(data), 0
    try:
        while at < len(data):
            kind, number, count = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            if count > len(data) - at:
                raise ValueError("a message has more frames than it is long")
            sizes = [size for (size,) in _SIZE.iter_unpack(whole[at : at + count * _SIZE.size])]
            at += count * _SIZE.size
            length = sum(size for size in sizes if size > 0)
            if len(sizes) != count or length > len(data) - at:
                raise ValueError("a message ends before its last frame")
            found = next(stored) if any(size < 0 for size in sizes) else ()
            frames = None if found is None else _frames(whole[at : at + length], sizes, found)
            yield Message(kind, number, frames)
            at += length
    except (struct.error, StopIteration) as error:
        raise ValueError("what came is no parcel") from error


def _frames(small: memoryview, sizes: list[int], large: Sequence[Buffer]) -> list[Buffer]:
    frames: list[Buffer] = []
    stored, start = iter(large), 0
    for size in sizes:
        if size < 0:
            frame = bytearray(next(stored))
            if len(frame) != -size:
                raise ValueError("a large frame is not as long as was said")
            frames.append(frame)
        else:
            frames.append(bytearray(small[start : start + size]))
            start += size
    return frames


def _flat(frame: Buffer) -> memoryview:
    view = memoryview(frame)
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
