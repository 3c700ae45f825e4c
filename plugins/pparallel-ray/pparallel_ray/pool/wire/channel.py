"""One end of a connection between the pool and a worker or its supervisor.

A message is a tuple of plain data, written by :mod:`marshal`, with any number of large buffers
beside it, which are sent from where they lie and arrive where they will stay. Both ends run the
same Python: Ray sees to that. Nothing is read before the other end has shown that it has the key.
"""

from __future__ import annotations

import contextlib
import marshal
import select
import socket
import struct
import threading
from collections import deque
from typing import Any

from pparallel.runtime.pools.messages import Message, Received

_HEAD = struct.Struct("<IQ")  #: the number of buffers beside, and the bytes of the message
_SIZE = struct.Struct("<Q")
_VERSION = 2  #: of marshal's format: the last one without references, three times as quick
_CHUNK = 1 << 18
_AT_ONCE = 64  #: buffers in one system call
_SOCKET_BUFFER = 1 << 20


class Channel:
    """One end; any thread may send, one at a time receives.

    Args:
        sock: the connection, of which it is the owner from now on.
        patient: sending waits until the system has taken all. Otherwise it never waits, and
            :meth:`flush` is to be called when there is room again.
    """

    def __init__(self, sock: socket.socket, *, patient: bool) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._patient = patient
        self._sending = threading.Lock()
        self._backlog: deque[memoryview] = deque()
        self._incoming = _Incoming()
        self.fileno = sock.fileno()

    @property
    def is_backed_up(self) -> bool:
        """Whether something waits for :meth:`flush`."""
        return bool(self._backlog)

    def send(self, message: Message, files: list[Any] | None = None) -> None:
        """Send a message, and the buffers beside it.

        Raises:
            OSError: the other end is gone.
        """
        beside = files or []
        data = marshal.dumps(message, _VERSION)
        sizes = b"".join(_SIZE.pack(each.nbytes) for each in beside)
        head = memoryview(_HEAD.pack(len(beside), len(data)) + sizes + data)
        with self._sending:
            self._backlog.append(head)
            self._backlog.extend(each for each in beside if each.nbytes)
            self._flush()

    def try_to_send(self, message: Message) -> bool:
        """Send a small message unless that would have to wait; return whether it went."""
        if not _is_ready(self._sock, select.POLLOUT, 0) or self._sending.locked():
            return False
        try:
            self.send(message)
        except OSError:
            return False
        return True

    def flush(self) -> None:
        """Send what waits, as far as there is room.

        Raises:
            OSError: the other end is gone.
        """
        with self._sending:
            self._flush()

    def receive(self, flags: int = socket.MSG_DONTWAIT) -> Received | None:
        """Return the next message and the buffers beside it; ``None``: there is none yet.

        Args:
            flags: 0 to wait for it.

        Raises:
            EOFError: the other end is gone.
        """
        while (found := self._incoming.take()) is None:
            try:
                self._incoming.read_from(self._sock)
            except BlockingIOError:
                if flags:
                    return None
                _is_ready(self._sock, select.POLLIN, None)
            except OSError as error:
                raise EOFError from error
        return found

    def let_go(self, files: list[Any]) -> None:
        """Do nothing: what was sent is the sender's still."""

    def finish(self) -> None:
        """Say that nothing more will be sent: the other end sees the end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end; safe to call again."""
        self._backlog.clear()
        self._sock.close()

    def _flush(self) -> None:
        backlog = self._backlog
        while backlog:
            try:
                sent = self._sock.sendmsg([*backlog][:_AT_ONCE])
            except BlockingIOError:
                if not self._patient:
                    return
                _is_ready(self._sock, select.POLLOUT, None)
                continue
            while sent:
                first = backlog.popleft()
                if first.nbytes > sent:
                    backlog.appendleft(first[sent:])
                sent = max(0, sent - first.nbytes)


class _Incoming:
    """What has arrived and is not a whole message yet."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_CHUNK))
        self._data = bytearray()
        self._at = 0
        self._message: Message | None = None
        self._sizes: list[int] = []
        self._files: list[bytearray] = []
        self._filled = 0  # of the last of the files

    def read_from(self, sock: socket.socket) -> None:
        """Read once.

        Raises:
            EOFError: the other end is gone.
            OSError: the connection is broken, or there is nothing to read.
        """
        if self._files and self._filled < len(self._files[-1]):
            count = sock.recv_into(memoryview(self._files[-1])[self._filled :])
            self._filled += count
        else:
            count = sock.recv_into(self._buffer)
            self._data += self._buffer[:count]
        if not count:
            raise EOFError

    def take(self) -> Received | None:
        """Return a message with all that is beside it, if it is there."""
        if self._message is None and not self._take_message():
            return None
        while len(self._files) < len(self._sizes) or self._is_partial():
            if not self._is_partial():
                self._files.append(bytearray(self._sizes[len(self._files)]))
                self._filled = 0
            if not self._fill():
                return None
        message, files, self._message, self._files = self._message, self._files, None, []
        assert message is not None
        return message, files

    def _take_message(self) -> bool:
        """Take the message's own part out of the data; return False if it is not there yet."""
        data, at = self._data, self._at
        if len(data) - at < _HEAD.size:
            self._trim()
            return False
        count, length = _HEAD.unpack_from(data, at)
        begin = at + _HEAD.size + count * _SIZE.size
        if len(data) < begin + length:
            self._trim()
            return False
        sizes = range(at + _HEAD.size, begin, _SIZE.size)
        self._sizes = [_SIZE.unpack_from(data, each)[0] for each in sizes]
        with memoryview(data) as view, view[begin : begin + length] as own:
            self._message = marshal.loads(own)
        self._at = begin + length
        return True

    def _is_partial(self) -> bool:
        return bool(self._files) and self._filled < len(self._files[-1])

    def _fill(self) -> bool:
        """Move data into the last of the files; return whether it is whole."""
        file = self._files[-1]
        taken = min(len(file) - self._filled, len(self._data) - self._at)
        with memoryview(self._data) as view:
            file[self._filled : self._filled + taken] = view[self._at : self._at + taken]
        self._filled += taken
        self._at += taken
        self._trim()
        return self._filled == len(file)

    def _trim(self) -> None:
        if self._at:
            del self._data[: self._at]
            self._at = 0


def _is_ready(sock: socket.socket, event: int, timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(timeout_ms))
