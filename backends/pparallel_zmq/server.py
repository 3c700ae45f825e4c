"""The side of a member that is called: what comes in, and the replies to it."""

from __future__ import annotations

import logging
import os
import resource
import socket
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import zmq
from typing_extensions import Buffer, override

from pparallel.interfaces.transport import Frames
from pparallel.runtime.links import FAILED, attempt, outcome
from pparallel.runtime.request_transport import Handler
from pparallel.runtime.resources import is_exhausted
from pparallel_zmq import wire
from pparallel_zmq.memory import IDLE
from pparallel_zmq.port import Port, Received
from pparallel_zmq.reader import Monitor, Source
from pparallel_zmq.sockets import Connection
from pparallel_zmq.streams import Incoming
from pparallel_zmq.wire import BadMessageError, Kind, Message

if TYPE_CHECKING:
    from pparallel_zmq.network import Network

logger = logging.getLogger(__name__)

AGAIN = 0.1  #: seconds until a reply that could not be sent, or a hello, is tried again
STRANGERS = 256  #: connections that have proven nothing, at the most
SELDOM = 10.0  #: seconds between two warnings of them
ABORTED = 1024  #: requests of one sender that are remembered as given up before they came

_REQUEST = int(Kind.REQUEST)  # to compare what comes most with a plain number is quicker


class Strangers:
    """Closes connections to a TCP port that have proven nothing: the oldest, where there are many.

    libzmq accepts in a thread of its own, without a limit, and burns a core once no descriptor is
    left (``tcp_listener.cpp``: the pending connection wakes it again at once). A connection is a
    member's from its first message on, which tells its descriptor. A handshake takes milliseconds:
    a member that comes is not among the oldest for as long.
    """

    def __init__(self) -> None:
        self._unproven: dict[int, int] = {}  # inode of the socket, by descriptor, in order
        self._most = min(STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._warned = -SELDOM

    def proven(self, descriptor: int) -> None:
        """Keep a connection: it is a member's."""
        self._unproven.pop(descriptor, None)

    def happened(self, event: int, descriptor: int) -> None:
        """Count a connection that was accepted, or has ended."""
        self._unproven.pop(descriptor, None)
        if event == zmq.EVENT_ACCEPTED:
            with suppress(OSError):  # it is closed already
                self._unproven[descriptor] = os.fstat(descriptor).st_ino
        if len(self._unproven) > self._most:
            self._shut(next(iter(self._unproven)))

    def _shut(self, descriptor: int) -> None:
        inode = self._unproven.pop(descriptor)
        with suppress(OSError):
            if os.fstat(descriptor).st_ino == inode:  # the number is not another's by now
                other = socket.socket(fileno=descriptor)
                try:
                    other.shutdown(socket.SHUT_RDWR)  # libzmq closes it
                finally:
                    other.detach()
        if time.monotonic() - self._warned >= SELDOM:
            self._warned = time.monotonic()
            message = "Over %d connections have proven nothing: the oldest are closed"
            logger.warning(message, self._most)


class Server(Source):
    """Reads what members send here, and passes requests to the handler.

    The handler runs in the reader's thread, after all that has come with a request was looked at;
    replies may come from any thread.
    """

    def __init__(self, network: Network, connection: Connection, handler: Handler) -> None:
        """Serve where members reach this one; where there is a monitor, strangers are limited."""
        self._network, self._handler, self._reader = network, handler, network.serving
        self._limits, self._memory = network.limits, network.memory
        strangers = Strangers()
        self._monitors = [Monitor(each, strangers.happened) for each in connection.made[1:]]
        proven = strangers.proven if self._monitors else None
        self._port = Port(connection, self._reader, self, self._limits, self._unsent, proven)
        # Large requests that are being received, and by which connection.
        self._coming: dict[tuple[str, int], tuple[bytes, Incoming]] = {}
        self._announced: Counter[str] = Counter()  # bytes of those, by sender
        self._owed: deque[Callable[[], None]] = deque()  # what could not be done yet
        self._aborted: dict[str, OrderedDict[int, None]] = {}
        self.fd = self._port.fd
        for each in (self, *self._monitors):
            self._reader.add(each)

    def say(self, route: bytes, kind: int, *frames: bytes) -> None:
        """Send a small message to whoever is at the other end of *route*."""
        self._port.send(wire.say(kind, *frames), route=route)

    def forget(self, name: str) -> None:
        """Drop what *name* has not sent in full: it has ended."""
        for key in [each for each in list(self._coming) if each[0] == name]:
            self._no_longer(key)
        self._aborted.pop(name, None)

    def flush(self, timeout: float) -> None:
        """Wait until the replies that are known have been handed to ZeroMQ."""
        deadline = time.monotonic() + timeout
        while not self._port.is_empty and time.monotonic() < deadline:
            time.sleep(0.002)

    # -- as a source --------------------------------------------------------------------------

    @override
    def drain(self, is_there: bool) -> bool:
        for monitor in self._monitors:
            monitor.drain(False)  # it tells of a connection before its first message comes
        received = self._port.take(is_there)
        for each in received:
            self._receive(each)
        return bool(received)

    @override
    def tick(self, now: float) -> float | None:
        self._memory.trim()
        for _ in range(len(self._owed)):
            self._owed.popleft()()
        return now + (AGAIN if self._owed else IDLE)

    @override
    def end(self) -> None:
        self._port.close()
        self._coming.clear()
        self._owed.clear()

    # -- messages -----------------------------------------------------------------------------

    def _receive(self, received: Received) -> None:
        route, sender, part, piece = received
        try:
            if not sender:
                raise BadMessageError("nobody is known to have sent it")
            message = wire.unpack(part, self._limits)
            kind, _, number, _, _ = message
            if kind == _REQUEST:
                if self._network.membership.expects(sender):
                    self._request(sender, route, message)
            elif kind == Kind.PIECE:
                self._piece(sender, route, number, piece)
            elif kind == Kind.MORE:
                self._port.more(route, number)
            elif kind == Kind.ABORT:
                self._abort(sender, number)
            else:
                self._network.heard(sender, route, message)
        except BadMessageError as error:
            logger.warning("A message of %s was dropped: %s", sender, error)
        except Exception as error:
            logger.exception("A message of %s could not be handled", sender)
            self._failed(received, error)

    def _request(self, sender: str, route: bytes, message: Message) -> None:
        _, flags, number, table, frames = message
        aborted = self._aborted.get(sender)
        if aborted is not None and number in aborted:
            return
        if flags & wire.LARGE:
            self._large(sender, route, number, table)
        else:
            self._reader.do(partial(self._answer, sender, route, number, frames))

    def _large(self, sender: str, route: bytes, number: int, table: Sequence[int]) -> None:
        key, incoming = (sender, number), Incoming(table, self._memory)
        self._no_longer(key)
        if self._announced[sender] + incoming.size > self._limits.size:
            text = f"unfinished messages of {sender!r} are larger than transport.max_message"
            logger.warning("A message of %s was refused: %s", sender, text)
            self._fail(sender, route, number, MemoryError(text))
            return
        self._announced[sender] += incoming.size
        self._coming[key] = route, incoming

    def _no_longer(self, key: tuple[str, int]) -> bool:
        """Expect no more of a large request; return whether it was expected."""
        coming = self._coming.pop(key, None)
        if coming is not None:
            self._announced[key[0]] -= coming[1].size
        return coming is not None

    def _piece(self, sender: str, route: bytes, number: int, piece: memoryview | None) -> None:
        coming = self._coming.get((sender, number))
        if coming is None or coming[0] != route or piece is None:
            return  # it was given up meanwhile
        if not coming[1].feed(piece):
            self._port.send(wire.say(Kind.MORE, number=number), route=route)
            return
        self._no_longer((sender, number))
        frames = coming[1].frames()
        self._reader.do(partial(self._answer, sender, route, number, frames))

    def _abort(self, sender: str, number: int) -> None:
        self._port.drop(number, sender)
        if not self._no_longer((sender, number)):
            aborted = self._aborted.setdefault(sender, OrderedDict())
            aborted[number] = None
            if len(aborted) > ABORTED:
                aborted.popitem(last=False)

    def _answer(self, sender: str, route: bytes, number: int, frames: list[Buffer]) -> None:
        found = attempt(self._handler, sender, frames)
        if isinstance(found, Future):
            found.add_done_callback(partial(self._reply, sender, route, number))
        else:
            self._reply(sender, route, number, found)

    def _failed(self, received: Received, error: Exception) -> None:
        """Tell the sender of a request that it has failed; a hello is handled again later."""
        route, sender, part, _ = received
        kind, _, _, _, number = wire.HEAD.unpack_from(part)
        if kind == Kind.HELLO and is_exhausted(error):
            self._later(partial(self._receive, received))
        if not sender or kind not in (Kind.REQUEST, Kind.PIECE):
            return
        self._no_longer((sender, number))
        self._fail(sender, route, number, error)

    def _fail(self, sender: str, route: bytes, number: int, error: BaseException) -> None:
        """Tell the sender of a request that it has failed, as soon as that can be sent."""
        told: Frames = [type(error).__name__.encode(), str(error).encode(errors="replace")]
        try:
            self._send(sender, route, number, FAILED, told)
        except Exception:
            logger.exception("A reply to %s is sent later", sender)
            self._later(partial(self._fail, sender, route, number, error))

    def _unsent(self, sender: str, route: bytes, number: int, error: BaseException) -> None:
        self._later(partial(self._fail, sender, route, number, error))

    def _later(self, act: Callable[[], None]) -> None:
        self._owed.append(act)
        self._reader.tick_soon()

    def _reply(
        self, sender: str, route: bytes, number: int, found: tuple[int, Frames] | Future[Frames]
    ) -> None:
        try:
            status, frames = outcome(found) if isinstance(found, Future) else found
            self._send(sender, route, number, status, frames)
        except Exception as error:  # noqa: BLE001 - the caller is told; it may be cancelled, too
            self._fail(sender, route, number, error)

    def _send(self, sender: str, route: bytes, number: int, status: int, frames: Frames) -> None:
        part, raws = wire.pack(Kind.REPLY, number, frames, self._limits, status)
        self._port.send(part, raws, number, route, whose=sender)
