"""Frames as torch RPC carries them: small ones together, large ones as tensors."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy
import torch
from typing_extensions import Buffer

from pparallel.interfaces.transport import Frames

#: Bytes from which on a frame is a tensor, which TensorPipe moves without a copy of ours; each
#: tensor costs it a message of its own.
LARGE = 16 * 2**10


class Parcel(NamedTuple):
    """Frames on their way.

    Attributes:
        small: the contents of the small ones, one after the other.
        sizes: the size of each frame in bytes, and -1 for one that is a tensor.
        large: the others; uint8, on the CPU.
    """

    small: bytes
    sizes: list[int]
    large: list[torch.Tensor]


def pack(frames: Frames) -> Parcel:
    """Return *frames* as a parcel; the large ones are not copied."""
    small: list[memoryview] = []
    sizes: list[int] = []
    large: list[torch.Tensor] = []
    for frame in frames:
        view = memoryview(frame)
        flat = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        if flat.nbytes < LARGE:
            small.append(flat)
            sizes.append(flat.nbytes)
        else:
            large.append(_tensor(flat))
            sizes.append(-1)
    return Parcel(b"".join(small), sizes, large)


def unpack(small: bytes, sizes: list[int], large: list[torch.Tensor]) -> list[Buffer]:
    """Return the frames of a parcel that has arrived, writable, in memory of their own."""
    frames: list[Buffer] = []
    whole, tensors, start = memoryview(small), iter(large), 0
    for size in sizes:
        if size < 0:
            frames.append(memoryview(cast("Buffer", next(tensors).numpy())))
        else:
            frames.append(bytearray(whole[start : start + size]))
            start += size
    return frames


def _tensor(view: memoryview) -> torch.Tensor:
    array = numpy.frombuffer(view, numpy.uint8)
    if not array.flags.writeable:  # torch warns of it, although nobody writes here
        array = numpy.asarray(_Lent(array))
    return torch.from_numpy(array)


class _Lent:
    """Memory that is read-only, shown as if it were not."""

    def __init__(self, array: numpy.ndarray[Any, numpy.dtype[numpy.uint8]]) -> None:
        shown: dict[str, Any] = dict(array.__array_interface__)
        self.__array_interface__ = {**shown, "data": (shown["data"][0], False)}
        self.owner = array
