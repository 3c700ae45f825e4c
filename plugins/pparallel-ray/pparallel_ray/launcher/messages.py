"""What a rank is told, and what it says."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from pparallel.runtime.processes import main_module

ENDED = 5  #: what its supervisor says of a rank, beside the kinds of what it says itself

Message = tuple[Any, ...]  #: the kind, and what goes with it


class Surroundings(NamedTuple):
    """What ranks find as it is in the launching process.

    Attributes:
        directory: the working directory; empty: the one that Ray has prepared.
        path: ``sys.path``.
        argv: ``sys.argv``.
    """

    directory: str
    path: tuple[str, ...]
    argv: tuple[str, ...]


class Start(NamedTuple):
    """What a rank is told as it starts; what it runs comes after it.

    Attributes:
        rank: its number.
        local_rank: its number on its machine.
        name: what it is called.
        serializer: pickled.
        hears: whether what the rank tells is wanted.
        forwarding: which logs and warnings are wanted.
        depth: how deep in other ranks and tasks of pools it is.
        main: the launching process's ``__main__``, described.
    """

    rank: int
    local_rank: int
    name: str
    serializer: bytes
    hears: bool
    forwarding: bytes
    depth: int
    main: main_module.Description


def write(message: Message) -> bytes:
    """Return a message as bytes."""
    return pickle.dumps(message, protocol=5)


def read(data: bytes) -> Message:
    """Return what :func:`write` was given."""
    message: Message = pickle.loads(data)
    return message


def send_buffers(connection: Connection, buffers: Sequence[bytes]) -> None:
    """Send buffers, each without a further copy."""
    connection.send_bytes(pickle.dumps([len(each) for each in buffers]))
    for each in buffers:
        connection.send_bytes(each)


def receive_buffers(connection: Connection) -> list[bytearray]:
    """Return what :func:`send_buffers` has sent, as memory that may be written to.

    Raises:
        EOFError: the other side has gone.
    """
    buffers = [bytearray(size) for size in pickle.loads(connection.recv_bytes())]
    for each in buffers:
        connection.recv_bytes_into(each) if each else connection.recv_bytes()
    return buffers
