"""Redis's protocol over one socket: what is large is sent from where it lies, and read in place.

Source: the Redis serialization protocol, version 2 (redis.io, "RESP protocol description").
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from pparallel_redis.records import Views, memory

Argument = bytes | Views  #: what an argument of a command may be; views are sent end to end
Command = Sequence[Argument]

_BUFFER = 64 << 10  #: bytes that are read ahead
_LARGE = 16 << 10  #: bytes of an argument or reply from which it is not copied once more
_MOST = 512  #: views that are handed to the system at once
_LONGEST = 1 << 30  #: bytes of a reply that are taken; Redis itself sends half of that at most


class ReplyError(Exception):
    """The server's answer is that it will not.

    Attributes:
        code: its first word.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


class ProtocolError(ConnectionError):
    """What came is no answer of a Redis server."""


class Wire:
    """A connection, used by one thread at a time.

    An exchange that is interrupted, whatever by, leaves it in a state that nobody knows: it has
    to be closed then.

    Args:
        connected: what to speak over.
        timeout: seconds for which nothing may move.
    """

    def __init__(self, connected: socket.socket, timeout: float) -> None:
        self._socket = connected
        self._socket.settimeout(timeout)
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    @property
    def holds_more(self) -> bool:
        """Whether there is something to read that the system does not tell of."""
        is_encrypted = isinstance(self._socket, ssl.SSLSocket)
        return self._start < self._end or (is_encrypted and self._socket.pending() > 0)  # type: ignore[attr-defined]

    def limit(self, seconds: float) -> None:
        """Have nothing move for so many seconds at most, from now on."""
        self._socket.settimeout(seconds)

    def ask(self, *command: Argument) -> Any:
        """Send one command, and return the reply.

        Raises:
            ReplyError: the server refused it.
            OSError: the connection is lost.
        """
        self.send([command])
        reply = self.receive()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def send(self, commands: Iterable[Command]) -> None:
        """Send commands, without waiting for what comes of them."""
        chunks = _packed(commands)
        if len(chunks) == 1:
            self._socket.sendall(chunks[0])
        elif isinstance(self._socket, ssl.SSLSocket):
            for each in chunks:
                self._socket.sendall(each)
        else:
            self._send(chunks)

    def receive(self, into: Views | None = None) -> Any:
        """Return the next reply; a string is written to *into*, if that is just as large.

        Errors are returned, not raised: others of the same exchange may follow.
        """
        line = self._line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"$":
                return self._bulk(_number(rest), into)
            case b":":
                return _number(rest)
            case b"+":
                return rest
            case b"-":
                return ReplyError(rest.decode("utf-8", "replace"))
            case b"*":
                count = _number(rest)
                return None if count < 0 else [self.receive() for _ in range(count)]
        message = f"it answers {line[:60]!r}, which no Redis server does"
        raise ProtocolError(message)

    def wake(self) -> None:
        """Have whoever uses it fail at once, in whatever thread."""
        try:
            # Not SSLSocket's own, which would have whoever reads now go on without encryption.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            return  # it is not connected any more, which is what was wanted

    def close(self) -> None:
        """Close it; safe to call again."""
        self._socket.close()

    def _send(self, chunks: list[Any]) -> None:
        views = deque(memoryview(each) for each in chunks)
        while views:
            sent = self._socket.sendmsg(list(islice(views, _MOST)))
            while sent:
                first = views[0]
                if sent < first.nbytes:
                    views[0] = first[sent:]
                    break
                sent -= first.nbytes
                views.popleft()

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n", self._start, self._end)) < 0:
            self._read_ahead()
        line = bytes(self._view[self._start : end])
        self._start = end + 2
        return line

    def _bulk(self, size: int, into: Views | None) -> bytes | memoryview | Views | None:
        if size < 0:
            return None
        if size > _LONGEST:
            message = f"it answers with {size:,} bytes at once, which no Redis server does"
            raise ProtocolError(message)
        if into is not None and sum(map(len, into)) == size:
            for each in into:
                self._fill(each)
            self._end_of_bulk()
            return into
        if size < _LARGE:
            while self._end - self._start < size + 2:
                self._read_ahead()
            content = bytes(self._view[self._start : self._start + size])
            self._start += size + 2
            return content
        whole = memory(size)
        self._fill(whole)
        self._end_of_bulk()
        return whole

    def _end_of_bulk(self) -> None:
        while self._end - self._start < 2:
            self._read_ahead()
        self._start += 2

    def _fill(self, view: memoryview) -> None:
        """Fill *view* with what is there already, and then with what comes."""
        at = min(view.nbytes, self._end - self._start)
        view[:at] = self._view[self._start : self._start + at]
        self._start += at
        while at < view.nbytes:
            at += self._received(self._socket.recv_into(view[at:]))

    def _read_ahead(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == _BUFFER:
            if not self._start:
                message = "it answers with a line that does not end, which no Redis server does"
                raise ProtocolError(message)
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        self._end += self._received(self._socket.recv_into(self._view[self._end :]))

    @staticmethod
    def _received(count: int) -> int:
        if not count:
            message = "it closed the connection"
            raise ConnectionResetError(message)
        return count


def _packed(commands: Iterable[Command]) -> list[Any]:
    """Return what to send: one chunk where everything is small."""
    chunks: list[Any] = []
    small: list[Any] = []
    for command in commands:
        small.append(b"*%d\r\n" % len(command))
        for argument in command:
            if isinstance(argument, bytes):
                small.append(b"$%d\r\n%b\r\n" % (len(argument), argument))
                continue
            size = sum(map(len, argument))
            small.append(b"$%d\r\n" % size)
            for view in argument:
                if view.nbytes >= _LARGE:
                    chunks += [b"".join(small), view]
                    small = []
                else:
                    small.append(view)
            small.append(b"\r\n")
    if small:
        chunks.append(b"".join(small))
    return chunks


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        message = f"it answers with {text[:40]!r} for a number, which no Redis server does"
        raise ProtocolError(message) from None
