"""What travels: a message, small frames of it in the call of an actor, large ones beside it."""

from __future__ import annotations

import errno
import pickle
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from typing_extensions import Buffer

from pparallel.errors import ResourceExhaustedError
from pparallel.interfaces.transport import Frames

#: Bytes from which on a frame lies in Ray's object store. There it is copied once on each side and
#: by nobody between, but to find it costs a call of its own.
LARGE = 64 * 2**10

#: Kinds: frames for the receiver; one of yours did not arrive; this member leaves; all has arrived;
#: and, which does not travel, the reason why a message cannot be had.
MESSAGE, RESET, BYE, SEEN, UNREAD = range(5)

_HEAD = struct.Struct("<BI")  # kind, frames
_SIZE = struct.Struct("<q")  # of a frame; in the object store, as a negative number


class Packed(NamedTuple):
    """A message on its way.

    Attributes:
        data: its head, the sizes of its frames in bytes, and the contents of the small ones.
        large: where the large ones are, if there are any: one object, a list of buffers.
        size: how many bytes it all is.
    """

    data: bytes
    large: list[Any]
    size: int


def pack(frames: Frames, kind: int = MESSAGE) -> Packed:
    """Return a message; its frames have been copied.

    Raises:
        ResourceExhaustedError: Ray's object store has no room for it.
    """
    views = [_flat(frame) for frame in frames]
    large = [view for view in views if view.nbytes >= LARGE]
    parts: list[bytes | memoryview] = [_HEAD.pack(kind, len(views))]
    parts += [_SIZE.pack(-view.nbytes if view.nbytes >= LARGE else view.nbytes) for view in views]
    parts += [view for view in views if view.nbytes < LARGE]
    data = b"".join(parts)
    if not large:
        return Packed(data, [], len(data))
    size = len(data) + sum(view.nbytes for view in large)
    try:
        ref = ray.put([pickle.PickleBuffer(view) for view in large])
    except RayError as error:  # of memory, and of disk to spill to
        what, advice = f"a message of {size} bytes", f"give Ray's object store more ({error})"
        raise ResourceExhaustedError(what, "memory", errno.ENOMEM, advice) from error
    return Packed(data, [ref], size)


def unpack(data: bytes, large: Iterable[Buffer]) -> tuple[int, list[Buffer]]:
    """Return the kind and the frames of a message, in memory of their own.

    Args:
        data: of the message.
        large: what lay in the object store.

    Raises:
        ValueError: it is no message.
    """
    whole, stored = memoryview(data), iter(large)
    try:
        kind, count = _HEAD.unpack_from(whole)
        start = _HEAD.size + count * _SIZE.size
        if start > len(whole):
            raise ValueError("a message has more frames than it is long")
        sizes = [size for (size,) in _SIZE.iter_unpack(whole[_HEAD.size : start])]
        if sum(size for size in sizes if size > 0) != len(whole) - start:
            raise ValueError("a message is not as long as its frames")
        frames: list[Buffer] = []
        for size in sizes:
            frame = bytearray(next(stored) if size < 0 else whole[start : start + size])
            if len(frame) != abs(size):
                raise ValueError("a large frame is not as long as its message has it")
            frames.append(frame)
            start += max(size, 0)
    except (struct.error, StopIteration) as error:
        raise ValueError("what came is no message") from error
    return kind, frames


def _flat(frame: Buffer) -> memoryview:
    view = memoryview(frame)
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
