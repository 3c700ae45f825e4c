"""One socket to one other member, in the hub's hands: first introductions, then messages."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pparallel.errors import AuthenticationError
from pparallel.runtime import poll_times
from pparallel.runtime.links import Hello, RefusedError
from pparallel.runtime.processes import forget_in_children, remember_in_children
from pparallel.runtime.resources import is_exhausted
from pparallel_ipc import handshake, messages
from pparallel_ipc.alone import alone
from pparallel_ipc.handshake import Called, Caller
from pparallel_ipc.hub import NOT_SERVED, READ, WRITE, Hub
from pparallel_ipc.messages import Received
from pparallel_ipc.post import Post

logger = logging.getLogger(__name__)

_AT_ONCE = 32  #: packets that are read before others have their turn
_ALL = 1 << 20
_AGAIN = 0.001  #: seconds after which what found no memory is tried again
_END: Received = (b"", [], 0, None)
PATIENCE = 1.0  #: seconds that closing waits for who reads

Taken = Callable[[Any, list[int]], None]  #: (message, descriptors)
Ended = Callable[["Connection"], None]


class Connection:
    """A socket that the hub reads.

    Attributes:
        calling: whether it was made by this end, and answers come in by it.
        problem: why this end has ended it, if it has: what came cannot be served.
    """

    def __init__(self, sock: socket.socket, hub: Hub, *, calling: bool) -> None:
        self.calling = calling
        self.problem = ""
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, messages.SENDING)
        forget_in_children(sock.fileno())
        self.sock, self.hub = sock, hub
        self.post = Post(sock, hub)
        self._reading = threading.RLock()  # held by who reads; it may close what it reads
        self._poll = _poll(sock.fileno())  # for who reads in place of the hub
        self._reader = 0  # the thread that reads in place of the hub
        self._received: deque[Received] = deque()  # and not passed on yet
        self._decoded: tuple[Received | None, Any, list[int]] = (None, None, [])  # the first one
        self._taken: Taken | None = None
        self._ended: Ended | None = None

    def serve(self, taken: Taken, ended: Ended) -> None:
        """Pass messages on, and the end, from now on; the introductions are over."""
        self._taken, self._ended = taken, ended
        self.hub.unregister(self.sock.fileno())
        self.hub.register(self.sock.fileno(), self._event)

    def receive(self, is_done: Callable[[], bool], timeout: float) -> None:
        """Read in the calling thread until *is_done*, for *timeout* seconds at most.

        What comes is passed on in this thread, as long as it is an answer.
        """
        if self._taken is None:
            return
        alone(self._reading, partial(self._receive, is_done, time.monotonic() + timeout))
        if self._received:  # for the hub; if a signal's handler raises, it looks by itself
            self.hub.later(0.0, self._look)

    def is_read_here(self) -> bool:
        """Return whether the calling thread reads; a signal's handler may find that."""
        return self._reader == threading.get_ident()

    def take_back(self) -> None:
        """Have the hub read again, and whoever does now leave off soon."""
        self.hub.take_back(self.sock.fileno())

    def _receive(self, is_done: Callable[[], bool], until: float) -> None:
        number = self.sock.fileno()
        if number < 0:
            return
        before = self._reader
        try:
            self._reader = threading.get_ident()
            self.hub.lend(number)
            poll = _poll(number) if before else self._poll  # which serves one wait at a time
            while self._pass_on(by_hub=False):
                if is_done():  # before the next wait: what has just come may be all that is missing
                    return
                if not self._next(poll, until):
                    break
            self.hub.take_back(number)
        finally:
            self._reader = before

    def _next(self, poll: select.poll, until: float) -> bool:
        """Receive the next packet, or wait for it; return False if none comes."""
        left = until - time.monotonic()
        return self._take_in() or (left > 0 and bool(poll.poll(poll_times.milliseconds(left))))

    def drain(self) -> None:
        """Pass on what has come, and not be told of the end any more."""
        self._ended = None
        if self._taken is not None and self.sock.fileno() >= 0:
            with self._alone():
                self._read(_ALL)

    def close(self) -> None:
        """Close it; safe to call again."""
        with self._alone():
            number = self.sock.fileno()
            if number >= 0:
                self.post.die()
                self.hub.unregister(number)
                remember_in_children(number)
                self.sock.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Have nobody else read inside, unless that one does not leave off."""
        has = self._reading.acquire(timeout=PATIENCE)
        try:
            yield
        finally:
            if has:
                self._reading.release()

    def _event(self, said: int) -> None:
        try:
            if said & WRITE:
                self.post.can_write()
            if said & ~WRITE:
                self._read_some()
        except MemoryError:
            logger.warning("There is no memory for what has come; it is tried again")
            time.sleep(_AGAIN)
            self.hub.later(0.0, self._look)
        except Exception as error:  # noqa: BLE001 - logged, and told to the member of the other end
            self._fail(error)

    def _look(self) -> None:
        if self.sock.fileno() >= 0:
            self._event(READ)

    def _read_some(self) -> None:
        if not alone(self._reading, partial(self._read, _AT_ONCE)):
            self.hub.lend(self.sock.fileno())  # somebody else reads; look again a little later

    def _read(self, most: int) -> None:
        for _ in range(most):
            if not (self._pass_on(by_hub=True) and self._take_in()):
                return
        self._pass_on(by_hub=True)

    def _take_in(self) -> bool:
        """Receive the next packet; return False if there is none, or no memory for it just now."""
        while True:
            try:
                messages.receive_into(self.sock, self._received)
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionResetError:  # told once: what came before the end is there still
                continue
            except (OSError, MemoryError) as error:
                if is_exhausted(error):
                    time.sleep(_AGAIN)
                    return False
                self._received.append(_END)
            return True

    def _pass_on(self, *, by_hub: bool) -> bool:
        """Pass on what has been received; return whether all of it was, and more may come.

        What stays, as it is for the hub or what was called has raised, is passed on the next time.
        """
        received = self._received
        while received:
            packet = received[0]
            if self._decoded[0] is not packet:
                data, fds = messages.parts(packet)
                self._decoded = packet, messages.loads(data) if data else None, fds
            _, message, fds = self._decoded
            if not by_hub and (message is None or message[0] != messages.MANY):
                return False
            if message is None:
                self._end()
                return False
            assert self._taken is not None
            self._taken(message, fds)
            if received and received[0] is packet:  # a signal's handler may have been here
                received.popleft()
                self._decoded = (None, None, [])  # or the next one would need memory of its own
        return True

    def _fail(self, error: Exception) -> None:
        """End it, for who waits at the other end would do so for ever."""
        logger.error(NOT_SERVED, exc_info=error)
        if self._received:
            self._received.popleft()
        self.problem = f"cannot be served: {type(error).__name__}: {error}"
        self._end()

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        self.hub.unregister(self.sock.fileno())
        if ended is not None:
            ended(self)


def _poll(number: int) -> select.poll:
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return poll


class Visitor:
    """A connection that was accepted, until it has proved who it is."""

    def __init__(
        self,
        connection: Connection,
        called: Called,
        arena: int,
        let_in: Callable[[Visitor, Hello, list[int]], None],
        turned_away: Callable[[Visitor, str], None],
    ) -> None:
        self.connection, self.called = connection, called
        self._arena, self._let_in, self._turned_away = arena, let_in, turned_away
        self.is_done = False
        connection.hub.register(connection.sock.fileno(), self._event)

    def turn_away(self, why: str) -> None:
        """End it, and say why."""
        if self.is_done:
            return
        self.is_done = True
        try:
            self.connection.sock.send(handshake.refusal(why), socket.MSG_NOSIGNAL)
        except OSError:
            logger.debug("a visitor had gone before it was told: %s", why)
        self.connection.close()
        self._turned_away(self, why)

    def _event(self, said: int) -> None:
        fds: list[int] = []
        try:
            data, fds = messages.receive_with(self.connection.sock)
            if not data:
                raise RefusedError("it went away")
            answer, hello = self.called.take(data)
            if hello is None:
                messages.close(fds)
                fds = []
            self._say(answer, last=hello is not None)
        except BlockingIOError:
            return
        except (OSError, RefusedError, AuthenticationError) as error:
            messages.close(fds)
            self.turn_away(str(error))
            return
        if hello is not None:
            self.is_done = True
            self._let_in(self, hello, fds)

    def _say(self, answer: bytes, *, last: bool) -> None:
        sock = self.connection.sock
        if last and self._arena >= 0:
            messages.send_with(sock, answer, [self._arena])
        else:
            sock.send(answer, socket.MSG_NOSIGNAL)


class Approach:
    """A connection that this end has made, until it is let in."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        caller: Caller,
        arena: int,
        let_in: Callable[[Connection, Hello, list[int]], None],
        failed: Callable[[Connection, str, Exception], None],
    ) -> None:
        self._connection, self._name, self._caller = connection, name, caller
        self._arena, self._let_in, self._failed = arena, let_in, failed
        self._hello: Hello | None = None
        connection.sock.send(caller.first(), socket.MSG_NOSIGNAL)
        connection.hub.register(connection.sock.fileno(), self._event, READ)

    def _event(self, said: int) -> None:
        sock = self._connection.sock
        fds: list[int] = []
        try:
            try:
                data, fds = messages.receive_with(sock)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionResetError("the connection was closed")
            if self._hello is None:
                self._hello, proof = self._caller.answer(data, self._name)
                if self._arena >= 0:
                    messages.send_with(sock, proof, [self._arena])
                else:
                    sock.send(proof, socket.MSG_NOSIGNAL)
                return
            self._caller.check_welcome(data)
        except (OSError, RefusedError, AuthenticationError) as error:
            messages.close(fds)
            self._connection.hub.unregister(sock.fileno())
            self._failed(self._connection, self._name, error)
            return
        self._let_in(self._connection, self._hello, fds)
