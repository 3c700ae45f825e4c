"""The duplex channel between the pool and one worker.

A socket that keeps messages whole: one message, one system call. What does not fit in one travels
beside it as a parcel. A message is a tuple of plain data, written by :mod:`marshal`: both ends run
the same interpreter.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import pickle
import select
import socket
from array import array
from collections import deque
from time import sleep
from typing import Any

from pparallel.runtime.pools.messages import Received
from pparallel.runtime.shm import Parcels

LIMIT = 60_000  #: bytes of a message
_BUFFER = 1 << 16
_SENDING = 1 << 20  #: bytes that may be on their way; the system may allow less
_FILES = 253  #: most descriptors in one message (SCM_MAX_FD)
_VERSION = 2  #: of marshal's format: the last one without references, three times as quick
_PROTOCOL, _PICKLED = 5, 0x80  #: of pickle, and the first byte of what it writes
_WITH_FILES = b"F"  #: says that descriptors come with a message that follows
_ROOM = socket.CMSG_LEN(_FILES * array("i").itemsize)
_UNREAD = 4  #: large messages that are remembered; no more are ever unread: a worker has two lots
_AGAIN = 0.001  #: seconds after which is tried again what the system could not do just now
_PASSING = frozenset((errno.EINTR, errno.ENOMEM, errno.ENOBUFS))  #: no word of the other end

_LARGE = -1


#: Sockets that have not been closed. Garbage in a circle is finalised in any order, and a socket
#: whose turn comes before that of its channel would complain that nobody has closed it.
_open: set[socket.socket] = set()


class Channel:
    """One end.

    Args:
        sock: the socket, of which it is the owner from now on.
        parcels: for what does not fit in a message.
    """

    def __init__(self, sock: socket.socket, parcels: Parcels) -> None:
        self._sock = sock
        _open.add(sock)
        sock.setblocking(True)
        self._parcels = parcels
        self._buffer = memoryview(bytearray(_BUFFER))
        self._marked = 0  # messages with descriptors that were announced and have not come
        self._large: deque[bytes] = deque(maxlen=_UNREAD)
        self.fileno = sock.fileno()

    def __del__(self) -> None:
        self.close()

    def use(self, parcels: Parcels) -> None:
        """Have what does not fit in a message travel in *parcels* from now on."""
        self._parcels = parcels

    def finish(self) -> None:
        """Say that nothing more will be sent: the other end sees the end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end; safe to call again."""
        if self._sock.fileno() != -1:
            self._sock.close()
            _open.discard(self._sock)

    def send(self, message: tuple[Any, ...], files: list[int] | None = None) -> None:
        """Send a message, with descriptors that the caller closes.

        Raises:
            OSError: the other end is gone, or there is no room for a large message.
        """
        try:
            data = marshal.dumps(message, _VERSION)
        except ValueError:  # it holds something of 2 GiB or more
            data = pickle.dumps(message, _PROTOCOL)
        if len(data) > LIMIT or files:
            self._send_slowly(data, files or [])
            return
        try:
            self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._send_when_there_is_room([data])

    def poll(self) -> Received | None:
        """Return the next message, like :meth:`receive`; ``None`` at the end too."""
        try:
            return self.receive()
        except EOFError:
            return None

    def try_to_send(self, message: tuple[Any, ...]) -> bool:
        """Send a small message unless that would have to wait; return whether it went."""
        data = marshal.dumps(message, _VERSION)
        try:
            return len(data) <= LIMIT and bool(self._sock.send(data, socket.MSG_DONTWAIT))
        except OSError:
            return False

    def receive(self, flags: int = socket.MSG_DONTWAIT) -> Received | None:
        """Return the next message and its descriptors; ``None``: there is none yet.

        Args:
            flags: 0 to wait for it.

        Raises:
            EOFError: the other end is gone, or this one is closed.
            OSError: it cannot be read from.
        """
        files: list[int] = []
        try:
            if self._marked:
                length, files = self._receive_with_files(flags)
            else:
                length = self._sock.recv_into(self._buffer, 0, flags)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # told once: the other end is gone, and had not read all
            return self.receive(flags)  # what it had sent is there still
        except OSError as error:
            return self._without(error, flags)
        if length == 0:
            raise EOFError
        if length == 1:
            self._marked += 1
            return self.receive(flags)
        try:
            message = marshal.loads(self._buffer[:length])
            if message[0] == _LARGE:
                _, head, count = message
                own, files = files[:count], files[count:]
                (content,) = self._parcels.unpack(head, own)
                message = _loaded(memoryview(content))
        except BaseException:
            _close(files)
            raise
        return message, files

    def _without(self, error: OSError, flags: int) -> Received | None:
        """Go on after an error of receiving: only some tell of the end."""
        if isinstance(error, ConnectionError) or self._sock.fileno() == -1:
            raise EOFError from error
        if error.errno not in _PASSING:
            raise error
        sleep(_AGAIN)
        return None if flags & socket.MSG_DONTWAIT else self.receive(flags)

    def let_go(self, files: list[int]) -> None:
        """Close descriptors that were sent."""
        _close(files)

    def drop_unread(self) -> None:
        """Let go of the large messages that the other end, which is gone, has not read."""
        for head in list(self._large):
            self._drop(head)  # of one that was read nothing is left

    def _receive_with_files(self, flags: int) -> tuple[int, list[int]]:
        """Read a message, which may be one without descriptors that was sent in between."""
        # Not socket.recv_fds: it takes flags and does not pass them on.
        length, ancillary, *_ = self._sock.recvmsg_into(
            [self._buffer], _ROOM, flags | socket.MSG_CMSG_CLOEXEC
        )
        files = array("i", b"".join(data for _, _, data in ancillary))
        if files:
            self._marked -= 1
        return length, files.tolist()

    def _send_slowly(self, data: bytes, files: list[int]) -> None:
        if len(data) > LIMIT:
            self._send_large(data, files)
        else:
            self._send_when_there_is_room([_WITH_FILES, data], files)

    def _send_large(self, data: bytes, files: list[int]) -> None:
        parcel = self._parcels.pack([data])
        head, own = parcel.head(), list(parcel.fds)
        message = marshal.dumps((_LARGE, head, len(own)), _VERSION)
        files = [*own, *files]
        self._large.append(head)
        try:
            self._send_when_there_is_room([_WITH_FILES, message] if files else [message], files)
        except (OSError, MemoryError):
            self._drop(head)
            raise
        finally:
            _close(own)

    def _drop(self, head: bytes) -> None:
        with contextlib.suppress(ValueError):  # another thread has dropped it
            self._large.remove(head)
            self._parcels.drop(head)

    def _send_when_there_is_room(
        self, messages: list[bytes], files: list[int] | None = None
    ) -> None:
        poll = select.poll()
        poll.register(self.fileno, select.POLLOUT)
        while messages:
            try:
                if files and len(messages) == 1:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))]
                    self._sock.sendmsg(messages, rights, socket.MSG_DONTWAIT)
                else:
                    self._sock.send(messages[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                poll.poll()
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                sleep(_AGAIN)
            else:
                messages.pop(0)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new socket."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENDING)
    return ends


def _loaded(content: memoryview) -> Any:
    loads = pickle.loads if content[0] == _PICKLED else marshal.loads
    return loads(content)


def _close(files: list[int]) -> None:
    for each in files:
        os.close(each)
