"""A connection between two processes of one machine: a socket that keeps messages whole.

A message is plain data, written by :mod:`marshal`, for both ends run the same Python. It is sent
and received whole or not at all, so that an interrupt leaves nothing half done: a ``send`` that was
interrupted has sent all of its message, or nothing.

Every failure is an exception: the end of the other side is ``EOFError``, a deadline that has passed
``TimeoutError``, a resource that has run out ``ResourceExhaustedError``. Deadlines are times of
``time.monotonic()``; None is no limit.
"""

from __future__ import annotations

import errno
import marshal
import math
import os
import select
import socket
import time
from array import array
from collections.abc import Sequence
from typing import Any, Self, cast

from pparallel.errors import ClosedError, ResourceExhaustedError
from pparallel.runtime.memory.payload import VERSION, Packed, Payload
from pparallel.runtime.resources import explained, explaining, is_exhausted
from pparallel.runtime.waits import milliseconds

LIMIT = 60_000  #: bytes of a message that travels in one packet
FILES = 253  #: most descriptors of a message (SCM_MAX_FD)

_BUFFER = 1 << 16
_SENDING = 1 << 20  #: bytes that may be on their way; the system may allow less
_LARGE = b"\0"  #: begins what says where a message lies; no message of marshal's begins so
_INTS = array("i").itemsize
_RIGHTS = socket.CMSG_SPACE(FILES * _INTS)
# As ints: to combine flags of Python's takes longer than to receive.
_NOW = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
_IS_CUT = int(socket.MSG_TRUNC)
_LACKS_FILES = int(socket.MSG_CTRUNC)

_ENDED = "the other end of the connection is closed"

Received = tuple[Any, list[int]]  #: a message, and its descriptors, which the receiver closes


class Connection:
    """One end. Any thread may send; one at a time receives.

    Attributes:
        payload: carries messages of more than ``LIMIT`` bytes; without one they are refused.

    Args:
        sock: a connected socket of type ``SOCK_SEQPACKET``, which is the connection's from now on.
        payload: as the attribute.
    """

    def __init__(self, sock: socket.socket, payload: Payload | None = None) -> None:
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENDING)
        self._sock, self.payload = sock, payload
        self._buffer = memoryview(bytearray(_BUFFER))

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Return the two ends of a new connection.

        Raises:
            ResourceExhaustedError: no descriptor is left.
        """
        with explaining("making a connection"):
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def fileno(self) -> int:
        """Return the descriptor, readable when there is a message or the end; -1: closed."""
        return self._sock.fileno()

    def send(self, message: Any, fds: Sequence[int] = (), *, deadline: float | None = None) -> None:
        """Send a message, waiting for room.

        Args:
            message: plain data.
            fds: at most ``FILES`` descriptors that go along; they stay the caller's.
            deadline: until when to wait; -inf: not at all.

        Raises:
            ClosedError: this end is closed.
            EOFError: the other end is closed, or its process has ended.
            ResourceExhaustedError: there is no memory for it, or too many descriptors are on their
                way.
            TimeoutError: there was no room until *deadline*.
            ValueError: it is not plain data, or too long and there is no payload.
        """
        data = marshal.dumps(message, VERSION)
        if len(data) <= LIMIT:
            self._send(data, fds, deadline)
            return
        if self.payload is None:
            raise ValueError(f"a message of {len(data)} bytes is longer than {LIMIT}")
        packed = self.payload.pack([memoryview(data)])
        try:
            self._send(_LARGE + marshal.dumps(cast("Any", packed), VERSION), fds, deadline)
        except BaseException:
            self.payload.drop(packed)  # harmless if it was sent, and has been read
            raise

    def receive(self, *, deadline: float | None = None, spin: float = 0.0) -> Received:
        """Return the next message and its descriptors, waiting for it.

        Args:
            deadline: until when to wait; -inf: not at all.
            spin: for how many seconds to look before this thread sleeps.

        Raises:
            ClosedError: this end is closed.
            EOFError: the other end is closed, or its process has ended, and all was received.
            ResourceExhaustedError: the message has come without its descriptors, since this process
                may have no more.
            RuntimeError: what has come is no message.
            TimeoutError: there was none until *deadline*.
        """
        until = time.monotonic() + spin if spin else -math.inf
        while (found := self._receive(_NOW | _CLOEXEC)) is None:
            if time.monotonic() < until:
                os.sched_yield()
            elif deadline is None and (found := self._receive(_CLOEXEC)) is not None:
                break
            else:
                self._wait(select.POLLIN, deadline, "message")
        return found

    def shut_down(self) -> None:
        """End it for both sides and all threads: whoever waits here or there finds the end."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:  # the other end, or this one, is closed
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def close(self) -> None:
        """Close this end, by which no thread may be waiting; safe to call again.

        The other end finds all that was sent, and then the end.
        """
        self._sock.close()

    def _send(self, data: bytes, fds: Sequence[int], deadline: float | None) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else ()
        while True:
            try:
                if rights:
                    self._sock.sendmsg((data,), rights, _NOW)
                else:
                    self._sock.send(data, _NOW)
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline, "room for a message")
            except OSError as error:
                raise self._failure(error, "sending a message") from error
            else:
                return

    def _receive(self, flags: int) -> Received | None:
        try:
            length, ancillary, found, _ = self._sock.recvmsg_into((self._buffer,), _RIGHTS, flags)
        except (BlockingIOError, ConnectionResetError):
            return None  # the latter is raised once: what was sent before the end is there still
        except OSError as error:
            raise self._failure(error, "receiving a message") from error
        fds = array("i", b"".join(each for _, _, each in ancillary)).tolist() if ancillary else []
        try:
            if found & _LACKS_FILES:
                advice = "close some, or raise the limit (ulimit -n)"
                what = "receiving the descriptors of a message"
                raise ResourceExhaustedError(what, "file descriptors", errno.EMFILE, advice)
            if not length:
                raise EOFError(_ENDED)
            return self._loaded(self._buffer[:length], is_cut=bool(found & _IS_CUT)), fds
        except BaseException:
            for each in fds:
                os.close(each)
            raise

    def _loaded(self, data: memoryview, *, is_cut: bool) -> Any:
        try:
            if data[:1] != _LARGE:
                return marshal.loads(data)
            packed: Packed = marshal.loads(data[1:])
        except (EOFError, TypeError, ValueError) as error:
            why = "it is too long" if is_cut else error
            raise RuntimeError(f"what has come is no message: {why}") from error
        if self.payload is None:
            raise RuntimeError("a large message has come, and this end has no payload")
        return marshal.loads(self.payload.unpack(packed)[0])

    def _wait(self, event: int, deadline: float | None, what: str) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, f"there was no {what} in time")
        if (number := self._sock.fileno()) < 0:
            raise ClosedError("the connection")
        poll = select.poll()
        poll.register(number, event)
        poll.poll(milliseconds(left))

    def _failure(self, error: OSError, what: str) -> Exception:
        """Return what to raise for an error of the system's."""
        if self._sock.fileno() < 0:
            return ClosedError("the connection")
        if isinstance(error, ConnectionError):
            return EOFError(_ENDED)
        return explained(error, what) if is_exhausted(error) else error
