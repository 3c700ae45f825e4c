"""A socket that several threads send on, and one reads."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any

import zmq

from pparallel.runtime import dedicated
from pparallel_zmq.reader import Reader, Source
from pparallel_zmq.sockets import Connection, ZeroCopy
from pparallel_zmq.streams import Outgoing
from pparallel_zmq.wire import HEAD, Kind, Limits, Raw

logger = logging.getLogger(__name__)

BATCH = 16  #: messages that are taken in at a time

Stream = tuple[bytes, int]  #: route and number
_Sending = tuple[bytes, Sequence[Raw], int, bytes, int, str, bool]  #: what Port.send takes

#: A message as it came from a socket: the connection it came by, which is empty on a socket that
#: has one alone; who is on the other end, as was proven or, without keys, claimed; and its parts.
Received = tuple[bytes, str | None, bytes, memoryview | None]

# Plain numbers: to combine or compare pyzmq's own takes as long as to send.
_IN = int(zmq.POLLIN)
_IN_OR_OUT = int(zmq.POLLIN | zmq.POLLOUT)
_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_COPIED = 2**16  #: bytes, below which a copy takes less than to do without


class Port:
    """Sends and takes in, one thread at a time.

    What ZeroMQ has no room for waits here, in order. Large messages are sent piece by piece, so
    that others pass them; those of the same thread, in whose order they are to arrive, do not.

    A signal handler or a finalizer may call it inside another operation of the same thread: the
    call is left to the thread that takes in. A handler may also raise between two parts: so the
    main thread, where they run, leaves what has several to that thread, too.
    """

    def __init__(
        self,
        connection: Connection,
        reader: Reader,
        source: Source,
        limits: Limits,
        unsent: Callable[[str, bytes, int, Exception], None],
        proven: Callable[[int], None] | None = None,
        held: bool = False,
    ) -> None:
        """Send and take in by a socket, which is used here alone from now on.

        Args:
            connection: that of the socket.
            reader: whose thread takes in.
            source: what the reader drains if something comes.
            limits: of messages.
            unsent: called with whose, route and number of a message that was left and could not be
                sent, and with why.
            proven: called with the descriptor of a connection by which a message has come.
            held: whether to keep what is sent, but what is urgent, until :meth:`release`.
        """
        self._connection, self._reader, self._source = connection, reader, source
        self._socket = socket = connection.made[0]
        self._limits, self._unsent, self._proven = limits, unsent, proven
        # To look these up on pyzmq's sockets takes a while.
        self._send_part: Callable[..., object] = socket.send
        self._receive_part: Callable[..., Any] = socket.recv
        self._asked: list[tuple[Any, int]] = [(socket, _IN)]
        self._is_router = socket.type == zmq.ROUTER
        self._lock = threading.RLock()
        self._is_inside = False  # an operation of the thread that holds the lock
        self._left: deque[partial[Any]] = deque()  # to the thread that takes in
        self._held_up: dedicated.Role | None = None  # what that thread is otherwise
        self._backlog: deque[tuple[bytes, list[Raw]]] = deque()
        # Large ones that are being sent, each with its thread and whose it is.
        self._streams: dict[Stream, tuple[int, str, Outgoing]] = {}
        self._behind: dict[int, list[_Sending]] = {}  # what waits for the end of those, by thread
        self._main = threading.main_thread().ident
        self._held, self._closed = held, False
        self.fd = int(socket.getsockopt(zmq.FD))

    def release(self) -> None:
        """Send what was held, and hold nothing any more."""
        self._held = False
        self._do(self._flush)

    def send(
        self,
        part: bytes,
        raws: Sequence[Raw] = (),
        number: int = 0,
        route: bytes = b"",
        thread: int = 0,
        whose: str = "",
        urgent: bool = False,
    ) -> None:
        """Send a message.

        Args:
            part: all of it, or its head if it is large.
            raws: what follows a large one in pieces.
            number: of the request that it belongs to.
            route: by which connection.
            thread: messages of the same one stay in order; 0: they need not.
            whose: the member that has given it that number; empty: this one.
            urgent: past what is held.
        """
        message = (part, raws, number, route, thread, whose, urgent)
        has_several = raws or self._is_router
        # What follows one that was left stays behind it.
        if (self._left or (has_several and get_ident() == self._main)) and not urgent:
            self._leave(partial(self._send, message))
        else:
            self._do(self._send, message)

    def more(self, route: bytes, number: int) -> None:
        """Send the next piece of a message, for the receiver has taken one in."""
        self._do(self._send_pieces, (route, number), 1)

    def drop(self, number: int, whose: str = "") -> None:
        """Send no more of what belongs to a request, by whatever route it goes."""
        if self._streams or self._left:
            self._leave(partial(self._drop, number, whose))

    @property
    def is_empty(self) -> bool:
        """Whether all that was to be sent has been handed to ZeroMQ."""
        return not (self._left or self._streams or self._backlog or self._behind)

    def take(self, is_there: bool) -> list[Received]:
        """Return some of the messages that have come; called by the thread that receives.

        Args:
            is_there: that one has come is known; it is returned alone. To ask costs as much as to
                receive, and who replies to that one looks whether others came meanwhile.
        """
        found: list[Received] = []
        self._do(self._take, found, is_there)
        return found

    def close(self) -> None:
        """Close the socket, and the one that tells of its connection; safe to call again."""
        self._do(self._close)

    def _close(self) -> None:
        self._closed = True
        self._streams.clear()
        self._behind.clear()
        self._backlog.clear()
        self._left.clear()
        self._connection.close()

    def _leave(self, act: partial[Any]) -> None:
        self._left.append(act)
        self._reader.wake(self._source)

    @dedicated.exclusive
    def _do(self, act: Callable[..., object], *args: Any) -> None:
        """Call *act* with the lock held, unless this is closed; then look what came meanwhile.

        It is not looked where *act* returns True: it has done so itself.
        """
        with self._lock:
            if self._is_inside:
                self._leave(partial(act, *args))
                if self._held_up is None:  # what waits for that would wait for itself
                    self._held_up = dedicated.here.role
                    dedicated.mark_receiving()
                return
            try:
                self._is_inside = True
                if not self._closed and not act(*args) and not self._closed:
                    self._look()
            except BaseException:  # as of a signal's handler: nobody else tells what came meanwhile
                self._reader.wake(self._source)
                raise
            finally:
                self._is_inside = False
                if self._held_up is not None:
                    dedicated.here.role, self._held_up = self._held_up, None

    def _look(self) -> None:
        """Have the reader look, if something came, or there is room, while the socket was used."""
        waits = self._backlog and not self._held
        if zmq.zmq_poll([(self._socket, _IN_OR_OUT)] if waits else self._asked, 0):
            self._reader.wake(self._source)

    def _drop(self, number: int, whose: str) -> None:
        for stream, (_, name, _) in list(self._streams.items()):
            if stream[1] == number and name == whose:
                self._finished(stream)

    # -- what comes ---------------------------------------------------------------------------

    def _take(self, found: list[Received], is_there: bool) -> bool:
        if self._left:
            self._do_what_was_left()
        if self._backlog:
            self._flush()
        try:
            if is_there:
                found.append(self._receive())
                return not self._backlog
            # To ask takes a third of what it takes to receive in vain.
            while len(found) < BATCH and zmq.zmq_poll(self._asked, 0):
                found.append(self._receive())
        except zmq.Again:
            pass
        except Exception:
            while self._socket.rcvmore:  # the rest of a message of which a part was not received
                self._receive_part(_NOW)
            if not found:
                raise
            logger.exception("A message could not be received")
            return False  # others may be there
        return not self._backlog

    def _do_what_was_left(self) -> None:
        for _ in range(len(self._left)):
            act = self._left.popleft()
            try:
                act()
            except Exception as error:
                logger.exception("A message could not be sent")
                if act.func == self._send:
                    _, _, number, route, _, whose, _ = act.args[0]
                    self._unsent(whose, route, number, error)

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
            if self._proven is not None:
                self._proven(frame.get(zmq.SRCFD))
        piece = None
        while frame.more:
            frame = receive(_NOW, copy=False)
            piece = frame.buffer if piece is None else memoryview(b"")
        return route, sender, part, piece

    # -- what leaves --------------------------------------------------------------------------

    def _send(self, message: _Sending) -> None:
        """Send a message, after those of its thread."""
        part, raws, number, route, thread, whose, urgent = message
        if thread in self._behind:
            self._behind[thread].append(message)
            return
        is_sent = self._put(route, [part], urgent=urgent)
        if raws and is_sent:
            self._streams[route, number] = thread, whose, Outgoing(raws, self._limits.piece)
            if thread:
                self._behind[thread] = []
            self._send_pieces((route, number), self._limits.window)

    def _send_pieces(self, stream: Stream, count: int) -> None:
        if stream not in self._streams:
            return
        route, number = stream
        outgoing = self._streams[stream][2]
        head = HEAD.pack(Kind.PIECE, 0, 0, 0, number)
        is_sent = all(self._put(route, [head, each]) for each in outgoing.take(count))
        if outgoing.left == 0 or not is_sent:
            self._finished(stream)

    def _finished(self, stream: Stream) -> None:
        """Forget a message that has been sent, and send those of its thread that waited."""
        thread = self._streams.pop(stream)[0]
        for each in self._behind.pop(thread, ()):
            self._send(each)  # behind another one if that is large, too

    def _put(self, route: bytes, parts: list[Raw], *, urgent: bool = False) -> bool:
        """Send the parts of a message, now or later; return whether the connection is there."""
        if urgent or not (self._held or self._backlog):
            try:
                return self._try(route, parts)
            except zmq.Again:
                self._backlog.append((route, parts))
        else:
            self._backlog.append((route, parts))
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
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:  # that connection is no more
                return False
            raise
        except BaseException:  # as of a signal's handler: the next message is not to be its rest
            if self._is_router or len(parts) > 1:
                with suppress(zmq.ZMQError):
                    send(b"", _NOW)
            raise
        return True

    def _flush(self) -> None:
        while self._backlog and not self._held:
            try:
                self._try(*self._backlog[0])
            except zmq.Again:
                break
            self._backlog.popleft()
