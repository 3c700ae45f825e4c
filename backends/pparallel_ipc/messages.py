"""What the two ends of a connection say to one another, once both have proved who they are.

A message is one packet of a socket that keeps packets whole: plain data, written by
:mod:`marshal`, for both ends run the same Python. The frames of a request travel in it, or, when
they are large, in shared memory, of which the message says where.
"""

from __future__ import annotations

import errno
import marshal
import math
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from typing_extensions import Buffer

from pparallel.interfaces.transport import Frames
from pparallel.runtime.interrupts import is_interrupt
from pparallel.runtime.links import FAILED
from pparallel.runtime.memory import Payload
from pparallel.runtime.processes import close_private
from pparallel.runtime.resources import is_exhausted

# What a message is, its first field; in a packet of its own, where not said otherwise.
(
    MANY,  #: replies and requests: a list of entries
    LANE,  #: a descriptor comes along: the other end of a new lane
    LOST,  #: (name, reason): a member has ended
    MEMBERS,  #: a list of hellos: who has arrived
    BYE,  #: the sender closes
) = range(5)

LONGEST = 60_000  #: bytes of a packet
INLINE = 1 << 15  #: bytes of frames above which they lie in shared memory
PACKET = 1 << 16  #: bytes that a receiver makes room for
HEADER = 64  #: bytes of an entry beside its frames, at most
_AGAIN = 0.001  #: seconds after which what found no memory or descriptors is tried again
LONG = 1.0  #: seconds after which an introduction fails for want of them
_FRAME = 10  #: bytes that marshal adds to a frame, and to say that it was sent writable
SENDING = 1 << 20  #: bytes that may be on their way; the system may allow less

_BYTES = frozenset({bytes})
VERSION = 2  #: of marshal's format: the last one without references, three times as quick
# As ints: to combine flags of Python's takes longer than to receive.
_IS_TRUNCATED = int(socket.MSG_TRUNC)
_HOW = PACKET, socket.CMSG_SPACE(4 * array("i").itemsize), int(socket.MSG_CMSG_CLOEXEC)
EACH = tuple((each,) for each in _HOW)  # as map() takes them

T = TypeVar("T")
Received = tuple[bytes, list[Any], int, Any]  #: what the system gives

#: frames as a payload packs them, and whether they are more than bytes
Packed = tuple[Any, bool]
Sized = tuple[Packed, int]  #: that, and how many bytes of a message it takes


dumps: Callable[[Any, int], bytes] = marshal.dumps  #: a message, VERSION
loads = marshal.loads


def pack(frames: Frames, payload: Payload) -> Sized:
    """Return frames as they stand in a message, and how many bytes that is.

    Raises:
        ResourceExhaustedError: there is no room in shared memory.
    """
    return _sized(payload.pack(frames))


def are_small(frames: Frames) -> bool:
    """Return whether *frames* may travel as they are: all are ``bytes``, and few."""
    if len(frames) == 2:  # as most are: no loop, which costs as much as to send them
        one, other = frames
        if type(one) is bytes and type(other) is bytes:
            return len(one) + len(other) <= INLINE - 2 * _FRAME
    return (
        _BYTES.issuperset(map(type, frames))
        and sum(map(len, frames)) <= INLINE - _FRAME * len(frames)  # type: ignore[arg-type] # they are bytes
    )


def pack_answer(status: int, box: list[Frames], payload: Payload) -> tuple[int, Sized]:
    """As :func:`pack`, for an answer, which travels without a copy where nobody refers to it here.

    Args:
        status: how the request ended.
        box: has the frames, which are taken out; the caller holds them by no other name.
        payload: what carries large frames.

    Returns:
        How the request ended, which changes where there is no room for the answer, and the rest.
    """
    frames = list(box.pop())
    try:
        return status, _sized(payload.move(frames))
    except OSError as error:
        return FAILED, refused(error)


def _sized(packed: Any) -> Sized:
    if type(packed) is list and _BYTES.issuperset(map(type, packed)):
        return (packed, False), sum(map(len, packed)) + _FRAME * len(packed)
    return (packed, True), len(dumps(packed, VERSION))


def droppable(sized: Sized) -> Any:
    """Return what a payload is to drop if nobody reads it; ``None``: nothing."""
    (body, has_places), _ = sized
    return body if has_places else None


def refused(error: BaseException) -> Sized:
    """Return the answer to a request that could not be read, or whose answer cannot be sent."""
    told = [type(error).__name__.encode(), str(error).encode(errors="replace")[:1000]]
    return (told, False), 1024


def unpack(packed: Packed, payload: Payload) -> list[Buffer]:
    """Return the frames, this process's own.

    Raises:
        RuntimeError: they are not there any more: the sender has ended, or taken them back.
    """
    body, has_places = packed
    return payload.unpack(body) if has_places else list(body)


def patiently(act: Callable[[], T], timeout: float | None = None) -> T:
    """Return what *act* does, which is called again while there is no memory or descriptor for it.

    Args:
        act: raises ``OSError`` or ``MemoryError`` as the system does.
        timeout: in seconds.

    Raises:
        TimeoutError: there was none within *timeout* seconds.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        try:
            return act()
        except (OSError, MemoryError) as error:
            if not is_exhausted(error) or is_interrupt(error):
                raise
            if time.monotonic() >= until:
                raise TimeoutError from error
        time.sleep(_AGAIN)


def introduce(sock: socket.socket, word: bytes, fds: Sequence[int] = ()) -> None:
    """Send a word of the introductions, also where the system has no room for it at once.

    Raises:
        OSError: the other end is gone, or there was no room for long.
    """

    def send() -> None:
        try:
            send_with(sock, word, fds)
        except BlockingIOError as error:
            raise OSError(errno.ENOBUFS, error.strerror) from error

    patiently(send, LONG)


def send_with(sock: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    """Send a message with descriptors."""
    sock.sendmsg([message], rights(fds), socket.MSG_NOSIGNAL)


def rights(fds: Sequence[int]) -> list[tuple[int, int, Any]]:
    """Return what has the system send descriptors along with a message."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []


def receive_with(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message and the descriptors that came with it; the first is empty at the end.

    Where this process has no descriptors left, they are missing.

    Raises:
        OSError: it is longer than any that is sent.
    """
    return parts(sock.recvmsg(*_HOW))


def parts(received: Received) -> tuple[bytes, list[int]]:
    """As :func:`receive_with`, of what the system has given."""
    data, ancillary, said, _ = received
    fds = array("i", b"".join(each for _, _, each in ancillary)).tolist() if ancillary else []
    if said & _IS_TRUNCATED:
        close(fds)
        raise OSError("a message is longer than allowed")
    return data, fds


def close(fds: Sequence[int]) -> None:
    """Close descriptors; those that came along with a message, too."""
    if fds:
        close_private(*fds)
