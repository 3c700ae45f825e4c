"""Connections for synchronous calls: the caller's own thread sends, and waits for the reply."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import zmq
from typing_extensions import Buffer

from pparallel.errors import CallTimeoutError, PeerLostError
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.links import failure
from pparallel.runtime.polling import Polling
from pparallel.runtime.timers import milliseconds
from pparallel_zmq import wire
from pparallel_zmq.memory import Memory
from pparallel_zmq.sockets import Connection, Socket, ZeroCopy, events
from pparallel_zmq.streams import Incoming, Outgoing
from pparallel_zmq.wire import HEAD, BadMessageError, Kind, Limits, Raw

if TYPE_CHECKING:
    from pparallel_zmq.links import Link

QUICK = 0.005  #: seconds that a reply is waited for with nothing else in mind
LAST = 0.25  #: seconds that the reply of a member that leaves may take to come

_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_QUICK = int(QUICK * 1000)


class Lane:
    """A connection that carries one call at a time.

    Attributes:
        connection: its sockets.
        is_idle: whether it may carry another: all of the last reply has come.
    """

    def __init__(self, connection: Connection, limits: Limits, memory: Memory) -> None:
        self.connection, (self._socket, self._monitor) = connection, connection.made
        self._limits, self._memory = limits, memory
        self.is_idle = True
        self._send: Callable[..., object] = self._socket.send
        self._wait = _waiting(self._socket)
        self._deadline: float | None = None

    def call(
        self, link: Link, part: bytes, raws: list[Raw], number: int, timeout: float | None
    ) -> list[Buffer]:
        """Send a request and return the reply.

        Raises:
            CallTimeoutError: it did not come in time.
            PeerLostError, ClosedError: it will not come.
            RemoteError: the handler failed.
        """
        try:
            self.connection.used_by = get_ident()
            if link.is_over:  # nobody waits any more until it is used no longer
                raise link.why_broken()
            self.is_idle = False
            self._deadline = None if timeout is None else time.monotonic() + timeout
            flags, frames = self._exchange(link, number, part, raws)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.ETERM, zmq.ENOTSOCK):
                raise
            raise link.why_broken() from None
        except TimeoutError as error:
            raise_interrupt(error)
            raise CallTimeoutError(f"a request to {link.to!r}", timeout or 0.0) from None
        except BadMessageError as error:
            raise PeerLostError(link.to, f"has sent what is no reply: {error}") from None
        finally:
            self.connection.used_by = 0
        self.is_idle = True
        if flags & wire.FAILED:
            raise failure(link.to, frames)
        return frames

    def _exchange(
        self, link: Link, number: int, part: bytes, raws: list[Raw]
    ) -> tuple[int, list[Buffer]]:
        self._send(part, _NOW)  # there is always room
        outgoing = None
        if raws:
            outgoing = Outgoing(raws, self._limits.piece)
            self._send_pieces(number, outgoing, self._limits.window)
        incoming: Incoming | None = None
        while True:
            part, piece = self._receive(link)
            kind, flags, asked, table, frames = wire.unpack(part, self._limits)
            if asked != number:
                raise BadMessageError("a reply to another request")
            if kind == Kind.REPLY and not flags & wire.LARGE:
                return flags, frames
            if kind == Kind.REPLY:
                incoming = Incoming(table, self._memory, flags)
            elif kind == Kind.MORE and outgoing is not None:
                self._send_pieces(number, outgoing, 1)
            elif kind == Kind.PIECE and incoming is not None and piece is not None:
                if incoming.feed(piece):
                    return incoming.flags, incoming.frames()
                self._send(wire.say(Kind.MORE, number=number), _NOW)

    def _send_pieces(self, number: int, outgoing: Outgoing, count: int) -> None:
        head = HEAD.pack(Kind.PIECE, 0, 0, 0, number)
        for piece in outgoing.take(count):
            self._send(head, _MORE)
            self._send(piece, _NOW, copy=not ZeroCopy.is_ready())

    def _receive(self, link: Link) -> tuple[bytes, memoryview | None]:
        socket, part = self._socket, None
        if self._deadline is None or self._deadline - time.monotonic() > QUICK:
            part = self._wait()
        if part is None:
            self._wait_slowly(link)
            part = socket.recv(_NOW)
        if part[0] != Kind.PIECE or not socket.rcvmore:
            return part, None
        frame: Any = socket.recv(copy=False)
        return part, frame.buffer

    def _wait_slowly(self, link: Link) -> None:
        """Wait until something has come; raises as :meth:`call`."""
        socket, is_last, deadline, ended = self._socket, False, self._deadline, link.ended.fd
        waited_for: list[tuple[Any, int]] = [(socket, zmq.POLLIN), (self._monitor, zmq.POLLIN)]
        items = [*waited_for, (ended, zmq.POLLIN)]
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            timeout = milliseconds(left)
            ready = dict(zmq.zmq_poll(items, -1 if timeout is None else timeout))
            if socket in ready:
                return
            if self._monitor in ready and zmq.EVENT_DISCONNECTED in dict(events(self._monitor)):
                raise link.why_broken()
            if ended in ready:
                # What it has answered already may still be on its way: until its connection ends.
                is_last, items = True, waited_for
                until = time.monotonic() + LAST
                deadline = until if deadline is None else min(deadline, until)
            elif deadline is not None and time.monotonic() >= deadline:
                raise link.why_broken() if is_last else TimeoutError


def _waiting(socket: Socket) -> Callable[[], bytes | None]:
    """Return what waits a short while for the next part that comes; no lane is part of a cycle."""
    receive, is_there = socket.recv, zmq.zmq_poll
    asked: list[tuple[Any, int]] = [(socket, int(zmq.POLLIN))]
    polled = select.poll()
    polled.register(int(socket.getsockopt(zmq.FD)), select.POLLIN)
    sleep = polled.poll

    def look() -> bytes | None:
        try:
            return receive(_NOW)
        except zmq.Again:
            return None

    def wait() -> bytes | None:  # what waits in recv would begin anew with each signal
        # The descriptor tells of changes only, and from when all before were looked at.
        if not is_there(asked, 0):
            sleep(_QUICK)
        return look()

    return Polling(wait, look).receive
