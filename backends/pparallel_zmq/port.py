"""A socket that several threads send on, and one reads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import zmq

from pparallel.runtime import dedicated
from pparallel_zmq.reader import Reader, Source
from pparallel_zmq.sockets import Socket, close
from pparallel_zmq.streams import Outgoing
from pparallel_zmq.wire import HEAD, Kind, Raw, say

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

    Attributes:
        backlog: what waits.
    """

    def __init__(self, socket: Socket, reader: Reader, source: Source, window: int) -> None:
        self._socket, self._reader, self._source = socket, reader, source
        # To look these up on pyzmq's sockets takes a while.
        self._send_part: Callable[..., object] = socket.send
        self._receive_part: Callable[..., Any] = socket.recv
        self._asked: list[tuple[Any, int]] = [(socket, _READABLE)]
        self._window = window
        self._is_router = socket.type == zmq.ROUTER
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
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
        with self._lock:
            self._held = True

    def release(self) -> None:
        """Send what was kept."""
        with self._lock:
            self._held = False
            if self._closed:
                return
            self._flush()
            self._look()

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
        with self._lock:
            if self._closed:
                return
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

    def flush(self) -> None:
        """Send what waits for others."""
        with self._lock:
            if self._count and not self._closed:
                self._leave()
                self._look()

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
    ) -> bool:
        """Send a message, and *raws* after it in pieces; return whether there is a receiver.

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
        with self._lock:
            if self._closed:
                return False
            self._leave()
            if thread and thread in self._behind:
                self._behind[thread].append((route, part, raws or [], number, piece))
                return True
            if raws:
                sent = self._send(
                    route, part, raws, number, piece, thread, whose=whose, urgent=urgent
                )
            else:
                sent = self._put(route, [part], urgent=urgent)
            self._look()
            return sent

    def wait_for_room(self, most: int) -> None:
        """Wait until at most *most* messages wait here, or nobody is there to take them."""
        if len(self.backlog) <= most:
            return
        dedicated.about_to_block()
        with self._room:
            self._room.wait_for(
                lambda: self._closed or self._is_given_up or len(self.backlog) <= most
            )

    def give_up(self) -> None:
        """Hold nobody up any more: what waits here may never be sent."""
        with self._lock:
            self._is_given_up = True
            self._room.notify_all()

    def more(self, route: bytes, number: int) -> None:
        """Send the next piece of a message, for the receiver has taken one in."""
        with self._lock:
            if self._closed:
                return
            self._pieces((route, number), 1)
            self._look()

    def drop(self, number: int, whose: str = "") -> None:
        """Send no more of what belongs to a request, by whatever route it goes."""
        with self._lock:
            for stream in [
                stream
                for stream, sending in self._streams.items()
                if stream[1] == number and sending.whose == whose
            ]:
                self._finished(stream)

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
        with self._lock:
            if self._closed:
                return found
            if self.backlog:
                self._flush()
            if not signalled and not zmq.zmq_poll(self._asked, 0):
                return found
            try:
                found.append(self._receive())
                if self._alone:
                    self._alone -= 1
                    return found
                while len(found) < BATCH:
                    found.append(self._receive())
            except zmq.Again:
                pass
            if found:
                self._pause = min(2 * self._pause, SELDOM) if len(found) == 1 else 1
                self._alone = self._pause - 1
        return found

    def close(self, monitor: Socket | None = None) -> None:
        """Close the socket, and the one that tells of its connection; safe to call again."""
        with self._lock:
            self._closed = True
            self._streams.clear()
            self._behind.clear()
            self.backlog.clear()
            self._together.clear()
            self._count = 0
            self._room.notify_all()
            close(self._socket, monitor)

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
            send(last, _NOW, copy=len(last) < _COPIED)
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
