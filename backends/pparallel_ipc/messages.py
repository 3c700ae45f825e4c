"""The packets that the two ends of a connection exchange, once both have proved who they are.

A packet is a message of a socket that keeps packets whole: plain data, written by :mod:`marshal`,
for both ends run the same Python. Frames travel in it or, when they are large, in shared memory, of
which the packet says where.
"""

from __future__ import annotations

import errno
import marshal
import os
import socket
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from pparallel.errors import ResourceExhaustedError
from pparallel.runtime.memory.payload import VERSION

# The first field of a packet of a shared connection.
(
    MESSAGE,  #: frames, as a payload packs them
    DIRECT,  #: a descriptor comes along: the other end of a direct connection
    LOST,  #: (name, reason): a member has ended
    MEMBERS,  #: a list of hellos: who has arrived
    BYE,  #: the sender closes
) = range(5)

PACKET = 1 << 16  #: bytes that a receiver makes room for
SENDING = 1 << 20  #: bytes that may be on their way; the system may allow less

_ROOM = socket.CMSG_SPACE(4 * array("i").itemsize)
# As ints: to combine flags of Python's takes longer than to receive.
_HOW = int(socket.MSG_CMSG_CLOEXEC)
_IS_SHORT = int(socket.MSG_TRUNC)
_LACKS_DESCRIPTORS = int(socket.MSG_CTRUNC)

dumps: Callable[[Any, int], bytes] = marshal.dumps  #: a packet, VERSION
loads = marshal.loads

_DIRECT = dumps((DIRECT,), VERSION)


def send_with(sock: socket.socket, packet: bytes, fds: Sequence[int]) -> None:
    """Send a packet with descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
    sock.sendmsg([packet], rights, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next packet and the descriptors that came with it; the first is empty at the end.

    A direct connection for which this process has no descriptor comes without it: the system has
    closed that end, which the other one sees.

    Raises:
        OSError: it is longer than any that is sent.
        ResourceExhaustedError: this process had no room for a descriptor that the packet needs.
    """
    data, ancillary, flags, _ = sock.recvmsg(PACKET, _ROOM, _HOW)
    fds = array("i", b"".join(each for _, _, each in ancillary)).tolist() if ancillary else []
    if flags & _IS_SHORT:
        close(fds)
        raise OSError("a packet is longer than allowed")
    if flags & _LACKS_DESCRIPTORS and data != _DIRECT:
        close(fds)
        advice = "raise the limit (ulimit -n)"
        raise ResourceExhaustedError("a packet with a descriptor", "descriptors", 24, advice)
    return data, fds


def shut_down(sock: socket.socket) -> None:
    """Wake whoever waits on a socket, here and at the other end."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # the other end, or this one, is closed
        if error.errno not in (errno.ENOTCONN, errno.EBADF):
            raise


def disconnect(sock: socket.socket) -> None:
    """Close a socket; the other end sees that even if a forked child of this process has it too."""
    shut_down(sock)
    sock.close()


def close(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for each in fds:
        os.close(each)
