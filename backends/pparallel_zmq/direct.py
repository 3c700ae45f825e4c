"""Direct connections: sockets on which a caller waits itself, each with a thread at the other end.

An exchange takes an idle one, sends, and blocks until the reply is there: no thread hands anything
to another on either side. The caller binds it and sends its address, and the other end connects.
One whose reply did not come is closed, for it may come yet.
"""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

import zmq
from typing_extensions import Buffer

from pparallel.interfaces.transport import Frames, Receiver
from pparallel.runtime.event_fd import EventFd
from pparallel.runtime.spin import Spin
from pparallel.runtime.timers import milliseconds
from pparallel_zmq import messages
from pparallel_zmq.memory import Memory
from pparallel_zmq.messages import BadMessageError, Incoming, Limits, Parts
from pparallel_zmq.sockets import NOW, Socket, Sockets

logger = logging.getLogger(__name__)

MOST = 8  #: direct connections to one member

_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS, _POLLIN, _POLLOUT = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.POLLOUT)


class EndedError(Exception):
    """Raised where a direct connection has ended, or is closed."""


class DirectConnection:
    """One end: one thread at a time waits on it, and any closes it."""

    def __init__(self, socket: Socket, sockets: Sockets, limits: Limits, memory: Memory) -> None:
        """Take a socket, which is closed if that fails.

        Raises:
            OSError: there is no descriptor for it.
        """
        self._socket, self._sockets, self._limits, self._memory = socket, sockets, limits, memory
        self._lock = threading.Lock()  # guards the socket
        self._is_closed = self._waits = False
        self._until: float | None = None
        try:
            self._wake = EventFd()
            self._poll = select.poll()
            for each in (socket.fileno(), self._wake.fd):
                self._poll.register(each, select.POLLIN)
        except BaseException:
            sockets.close(socket)
            raise
        self._next: Callable[[], Any] = Spin(self._wait, self._look).receive

    def send(self, message: list[Parts]) -> None:
        """Send a message and its pieces.

        Raises:
            EndedError: the other end is gone.
        """
        with self._lock:
            if self._is_closed:
                raise EndedError
            try:
                for head, *pieces in message:
                    self._socket.send(head, _MORE if pieces else NOW)
                    for each in pieces:
                        self._socket.send(each, NOW)
            except zmq.Again:
                raise EndedError from None  # there is room for all that is sent

    def receive(self, until: float | None) -> list[Buffer]:
        """Return the next message, by *until*, a time of :func:`time.monotonic`.

        Raises:
            TimeoutError: none came in time.
            EndedError: the other end is gone, or has sent what is no message.
        """
        self._until = until
        try:
            found = messages.unpack(self._next().bytes, self._limits, self._memory)
            while isinstance(found, Incoming):
                head = self._next().bytes
                if found.feed(head, memoryview(self._next().buffer)):
                    found = found.frames()
        except BadMessageError as error:
            logger.warning("A direct connection is closed: %s", error)
            raise EndedError from None
        return found

    def close(self) -> None:
        """Close it, and wake the thread that waits on it; safe to call again."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._sockets.close(self._socket)
                self._wake.set()
                self._close_wake()

    def _close_wake(self) -> None:
        """Close the descriptor, unless a thread waits for it; called with the lock held."""
        if self._is_closed and not self._waits:
            self._wake.close()

    def _look(self) -> Any:
        with self._lock:
            return self._take()

    def _take(self) -> Any:
        """Return a part if one has come; called with the lock held."""
        while not self._is_closed:
            try:
                return self._socket.recv(NOW, copy=False)
            except zmq.Again:
                # Only this has the socket look at all that its descriptor has reported.
                events = int(self._socket.getsockopt(_EVENTS))
                if not events & _POLLOUT:
                    break
                if not events & _POLLIN:
                    return None
        raise EndedError

    def _wait(self) -> Any:
        while True:
            with self._lock:
                part = self._take()
                if part is not None:
                    return part
                self._waits = True
            try:
                left = None if self._until is None else max(0.0, self._until - monotonic())
                if not self._poll.poll(milliseconds(left)) and left == 0.0:
                    raise TimeoutError
            finally:
                with self._lock:
                    self._waits = False
                    self._close_wake()


class Outgoing(DirectConnection):
    """The caller's end, which is bound.

    Attributes:
        address: where it is bound.
        since: when it was, by :func:`time.monotonic`.
    """

    def __init__(
        self, socket: Socket, address: str, sockets: Sockets, limits: Limits, memory: Memory
    ) -> None:
        super().__init__(socket, sockets, limits, memory)
        self.address, self.since = address, monotonic()

    def is_served(self, name: str | None) -> bool:
        """Return whether a thread of member *name* answers at the other end.

        Nothing is sent before, so that what was sent may have been received, and an end that comes
        later is an error.

        Raises:
            EndedError: another one is there, or nobody any more.
        """
        with self._lock:
            if self._is_closed:
                raise EndedError
            try:
                found: Any = self._socket.recv(NOW, copy=False)
            except zmq.Again:
                return False
        if name is not None and found.get("User-Id") != name:
            raise EndedError
        return True

    def exchange(self, message: list[Parts], timeout: float | None) -> Frames:
        """Send a request, and return the reply.

        Raises:
            TimeoutError: none came within *timeout* seconds.
            EndedError: the other end is gone.
        """
        until = None if timeout is None else monotonic() + timeout
        self.send(message)
        return self.receive(until)


class DirectServer(DirectConnection):
    """The end that answers, in a thread of its own, one request at a time."""

    def __init__(
        self,
        socket: Socket,
        sockets: Sockets,
        limits: Limits,
        memory: Memory,
        sender: str,
        receiver: Receiver,
        ended: Callable[[DirectServer], object],
    ) -> None:
        """Know whom to ask.

        Args:
            sender: the member at the other end.
            receiver: answers its requests.
            ended: called last.

        Raises:
            OSError: there is no descriptor for it.
        """
        super().__init__(socket, sockets, limits, memory)
        self._sender, self._receiver, self._ended = sender, receiver, ended
        name = f"direct-of-{sender}"
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def _serve(self) -> None:
        try:
            self.send(messages.pack([], self._limits, messages.SERVED))
            while True:
                reply = self._receiver.on_exchange(self._sender, self.receive(None))
                if isinstance(reply, Future):
                    reply.add_done_callback(self._reply_later)
                else:
                    self.send(messages.pack(reply, self._limits))
                del reply
        except EndedError:
            logger.debug("a caller is gone, or has given up")
        except Exception:
            logger.exception("A request of %s could not be answered", self._sender)
        finally:
            self.close()
            self._ended(self)

    def _reply_later(self, done: Future[Frames]) -> None:
        try:
            self.send(messages.pack(done.result(), self._limits))
        except EndedError:
            self._wake.set()  # the use of a socket takes what its descriptor reports
        except BaseException:
            logger.exception("A request of %s could not be answered", self._sender)
            self.close()


class DirectConnections:
    """The direct connections to one other member, and from it."""

    def __init__(self, name: str | None, patience: float) -> None:
        """Have none.

        Args:
            name: of the other member; None: there are no keys, by which it would prove to be it.
            patience: seconds that the other end may take to connect.
        """
        self._name, self._patience = name, patience
        self._idle: list[Outgoing] = []
        self._all: set[DirectConnection] = set()
        self._coming: Outgoing | None = None  # the other end of which has not connected yet
        self._not_before = 0.0  # when another is made
        self._lock = threading.RLock()  # guards all but the idle ones
        self._has_ended = False

    def take(self, make: Callable[[], Outgoing | None]) -> Outgoing | None:
        """Return one that is idle; None: there is none now, and one may be on its way.

        Args:
            make: makes another one, if it can, and asks the other end to connect.
        """
        try:
            return self._idle.pop()  # the one used last: what it needs is in the caches
        except IndexError:
            return self._new(make)

    def _new(self, make: Callable[[], Outgoing | None]) -> Outgoing | None:
        with self._lock:
            now, coming = monotonic(), self._coming
            if coming is not None:
                try:
                    if coming.is_served(self._name):
                        self._coming = None
                        return coming
                except EndedError:
                    pass
                else:
                    if now < coming.since + self._patience:
                        return None
                self.drop(coming)
            elif now >= self._not_before and len(self._all) < MOST and not self._has_ended:
                self._coming = make()
                if self._coming is not None:
                    self._all.add(self._coming)
                    return None
            self._coming, self._not_before = None, now + self._patience
            return None

    def give_back(self, connection: Outgoing) -> None:
        """Keep one that a thread has used."""
        self._idle.append(connection)
        if self._has_ended:
            self.close()

    def add(self, server: DirectServer) -> bool:
        """Take note of one that serves the other member; False: that has ended."""
        with self._lock:
            if not self._has_ended:
                self._all.add(server)
            return not self._has_ended

    def drop(self, connection: DirectConnection) -> None:
        """Close one that is of no use any more."""
        connection.close()
        with self._lock:
            self._all.discard(connection)

    def close(self) -> None:
        """Close all: the threads that wait on them see it."""
        with self._lock:
            self._has_ended = True
            found, self._all = self._all, set()
        for each in found:
            each.close()
