"""Descriptors whose numbers do not lie among those of the standard streams."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress

FIRST = 3  #: above those of the standard streams


def lifted(descriptor: int) -> int:
    """Return *descriptor*, or what takes its place if its number is that of a standard stream.

    In a program that was started with such a stream closed, any new descriptor may get its number,
    and a child's streams would then be put in its place.
    """
    if descriptor >= FIRST:
        return descriptor
    higher = duplicate(descriptor)
    os.close(descriptor)
    return higher


def duplicate(descriptor: int) -> int:
    """Return a descriptor of the same open file, above those of the standard streams."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST)


def opened(path: str, flags: int) -> int:
    """Open a file."""
    return lifted(os.open(path, flags | os.O_CLOEXEC))


def is_open(descriptor: int) -> bool:
    """Return whether there is a descriptor of this number."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe."""
    reader, writer = os.pipe()
    return lifted(reader), lifted(writer)


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that keep the bounds of messages."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one, other = (socket.socket(fileno=lifted(each.detach())) for each in pair)
    return one, other


def close(*descriptors: int) -> None:
    """Close each of them; one that is not open is passed by."""
    for each in descriptors:
        with suppress(OSError):
            os.close(each)
