"""What the fork server and its client say to each other.

A request is one message on the control socket, with descriptors: one end of a socket for what is
told of this child alone, then the child's working directory, standard output and error, the
descriptors it is to have, and, if the request is long, a file that holds it. On the child's socket
the server says that it has the request, then the child's pid (with a pidfd) or why there is none,
and at last how the child ended.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from time import sleep
from typing import TypeVar

from pparallel.runtime.processes import descriptors

TAKEN = b"T"
STARTED = b"S"
FAILED = b"F"
BROKEN = b"B"
ENDED = b"E"

IN_FILE = b"\0"  #: instead of a request: it is in a file, the last descriptor
INLINE = 32 * 1024  #: bytes of a request that go into the message itself
MOST_DESCRIPTORS = 253  #: the kernel's limit for one message
OWN_DESCRIPTORS = 5

_NUMBERS = struct.Struct("qq")
_PASSING = frozenset(  #: a reset is told once: what was sent before it is there still
    (errno.EAGAIN, errno.EINTR, errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS, errno.ECONNRESET)
)
_ATTEMPTS, _PAUSE = 20, 0.01  #: calls, and seconds between them

Got = TypeVar("Got")


def repeated(call: Callable[[], Got]) -> Got:
    """Return what *call* returns; it is made again where the system could not do it just now.

    Raises:
        OSError: it failed otherwise, or each time.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return call()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            sleep(_PAUSE)
    return call()


def numbers(kind: bytes, one: int, other: int = 0) -> bytes:
    """Return a message of two numbers."""
    return kind + _NUMBERS.pack(one, other)


def parsed(message: bytes) -> tuple[int, int]:
    """Return the two numbers of a message."""
    one, other = _NUMBERS.unpack(message[1:])
    return one, other


def send(to: socket.socket, message: bytes, carried: Iterable[int] = ()) -> None:
    """Send a message with descriptors; see :func:`repeated`."""
    carried = array.array("i", carried)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, carried)] if carried else []
    repeated(lambda: to.sendmsg([message], ancillary, socket.MSG_NOSIGNAL))


def receive(from_: socket.socket, size: int = 4096, most: int = 1) -> tuple[bytes, list[int], bool]:
    """Return a message, its descriptors, and whether some of those were lost for want of room."""
    room = socket.CMSG_SPACE(most * array.array("i").itemsize)
    message, ancillary, flags, _ = repeated(
        lambda: from_.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    )
    carried = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            carried.frombytes(data[: len(data) - len(data) % carried.itemsize])
    return message, list(carried), bool(flags & socket.MSG_CTRUNC)


def stored(data: bytes) -> int:
    """Return a file in memory that holds *data*."""
    file = descriptors.lifted(os.memfd_create("pparallel-request", os.MFD_CLOEXEC))
    try:
        written = 0
        while written < len(data):
            written += os.write(file, memoryview(data)[written:])
        os.lseek(file, 0, os.SEEK_SET)
    except BaseException:
        os.close(file)
        raise
    return file


def fetched(file: int) -> bytes:
    """Return what :func:`stored` has stored, and close the file."""
    with open(file, "rb") as reader:
        return reader.read()


def check(fds: Sequence[int]) -> None:
    """Refuse more descriptors than a message can carry."""
    most = MOST_DESCRIPTORS - OWN_DESCRIPTORS
    if len(fds) > most:
        message = f"a process can be handed {most} descriptors, not {len(fds)}"
        raise ValueError(message)
