"""A socket that several threads send on, and one reads."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import zmq

from pparallel.runtime import dedicated
from pparallel_zmq.reader import Reader, Source
from pparallel_zmq.sockets import Socket, ZeroCopy, close
from pparallel_zmq.streams import Outgoing
from pparallel_zmq.wire import HEAD, Kind, Raw, say
from pparallel_zmq.zap import Strangers

logger = logging.getLogger(__name__)

BATCH = 16  #: messages that are taken in at a time
SELDOM = 64  #: messages that came alone after which it is looked for a second, at the latest
TOGETHER = 16  #: and those that leave as one, at the most
SMALL = 2048  #: bytes up to which a message may leave with others

Stream = tuple[bytes, int]  #: route and number

#: A message as it came from a socket: the connection it came by, which is empty on a socket that
#: has one alone; who is on the other end, as was proven or, without keys, claimed; and its parts.
Received = tuple[bytes, str | None, bytes, memoryview | None]

# Plain numbers: to combine or compare pyzmq's own takes as long as to send.
_READABLE = int(zmq.POLLIN)
_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_COPIED = 2**16  #: bytes, below which a copy takes less than to do without


class _Sending(NamedTuple):
    """A large message that is being sent."""

    pieces: Outgoing
    thread: int  #: whose later messages wait for its end; 0: nobody's
    whose: str  #: the member that has given the request its number


class Port:
    """Sends and takes in, one thread at a time.

    What ZeroMQ has no room for waits here, in order. Large messages are sent piece by piece, so
    that others pass them; those of the same thread, in whose order they are to arrive, do not.
    Small ones may leave together: a message takes ZeroMQ and this module longer than what it holds.

    A signal handler or a finalizer may call it inside another operation of the same thread: the
    call is kept, and that operation runs it at its end.

    Attributes:
        backlog: what waits.
    """

    def __init__(
        self,
        socket: Socket,
        reader: Reader,
        source: Source,
        window: int,
        strangers: Strangers | None = None,
    ) -> None:
        self._socket, self._reader, self._source = socket, reader, source
        self._strangers = strangers
        # To look these up on pyzmq's sockets takes a while.
        self._send_part: Callable[..., object] = socket.send
        self._receive_part: Callable[..., Any] = socket.recv
        self._asked: list[tuple[Any, int]] = [(socket, _READABLE)]
        self._window = window
        self._is_router = socket.type == zmq.ROUTER
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._inside = 0  # the thread that is inside an operation
        self._late: deque[Callable[[], object]] = deque()  # what interrupted it
        self.backlog: deque[tuple[bytes, list[Raw]]] = deque()
        self._streams: dict[Stream, _Sending] = {}
        self._behind: dict[int, deque[tuple[bytes, bytes, list[Raw], int, int]]] = {}
        self._held = False
        self._together: dict[bytes, list[bytes]] = {}  # by route
        self._count = 0  # of those
        self._closed = self._is_given_up = False
        self._alone, self._pause = 0, 1  # how often not to look for a second message, and the next
        self.fd = int(socket.getsockopt(zmq.FD))

    def hold(self) -> None:
        """Keep what is sent from now on until :meth:`release`."""
        self._held = True

    def release(self) -> None:
        """Send what was kept."""
        self._held = False
        self._do(self._sent, self._flush)

    def put(self, part: bytes, *, route: bytes = b"", thread: int = 0, wait: bool = False) -> None:
        """Send a small message, perhaps with others.

        Args:
            part: the message.
            route: by which connection.
            thread: as for :meth:`send`.
            wait: whether others will come soon: it leaves with them, or when the reader next looks.
        """
        if len(part) > SMALL or (thread and thread in self._behind):
            self.send(part, route=route, thread=thread)
            return
        self._do(self._put_small, part, route, wait)

    def flush(self) -> None:
        """Send what waits for others."""
        if self._count:
            self._do(self._sent, self._leave)

    def send(
        self,
        part: bytes,
        raws: list[Raw] | None = None,
        *,
        route: bytes = b"",
        number: int = 0,
        whose: str = "",
        piece: int = 0,
        thread: int = 0,
        urgent: bool = False,
    ) -> None:
        """Send a message, and *raws* after it in pieces.

        Args:
            part: the message.
            raws: what belongs to it and is large.
            route: by which connection.
            number: of the request.
            whose: the member that has given it that number; empty: this one.
            piece: bytes of one piece.
            thread: messages of the same one stay in order; 0: they need not.
            urgent: past what is held.
        """
        self._do(self._send_first, route, part, raws, number, piece, thread, whose, urgent)

    def wait_for_room(self, most: int, deadline: float | None) -> None:
        """Wait until at most *most* messages wait here, or nobody is there to take them.

        Args:
            most: that may wait.
            deadline: when the wait ends at the latest.
        """
        if len(self.backlog) <= most or self._inside == get_ident():
            return
        dedicated.about_to_block()
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._room:
            self._room.wait_for(
                lambda: self._closed or self._is_given_up or len(self.backlog) <= most, left
            )

    def give_up(self) -> None:
        """Hold nobody up any more: what waits here may never be sent."""
        with self._lock:
            self._is_given_up = True
            self._room.notify_all()

    def more(self, route: bytes, number: int) -> None:
        """Send the next piece of a message, for the receiver has taken one in."""
        self._do(self._sent, partial(self._pieces, (route, number), 1))

    def drop(self, number: int, whose: str = "") -> None:
        """Send no more of what belongs to a request, by whatever route it goes."""
        if self._streams:
            self._do(self._drop, number, whose)

    @property
    def is_empty(self) -> bool:
        """Whether all that was to be sent has been handed to ZeroMQ."""
        return not (self._streams or self.backlog or self._behind or self._count)

    def take(self, signalled: bool) -> list[Received]:
        """Return some of the messages that have come; called by the thread that receives.

        Args:
            signalled: that something came is known. To ask the socket costs as much as to receive,
                and to receive in vain more: what comes one by one is received without asking.
        """
        found: list[Received] = []
        self._do(self._take, signalled, found)
        return found

    def close(self, monitor: zmq.Socket[bytes] | None = None) -> None:
        """Close the socket, and the one that tells of its connection; safe to call again."""
        self._do(self._close, monitor)

    def _close(self, monitor: zmq.Socket[bytes] | None) -> None:
        self._closed = True
        self._streams.clear()
        self._behind.clear()
        self.backlog.clear()
        self._together.clear()
        self._count = 0
        self._room.notify_all()
        close(self._socket, monitor)

    def _do(self, act: Callable[..., object], *args: Any) -> None:
        """Call *act* with the lock held, unless the socket is closed.

        What calls this inside an operation of the same thread is run at that one's end, so that
        the parts of two messages never mix.
        """
        with self._lock:
            if self._inside:
                self._late.append(partial(act, *args))
                return
            self._inside = get_ident()
            try:
                if not self._closed:
                    act(*args)
            finally:
                self._inside = 0
        if self._late:
            self._do(self._run_late)

    def _run_late(self) -> None:
        while self._late and not self._closed:
            try:
                self._late.popleft()()
            except Exception:  # no error of the operation that it has interrupted
                logger.exception("A message could not be sent")

    def _sent(self, act: Callable[[], object]) -> None:
        act()
        self._look()

    def _put_small(self, part: bytes, route: bytes, wait: bool) -> None:
        if not (wait or self._count or self._held or self.backlog):
            # As below, where there is nothing but this: most replies leave so.
            try:
                self._try(route, [part])
            except zmq.Again:
                self.backlog.append((route, [part]))
            self._look()
            return
        others = self._together.get(route)
        if others is None:
            self._together[route] = [part]
        else:
            others.append(part)
        self._count += 1
        if not wait or self._count >= TOGETHER:
            self._leave()
            self._look()
        elif self._count == 1:
            self._reader.hold(self)

    def _send_first(
        self,
        route: bytes,
        part: bytes,
        raws: list[Raw] | None,
        number: int,
        piece: int,
        thread: int,
        whose: str,
        urgent: bool,
    ) -> None:
        self._leave()
        if thread and thread in self._behind:
            self._behind[thread].append((route, part, raws or [], number, piece))
            return
        if raws:
            self._send(route, part, raws, number, piece, thread, whose=whose, urgent=urgent)
        else:
            self._put(route, [part], urgent=urgent)
        self._look()

    def _drop(self, number: int, whose: str) -> None:
        for stream, sending in list(self._streams.items()):
            if stream[1] == number and sending.whose == whose:
                self._finished(stream)

    def _take(self, signalled: bool, found: list[Received]) -> None:
        if self.backlog:
            self._flush()
        if not signalled and not zmq.zmq_poll(self._asked, 0):
            return
        try:
            found.append(self._receive())
            if self._alone:
                self._alone -= 1
                return
            while len(found) < BATCH:
                found.append(self._receive())
        except zmq.Again:
            pass
        except Exception:
            self._skip()
            if not found:
                raise
            logger.exception("A message could not be received")
        if found:
            self._pause = min(2 * self._pause, SELDOM) if len(found) == 1 else 1
            self._alone = self._pause - 1

    def _skip(self) -> None:
        """Drop what is left of a message of which a part could not be received."""
        while self._socket.rcvmore:
            self._receive_part(_NOW)

    def _receive(self) -> Received:
        receive = self._receive_part
        route = receive(_NOW) if self._is_router else b""
        frame: Any = receive(_NOW, copy=False)
        part = frame.bytes
        sender = None
        if self._is_router:
            try:
                sender = frame.get("User-Id")
            except zmq.ZMQError:  # it has none: no keys are asked for here
                sender = route.partition(b"\0")[0].decode(errors="replace")
            if self._strangers:
                self._strangers.proven(frame.get(zmq.SRCFD))
        piece = None
        while frame.more:
            frame = receive(_NOW, copy=False)
            piece = frame.buffer if piece is None else memoryview(b"")
        return route, sender, part, piece

    def _leave(self) -> None:
        """Send what waits for others; called with the lock held, as are those below."""
        if not self._count:
            return
        together, self._together, self._count = self._together, {}, 0
        for route, parts in together.items():
            self._put(route, [parts[0] if len(parts) == 1 else say(Kind.MANY, *parts)])

    def _send(
        self,
        route: bytes,
        part: bytes,
        raws: list[Raw] | None,
        number: int,
        piece: int,
        thread: int,
        *,
        whose: str = "",
        urgent: bool = False,
    ) -> bool:
        sent = self._put(route, [part], urgent=urgent)
        if raws and sent:
            stream = (route, number)
            self._streams[stream] = _Sending(Outgoing(raws, piece), thread, whose)
            if thread:
                self._behind[thread] = deque()
            self._pieces(stream, self._window)
        return sent

    def _pieces(self, stream: Stream, count: int) -> None:
        sending = self._streams.get(stream)
        if sending is None:
            return
        outgoing = sending.pieces
        route, number = stream
        head = HEAD.pack(Kind.PIECE, 0, 0, 0, number)
        pieces = outgoing.take(count)
        for each in pieces:
            if not self._put(route, [head, each]):
                self._finished(stream)
                return
        if outgoing.left == 0:
            self._finished(stream)

    def _finished(self, stream: Stream) -> None:
        """Forget a message that has been sent, and send those of its thread that waited."""
        thread = self._streams.pop(stream).thread
        behind = self._behind.pop(thread, None) if thread else None
        while behind:
            route, part, raws, number, piece = behind.popleft()
            self._send(route, part, raws, number, piece, thread)
            if raws and thread in self._behind:
                self._behind[thread] = behind
                return

    def _put(self, route: bytes, parts: list[Raw], *, urgent: bool = False) -> bool:
        if (self._held or self.backlog) and not urgent:
            self.backlog.append((route, parts))
            return True
        try:
            return self._try(route, parts)
        except zmq.Again:
            self.backlog.append((route, parts))
            return True

    def _try(self, route: bytes, parts: list[Raw]) -> bool:
        send = self._send_part
        try:
            if self._is_router:
                send(route, _MORE)
            *others, last = parts
            for each in others:
                send(each, _MORE)
            send(last, _NOW, copy=len(last) < _COPIED or not ZeroCopy.is_ready())
        except zmq.Again:
            raise
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:  # that connection is no more
                return False
            raise
        return True

    def _flush(self) -> None:
        while self.backlog and not self._held:
            try:
                self._try(*self.backlog[0])
            except zmq.Again:
                break
            self.backlog.popleft()
        self._room.notify_all()

    def _look(self) -> None:
        """Have the reader look, if something came while the socket was touched."""
        if self._closed or self._reader.is_draining(self._source):
            return
        is_readable = bool(zmq.zmq_poll(self._asked, 0))
        if is_readable or not self.backlog:
            self._reader.tell(self._source, is_readable)
