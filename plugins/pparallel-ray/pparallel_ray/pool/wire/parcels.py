"""Buffers that travel with a message: small ones inside it, large ones beside it, uncopied."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

_INSIDE = 32_000  #: bytes of a buffer up to which it is copied into the message


class Parcel:
    """Buffers, packed.

    Attributes:
        fds: the large ones, which travel beside the message.
    """

    __slots__ = ("_head", "fds")

    def __init__(self, head: bytes, fds: list[memoryview]) -> None:
        self._head = head
        self.fds = fds

    def head(self) -> bytes:
        """Return what stands for the parcel in a message."""
        return self._head

    def seal(self) -> None:
        """Do nothing: the buffers are the sender's until the message is gone."""


class Parcels:
    """Packs buffers, and unpacks them."""

    def pack(self, buffers: Sequence[Buffer], *, move: bool = False) -> Parcel:
        """Return *buffers*, contiguous memory, as a parcel."""
        inside: list[bytes | None] = []
        beside: list[memoryview] = []
        for each in buffers:
            view = memoryview(each).cast("B")
            is_large = view.nbytes > _INSIDE
            inside.append(None if is_large else bytes(view))
            if is_large:
                beside.append(view)
        return Parcel(marshal.dumps(inside, 2), beside)

    def unpack(self, head: Buffer, fds: Sequence[Any] = ()) -> list[Buffer]:
        """Return the buffers, writable and this process's own."""
        beside = iter(fds)
        return [
            next(beside) if each is None else bytearray(each) for each in marshal.loads(bytes(head))
        ]

    def drop(self, head: Buffer, fds: Sequence[Any] = ()) -> None:
        """Do nothing: nobody else has a share in what has arrived."""

    def settle(self) -> None:
        """Do nothing: nothing was put off."""
