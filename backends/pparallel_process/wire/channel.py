"""The duplex channel between the pool and one worker.

A socket that keeps messages whole: one message, one system call. What does not fit in one travels
beside it as a parcel. A message is a tuple of plain data, written by :mod:`marshal`: both ends run
the same interpreter.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import socket
from typing import Any

from pparallel.runtime.shm import Parcels

LIMIT = 60_000  #: bytes of a message
_BUFFER = 1 << 16
_SENDING = 1 << 20  #: bytes that may be on their way; the system may allow less
_FILES = 253  #: most descriptors in one message (SCM_MAX_FD)
_VERSION = 2  #: of marshal's format: the last one without references, three times as quick
_WITH_FILES = b"F"  #: says that descriptors come with the next message

REPORT, READY, FAILED, FORWARDED, DONE = range(5)  #: first field of what a worker sends
LOT, RECEIVED, CALL = range(3)  #: first field of what the pool sends
_LARGE = -1


Received = tuple[tuple[Any, ...], list[int]]  #: a message and the descriptors that came with it


class Channel:
    """One end.

    Args:
        sock: the socket, of which it is the owner from now on.
        parcels: for what does not fit in a message.
    """

    def __init__(self, sock: socket.socket, parcels: Parcels) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._parcels = parcels
        self._buffer = memoryview(bytearray(_BUFFER))
        self._with_files = False
        self.fileno = sock.fileno()

    def use(self, parcels: Parcels) -> None:
        """Have what does not fit in a message travel in *parcels* from now on."""
        self._parcels = parcels

    def finish(self) -> None:
        """Say that nothing more will be sent: the other end sees the end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end; safe to call again."""
        self._sock.close()

    def send(self, message: tuple[Any, ...], files: list[int] | None = None) -> None:
        """Send a message, with descriptors that the caller closes.

        Raises:
            OSError: the other end is gone, or there is no room for a large message.
        """
        data = marshal.dumps(message, _VERSION)
        if len(data) > LIMIT or files:
            self._send_slowly(data, files or [])
            return
        try:
            self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._send_when_there_is_room([data])

    def send_to_living(self, message: tuple[Any, ...]) -> None:
        """Send a small message; nothing happens if the other end is gone."""
        with contextlib.suppress(OSError):
            self.send(message)

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
            EOFError: the other end is gone.
        """
        files: list[int] = []
        try:
            if self._with_files:
                data, files, _, _ = socket.recv_fds(self._sock, _BUFFER, _FILES, flags)
                length, self._with_files = len(data), False
                self._buffer[:length] = data
            else:
                length = self._sock.recv_into(self._buffer, 0, flags)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError from error
        if length == 0:
            raise EOFError
        if length == 1:
            self._with_files = True
            return self.receive(flags)
        message = marshal.loads(self._buffer[:length])
        if message[0] == _LARGE:
            _, head, count = message
            (content,) = self._parcels.unpack(head, files[:count])
            message, files = marshal.loads(content), files[count:]
        return message, files

    def _send_slowly(self, data: bytes, files: list[int]) -> None:
        own: list[int] = []
        if len(data) > LIMIT:
            parcel = self._parcels.pack([data])
            own = list(parcel.fds)
            data = marshal.dumps((_LARGE, parcel.head(), len(own)), _VERSION)
        try:
            if own or files:
                self._send_when_there_is_room([_WITH_FILES, data], [*own, *files])
            else:
                self._send_when_there_is_room([data])
        finally:
            _close(own)

    def _send_when_there_is_room(
        self, messages: list[bytes], files: list[int] | None = None
    ) -> None:
        poll = select.poll()
        poll.register(self.fileno, select.POLLOUT)
        while messages:
            try:
                if files and len(messages) == 1:
                    socket.send_fds(self._sock, messages, files, socket.MSG_DONTWAIT)
                else:
                    self._sock.send(messages[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                poll.poll()
            else:
                messages.pop(0)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new socket."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENDING)
    return ends


def _close(files: list[int]) -> None:
    for each in files:
        os.close(each)
