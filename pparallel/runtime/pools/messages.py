"""What a pool and its workers say to one another, whatever carries it.

A message is a tuple of plain data. Large values are packed beside it, in parcels: the message has
the head of each, and what else belongs to it travels along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from typing_extensions import Buffer

REPORT, READY, FAILED, FORWARDED, DONE = range(5)  #: first field of what a worker sends
LOT, RECEIVED, CALL = range(3)  #: first field of what the pool sends

Message = tuple[Any, ...]
Received = tuple[Message, list[Any]]  #: a message and what came along with it


class Channel(Protocol):
    """One end of what carries the messages."""

    @property
    def fileno(self) -> int:
        """A descriptor that is readable when there is a message."""

    def send(self, message: Message, files: list[Any] | None = None) -> None:
        """Send a message, and what belongs to its parcels, which stays the caller's."""

    def receive(self, flags: int = ...) -> Received | None:
        """Return the next message; ``None``: there is none yet; *flags* 0: wait for it.

        Raises:
            EOFError: the other end is gone.
        """

    def let_go(self, files: list[Any]) -> None:
        """Release what belonged to parcels, once it was sent."""


class Parcel(Protocol):
    """Buffers, packed.

    Attributes:
        fds: what travels along with the head.
    """

    fds: Any

    def head(self) -> bytes:
        """Return what stands for the parcel in a message."""

    def seal(self) -> None:
        """Settle what was packed: nothing of it is changed from now on."""


class Parcels(Protocol):
    """Packs what a serializer made."""

    def pack(self, buffers: Sequence[Buffer], *, move: bool = False) -> Parcel:
        """Return *buffers* as a parcel."""

    def unpack(self, head: Buffer, fds: Sequence[Any] = ()) -> list[Buffer]:
        """Return the buffers of a parcel that has arrived: they are this process's own."""

    def drop(self, head: Buffer, fds: Sequence[Any] = ()) -> None:
        """Release a parcel that nobody will unpack."""

    def settle(self) -> None:
        """Do what was put off while a lot ran."""
