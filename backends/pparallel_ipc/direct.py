"""Direct connections: sockets on which a caller waits itself, each with a thread at the other end.

An exchange takes an idle one, sends, and blocks until the reply is there: no thread hands anything
to another on either side. One is made when all others are in use; one whose reply did not come is
closed, for it may come yet.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from pparallel.errors import CallTimeoutError, ResourceExhaustedError
from pparallel.interfaces.transport import Frames, Receiver
from pparallel.runtime.memory import Packed, Payload
from pparallel.runtime.memory.payload import VERSION
from pparallel.runtime.resources import explained, is_exhausted
from pparallel.runtime.waits import Spin, milliseconds
from pparallel_ipc import messages
from pparallel_ipc.messages import PACKET, dumps, loads

if TYPE_CHECKING:
    from pparallel_ipc.connection import Connection

logger = logging.getLogger(__name__)

_SERVED = b"S"  #: the first packet of the end that answers
_HOW = int(socket.MSG_NOSIGNAL)  # to look up Python's own takes longer
_LOOK = int(socket.MSG_DONTWAIT)


def new_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a direct connection."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, messages.SENDING)
    return ends


class DirectConnection:
    """One end of a direct connection, on which one thread receives.

    Attributes:
        until: when a wait for a packet ends, by :func:`time.monotonic`.
        keeps: whether the memory of what was sent is left to the other end as this one ends.
    """

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._sock, self._name, self.keeps = sock, name, False
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self.until: float | None = None
        self._timeout = 0.0  # seconds that it takes, for the error
        self._receive = Spin(self._wait, self._look).receive

    def end(self) -> None:
        """Wake the thread that waits on it; any thread may call this, and again."""
        messages.shut_down(self._sock)

    def _look(self, how: int = _LOOK) -> bytes | None:
        try:
            return self._sock.recv(PACKET, how)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return self._sock.recv(PACKET, how)  # what came before the end is there still

    def _wait(self) -> bytes:
        while True:
            left = None if self.until is None else max(0.0, self.until - monotonic())
            if left is not None:
                self._poll.poll(milliseconds(left))
            # Without a limit one call of the system does: each may lose the interpreter's lock to a
            # thread that computes.
            data = self._look(0 if left is None else _LOOK)
            if data is not None:
                return data
            if left == 0.0:
                raise CallTimeoutError(f"a request to {self._name!r}", self._timeout)


class DirectCaller(DirectConnection):
    """The caller's end.

    Attributes:
        is_served: whether a thread answers at the other end. Nothing is sent before, so that what
            was sent may have been received, and an end that comes later is an error.
    """

    def __init__(self, sock: socket.socket, name: str) -> None:
        super().__init__(sock, name)
        self.is_served = False

    def exchange(self, frames: Frames, shared: Connection, timeout: float | None) -> Frames | None:
        """Send a request, and return the reply; None: the other end is gone.

        Args:
            frames: the request.
            shared: the connection to the same member; it may learn of that one's arena before the
                reply is there.
            timeout: seconds.

        Raises:
            CallTimeoutError: no reply came within *timeout* seconds.
            ResourceExhaustedError: there is no room for the request, or at the other end for the
                reply.
        """
        self.until = until = None if timeout is None else monotonic() + timeout
        self._timeout = timeout or 0.0
        packed: Packed = ()
        try:
            if not self.is_served:
                self.is_served = self._receive() == _SERVED
                if not self.is_served:
                    return None
            packed = shared.payload.pack(frames)
            self._sock.send(dumps((packed, until), VERSION), _HOW)
            data = self._receive()
        except (BrokenPipeError, ConnectionResetError):
            data = b""
        if not data:
            if not self.keeps:
                shared.payload.drop(packed)
            return None
        packed, problem = loads(data)
        if problem is not None:
            raise ResourceExhaustedError(*problem)
        return shared.payload.unpack(packed)

    def close(self) -> None:
        """Close it; no thread may be waiting on it."""
        messages.disconnect(self._sock)


class DirectServer(DirectConnection):
    """The end that answers, in a thread of its own, one request at a time."""

    def __init__(
        self,
        sock: socket.socket,
        sender: str,
        receiver: Receiver,
        payload: Payload,
        ended: Callable[[DirectServer], None],
    ) -> None:
        sock.setblocking(True)
        super().__init__(sock, sender)
        self._receiver, self._payload, self._ended = receiver, payload, ended
        self._last: Packed = ()  # the last reply
        self._replying = threading.Lock()  # guards the socket against being closed in a reply
        name = f"direct-of-{sender}"
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def close(self) -> None:
        """Give back what it has: called by its thread, or where that could not start."""
        with self._replying:
            messages.disconnect(self._sock)
            if not self.keeps:
                self._payload.drop(self._last)
        self._ended(self)

    def _serve(self) -> None:
        try:
            self._sock.send(_SERVED, _HOW)
            while data := self._receive():
                packed, until = loads(data)
                if until is not None and until < monotonic() and self._is_given_up():
                    self._payload.drop(packed)
                    return  # its caller's next request may have been first
                self._answer(packed)
                del data, packed
        except Exception as error:  # noqa: BLE001 - logged, and the caller sees the end
            self._failed(error)
        finally:
            self.close()

    def _answer(self, packed: Packed) -> None:
        """Answer a request.

        A block stays leased while somebody refers to it, and one that is sent back travels as it is
        if nobody does: no name here holds what came, or what goes.
        """
        reply = self._receiver.on_exchange(self._name, self._payload.unpack(packed))
        if isinstance(reply, Future):
            reply.add_done_callback(self._reply_later)
        elif (short := self._payload.short(reply)) is not None:
            self._last = ()  # the reply before has been read, or there would be no request
            self._sock.send(dumps((short, None), VERSION), _HOW)
        else:
            frames = list(reply)
            del reply
            self._reply(frames)

    def _reply_later(self, done: Future[Frames]) -> None:
        try:
            self._reply(list(done.result()))
        except BaseException as error:  # noqa: BLE001 - the caller sees the end
            self._failed(error)
            self.end()

    def _failed(self, error: BaseException) -> None:
        """Log why there is no reply; the caller has the error if a resource ran out."""
        if is_exhausted(error):
            why = explained(error, "the reply")
            problem = f"the reply to {self._name!r}", why.resource, why.errno, why.advice
            with suppress(OSError), self._replying:
                self._sock.send(dumps(((), problem), VERSION), _HOW)
        if isinstance(error, OSError) and not is_exhausted(error):
            logger.debug("a caller is gone, or has given up", exc_info=error)
        else:
            logger.error("A request of %s could not be answered", self._name, exc_info=error)

    def _reply(self, frames: list[Buffer]) -> None:
        packed = self._payload.move(frames)
        with self._replying:
            self._last = packed  # the reply before has been read, or there would be no request
            try:
                self._sock.send(dumps((packed, None), VERSION), _HOW)
            except OSError:  # the caller is gone, or has given up; the thread sees that too
                self._payload.drop(packed)
                self._last = ()
                raise

    def _is_given_up(self) -> bool:
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))
