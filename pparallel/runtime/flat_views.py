"""Contiguous memory as one view of its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pickle import PickleBuffer

from typing_extensions import Buffer


def flat(buffer: Buffer) -> memoryview:
    """Return the bytes of *buffer*, in the order in which they lie in memory, without a copy.

    What is a memoryview is not viewed by another object: where the garbage collector breaks a cycle
    with such a pair, as the frames of an exception make one, CPython before 3.12.7 crashes
    (https://github.com/python/cpython/issues/77894).

    Raises:
        BufferError: it has gaps.
    """
    if type(buffer) is memoryview and buffer.c_contiguous and buffer.nbytes:
        if buffer.ndim == 1 and buffer.format == "B":
            return buffer
        with suppress(TypeError):  # of a format that is not this machine's
            return buffer.cast("B")
    return PickleBuffer(buffer).raw()


def own(frames: Sequence[Buffer]) -> list[Buffer]:
    """Return *frames* as the receiver's own: what is immutable needs no copy."""
    return [frame if type(frame) is bytes else bytearray(frame) for frame in frames]
