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
from contextlib import suppress
from time import monotonic
from typing import Any

import zmq
from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.event_fd import EventFd
from pparallel.runtime.resources import start_thread
from pparallel.runtime.waits import Spin, milliseconds
from pparallel_zmq import messages
from pparallel_zmq.messages import MORE_BACK, BadMessageError, Incoming, Part
from pparallel_zmq.sockets import EVENTS, MORE, NOW, POLLIN, POLLOUT, Socket, Sockets

logger = logging.getLogger(__name__)

MOST = 8  #: direct connections to one member

_REFUSED = bytes([messages.REFUSED])


class EndedError(Exception):
    """Raised where a direct connection has ended, or is closed."""


def _never() -> bool:
    return False


class DirectConnection:
    """One end: one thread at a time uses it, and any closes it.

    Attributes:
        until: when a wait for a message ends, by :func:`time.monotonic`.
    """

    def __init__(self, sockets: Sockets, *mine: Socket) -> None:
        """Take a socket, and its monitor if it has one: they are closed if that fails.

        Raises:
            OSError: there is no descriptor for it.
        """
        self._sockets, self._mine, self._socket = sockets, mine, mine[0]
        self._limits, self._window = sockets.limits, sockets.window
        self._lock = threading.Lock()  # guards the socket
        self._is_closed = self._waits = self._has_sent = False
        self.until: float | None = None
        try:
            self._wake = EventFd()
            self._poll = select.poll()
            for each in (self._socket.fileno(), self._wake.fd):
                self._poll.register(each, select.POLLIN)
        except BaseException:
            sockets.close(*mine)
            raise
        self._next = Spin(self._wait, self._look).receive  # returns the next part

    def send(self, frames: Frames, kind: int = messages.FRAMES) -> None:
        """Send a message; of a large one a few pieces at a time.

        Raises:
            TimeoutError: the other end did not take it in time.
            EndedError: the other end is gone.
        """
        under_way = 0
        for parts in messages.pack(frames, self._limits, kind):
            if len(parts) > 1:
                if under_way == self._window:
                    if self._next() != MORE_BACK:
                        raise EndedError
                    under_way -= 1
                under_way += 1
            self._send(*parts)

    def receive(self) -> list[Buffer]:
        """Return the next message.

        Raises:
            TimeoutError: none came in time.
            SerializationError: the other end cannot send it.
            EndedError: the other end is gone, or has sent what is no message.
        """
        while (part := self._next()) == MORE_BACK:
            pass
        is_refused = part[:1] == _REFUSED
        try:
            found = messages.unpack(part, self._limits)
            while isinstance(found, Incoming):
                is_last = found.feed(self._next(), memoryview(self._next()))
                self._send(MORE_BACK)
                if is_last:
                    found = found.frames()
        except BadMessageError as error:
            logger.warning("A direct connection is closed: %s", error)
            raise EndedError from None
        if is_refused:
            raise SerializationError("the result", bytes(found[0]).decode())
        return found

    def close(self) -> None:
        """Close it, and wake the thread that waits on it; safe to call again."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._sockets.close(*self._mine)
                self._wake.set()
                self._close_wake()

    def _close_wake(self) -> None:
        """Close the descriptor, unless a thread waits for it; called with the lock held."""
        if self._is_closed and not self._waits:
            self._wake.close()

    def _send(self, *parts: Part) -> None:
        with self._lock:
            if self._is_closed:
                raise EndedError
            try:
                for each in parts[:-1]:
                    self._socket.send(each, MORE)
                self._socket.send(parts[-1], NOW)
            except zmq.Again:  # there is room for all that is sent
                raise EndedError from None
            self._has_sent = True

    def _look(self) -> bytes | None:
        with self._lock:
            return self._take()

    def _take(self) -> bytes | None:
        """Return a part if one has come; called with the lock held."""
        while not self._is_closed:
            try:
                # Not a frame of pyzmq: the end of one loses what a signal's handler raises.
                return self._socket.recv(NOW)
            except zmq.Again:
                # Only this has the socket look at all that its descriptor has reported.
                events = int(self._socket.getsockopt(EVENTS))
                if not events & POLLOUT:
                    break
                if not events & POLLIN:
                    return None
        raise EndedError

    def _wait(self) -> bytes:
        part = self._wait_unless(_never)
        assert part is not None
        return part

    def _wait_unless(self, is_done: Callable[[], bool]) -> bytes | None:
        """Return the next part; None: *is_done* before one has come."""
        while not is_done():
            with self._lock:
                part = self._take()
                if part is not None:
                    return part
                self._waits = True
            try:
                left = None if self.until is None else max(0.0, self.until - monotonic())
                ready = self._poll.poll(milliseconds(left))
                if (self._wake.fd, select.POLLIN) in ready:
                    self._wake.clear()  # before it is looked whether it is done
                if not ready and left == 0.0:
                    raise TimeoutError
            finally:
                with self._lock:
                    self._waits = False
                    self._close_wake()
        return None


class DirectCaller(DirectConnection):
    """The caller's end, which is bound."""

    def is_served(self, name: str | None) -> bool:
        """Return whether a thread of member *name* answers at the other end.

        Nothing is sent before, so that what was sent may have been received, and an end that comes
        later is an error.

        Raises:
            EndedError: another one is there.
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
        self._sockets.strangers.proven(int(found.get(zmq.SRCFD)))
        return True

    def exchange(self, frames: Frames, timeout: float | None) -> Frames | None:
        """Send a request, and return the reply; None: the other end is gone, and nothing was sent.

        Raises:
            TimeoutError: none came within *timeout* seconds.
            EndedError: the other end is gone.
        """
        self.until = None if timeout is None else monotonic() + timeout
        self._has_sent = False
        try:
            self.send(frames)
        except EndedError:
            if self._has_sent:
                raise
            return None
        return self.receive()


class DirectServer(DirectConnection):
    """The end that answers, in a thread of its own, one request at a time."""

    def __init__(
        self,
        sockets: Sockets,
        socket: Socket,
        answer: Callable[[Frames], Frames | Future[Frames]],
        name: str,
        ended: Callable[[DirectServer], object],
    ) -> None:
        """Take a socket.

        Args:
            sockets: closes it.
            socket: connected to the caller's end.
            answer: called with each request.
            name: of the thread.
            ended: called last.

        Raises:
            OSError: there is no descriptor for it.
        """
        super().__init__(sockets, socket)
        self._answer, self._ended = answer, ended
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def _serve(self) -> None:
        try:
            self.send((), messages.SERVED)
            while True:
                reply = self._reply(self.receive())
                try:
                    self.send(reply)
                except SerializationError as error:  # it exceeds the limits, and nothing was sent
                    self.send([str(error).encode()], messages.REFUSED)
                del reply
        except EndedError:
            logger.debug("a caller is gone, or has given up")
        except Exception:
            logger.exception("A request could not be answered")
        finally:
            self.close()
            self._ended(self)

    def _reply(self, request: Frames) -> Frames:
        reply = self._answer(request)
        if not isinstance(reply, Future):
            return reply
        reply.add_done_callback(lambda _: self._wake.set())
        if self._wait_unless(reply.done) is not None:
            raise EndedError  # it sends before it is answered
        return reply.result()


class DirectConnections:
    """The direct connections to one other member, and from it."""

    def __init__(self, name: str | None, patience: float) -> None:
        """Have none.

        Args:
            name: of the other member; None: there are no keys, by which it would prove to be it.
            patience: seconds that the other end may take to connect.
        """
        self._name, self._patience = name, patience
        self._idle: list[DirectCaller] = []
        self._callers: set[DirectConnection] = set()
        self._servers: set[DirectConnection] = set()
        self._coming: DirectCaller | None = None  # the other end of which has not connected yet
        self._not_before = 0.0  # when another is made
        self._has_ended = False
        self._lock = threading.RLock()  # guards all but the idle ones

    def take(self, make: Callable[[], DirectCaller | None]) -> DirectCaller | None:
        """Return one that is idle; None: there is none now, and one may be on its way.

        Args:
            make: makes another one, if it can, and asks the other end to connect.
        """
        try:
            return self._idle.pop()  # the one used last: what it needs is in the caches
        except IndexError:
            return self._new(make)

    def _new(self, make: Callable[[], DirectCaller | None]) -> DirectCaller | None:
        with self._lock:
            coming, now, is_served = self._coming, monotonic(), False
            if coming is not None:
                with suppress(EndedError):
                    is_served = coming.is_served(self._name)
                    if not is_served and now < self._not_before:
                        return None
                self._coming = None
                if is_served:
                    self._not_before = 0.0
                    return coming
                self.drop(coming)
            elif now >= self._not_before and len(self._callers) < MOST and not self._has_ended:
                self._not_before = now + self._patience
                self._coming = make()
                if self._coming is not None:
                    self._callers.add(self._coming)
            return None

    def give_back(self, connection: DirectCaller) -> None:
        """Keep one that a thread has used."""
        self._idle.append(connection)

    def start(self, server: DirectServer) -> None:
        """Have the other member served, unless it has ended.

        Raises:
            ResourceExhaustedError: there is no thread for it.
        """
        with self._lock:
            self._servers.add(server)
            try:
                if not self._has_ended:
                    start_thread(server.thread)
                    return
            except BaseException:
                self.drop(server)
                raise
            self.drop(server)

    def drop(self, connection: DirectConnection) -> None:
        """Close one that is of no use any more."""
        connection.close()
        with self._lock:
            self._callers.discard(connection)
            self._servers.discard(connection)

    def close(self) -> None:
        """Close all: the threads that wait on them see it."""
        with self._lock:
            self._has_ended = True
            for each in [*self._callers, *self._servers]:
                each.close()
