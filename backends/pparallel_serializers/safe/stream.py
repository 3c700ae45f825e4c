"""What stands in the first buffer of the serializer ``safe``.

::

    head      mark, number of steps, of values, of storages
    steps     (gap, code) each: take so many values into the open container, then open or end one
    lengths   of each buffer that follows
    values    msgpack, without containers: numbers, text and bytes

Containers are steps and not msgpack's own, so that the values are one flat run whose number is
known before it is read, and nothing is nested while it is read. The values end with three for each
storage: device, start (see :mod:`pparallel_serializers.storages`), and the bytes of a small one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from pparallel_serializers.refusals import RefusedError

MARK = b"pps\x01"  #: the last byte is the version of the format
HEAD = struct.Struct("<4sIII")
STEP = struct.Struct("<II")
LENGTH = struct.Struct("<Q")
VALUE = 128  #: bytes that a value, or a step, counts at least
LARGEST = 1 << 62  #: no size may be larger, nor may what a shape stands for
DIMENSIONS = 64  #: numpy has no more

# Codes of the steps; a stream keeps its meaning as long as they do.
END = 0
LIST = 1
TUPLE = 2
DICT = 3
ORDERED = 4
SET = 5
FROZENSET = 6
BYTEARRAY = 7
INTEGER = 8  #: one beyond 64 bits
COMPLEX = 9
ATTRIBUTES = 10  #: an object and the dict of its attributes
SAME = 11  #: a tensor or array that came before
SIZE = 12
TENSOR = 13
ARRAY = 14
SCALAR = 15


class Node(NamedTuple):
    """A container on its way out: its code and what is in it."""

    code: int
    children: Iterable[Any]


def sizes(numbers: list[Any], *, signed: bool = False) -> tuple[int, ...]:
    """Return *numbers* if that is what they are, and none is beyond all reason."""
    low = -LARGEST if signed else 0
    if not all(type(each) is int and low <= each <= LARGEST for each in numbers):
        raise RefusedError("something else stands where a size should")
    return tuple(numbers)


class Budget:
    """What is left of ``max_bytes``."""

    __slots__ = ("left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit

    def check(self, size: int) -> None:
        """Note nothing, but see whether *size* bytes more would be too many.

        Raises:
            RefusedError: they would.
        """
        if size > self.left:
            raise RefusedError(
                f"it counts more than {self.limit} bytes, the serializer's max_bytes"
                f" (besides its bytes each value counts {VALUE})"
            )

    def spend(self, size: int) -> None:
        """Note that *size* bytes more are needed.

        Raises:
            RefusedError: there are no more.
        """
        self.check(size)
        self.left -= size
