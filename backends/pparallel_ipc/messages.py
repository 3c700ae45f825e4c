"""The packets that the two ends of a connection exchange, once both have proved who they are.

A packet is a message of a socket that keeps packets whole: plain data, written by :mod:`marshal`,
for both ends run the same Python. Frames travel in it or, when they are large, through the arena as
a parcel, of which the packet holds the head.
"""

from __future__ import annotations

import errno
import marshal
import os
import socket
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Buffer

from pparallel.errors import ResourceExhaustedError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.flat_views import flat
from pparallel.runtime.resources import explained, is_exhausted
from pparallel.runtime.shm import Parcels

# The first field of a packet of a shared connection.
(
    MESSAGE,  #: (frames or head of a parcel, numbers of those that were sent writable)
    DIRECT,  #: a descriptor comes along: the other end of a direct connection
    LOST,  #: (name, reason): a member has ended
    MEMBERS,  #: a list of hellos: who has arrived
    BYE,  #: the sender closes
) = range(5)

INLINE = 1 << 15  #: bytes of frames above which they travel as a parcel
PACKET = 1 << 16  #: bytes that a receiver makes room for
SENDING = 1 << 20  #: bytes that may be on their way; the system may allow less
VERSION = 2  #: of marshal's format: the last one without references, three times as quick

_FRAME = 10  #: bytes that marshal adds to a frame
_BYTES = frozenset({bytes})
_ROOM = socket.CMSG_SPACE(4 * array("i").itemsize)
# As ints: to combine flags of Python's takes longer than to receive.
_HOW = int(socket.MSG_CMSG_CLOEXEC)
_IS_SHORT = int(socket.MSG_TRUNC)
_LACKS_DESCRIPTORS = int(socket.MSG_CTRUNC)

Body = "Sequence[Buffer] | bytes"  #: frames, or the head of a parcel
#: that, the numbers of frames that were sent writable, and descriptors that come along
Packed = tuple["Sequence[Buffer] | bytes", Sequence[int], Sequence[int]]

dumps: Callable[[Any, int], bytes] = marshal.dumps  #: a packet, VERSION
loads = marshal.loads

_DIRECT = dumps((DIRECT,), VERSION)


def are_small(frames: Frames) -> bool:
    """Return whether *frames* travel as they are: all are ``bytes``, and few."""
    if len(frames) == 1:  # as most are
        return type(frames[0]) is bytes and len(frames[0]) <= INLINE
    return (
        _BYTES.issuperset(map(type, frames))
        and sum(map(len, frames)) + _FRAME * len(frames) <= INLINE  # type: ignore[arg-type] # they are bytes
    )


def pack(box: list[Frames], parcels: Parcels, *, move: bool = False) -> Packed:
    """Return frames as they stand in a packet, and what comes along.

    Args:
        box: has the frames, which are taken out.
        parcels: what carries large frames.
        move: memory that another member has sent goes back or on without a copy, if nobody refers
            to it here: the caller holds the frames by no other name.

    Raises:
        ResourceExhaustedError: there is room neither in shared memory nor in a file.
    """
    frames = box.pop()
    raws = [each if type(each) is bytes else _raw(each) for each in frames]
    if sum(map(len, raws)) + _FRAME * len(raws) <= INLINE:
        return raws, tuple(n for n, each in enumerate(frames) if type(each) is not bytes), ()
    try:
        parcel = parcels.pack(raws, move=move)
        del frames, raws
        head = parcel.head()
    except (OSError, MemoryError) as error:
        if not is_exhausted(error):
            raise
        raise explained(error, "the message") from error
    if move:
        parcels.settle()
    return head, (), parcel.fds


def unpack(
    body: Sequence[Buffer] | bytes, writable: Sequence[int], parcels: Parcels, fds: Sequence[int]
) -> list[Buffer]:
    """Return the frames, this process's own; closes *fds*.

    Raises:
        OSError: the file that holds them did not come along or cannot be read.
        RuntimeError: they are not there any more: the sender has ended.
    """
    if isinstance(body, bytes):
        return parcels.unpack(body, fds)
    frames = list(body)
    for each in writable:
        frames[each] = bytearray(frames[each])
    return frames


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


def _raw(frame: Buffer) -> memoryview | bytes:
    try:
        return flat(frame)
    except BufferError:  # it has gaps
        return memoryview(frame).tobytes()
