"""The side of a member that is called: what comes in, and the replies to it."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.transport import Frames, Handler
from pparallel.runtime import dedicated
from pparallel.runtime.dedicated import LEADING
from pparallel.runtime.links import attempt, outcome
from pparallel_zmq import wire
from pparallel_zmq.memory import IDLE, Memory
from pparallel_zmq.port import Port, Received
from pparallel_zmq.reader import Reader
from pparallel_zmq.sockets import Socket
from pparallel_zmq.streams import Incoming
from pparallel_zmq.wire import BadMessageError, Kind, Limits, Message

logger = logging.getLogger(__name__)

ABORTED = 1024  #: requests of one sender that are remembered as given up before they came

Control = Callable[[str, bytes, Message], None]  #: (sender, route, message)


_REQUEST = int(Kind.REQUEST)  # to compare what comes most with a plain number is quicker


class _Coming:
    """A large request that is being received."""

    def __init__(self, route: bytes, incoming: Incoming) -> None:
        self.route, self.incoming = route, incoming


class Server:
    """Reads what members send here, and passes requests to the handler.

    The handler runs in the reader's thread, after all that has come with a request was looked at;
    replies may come from any thread.
    """

    def __init__(
        self,
        socket: Socket,
        reader: Reader,
        limits: Limits,
        window: int,
        memory: Memory,
        handler: Handler,
        control: Control,
        admits: Callable[[str], bool],
    ) -> None:
        """Serve on a socket.

        Args:
            socket: that is bound where members reach this one.
            reader: whose thread drains it, and runs the handler.
            limits: what a message may hold.
            window: pieces of one reply that may be under way.
            memory: where large frames go.
            handler: of requests.
            control: of all other messages.
            admits: whether a request of that member may be handled; it tells it why not.
        """
        self._limits, self._window, self._memory = limits, window, memory
        self._handler, self._control, self._admits = handler, control, admits
        self._port = Port(socket, reader, self, window)
        self._reader = reader
        self._coming: dict[tuple[str, int], _Coming] = {}
        self._aborted: dict[str, OrderedDict[int, None]] = {}
        self.fd = self._port.fd

    def say(self, route: bytes, kind: Kind, *frames: bytes) -> None:
        """Send a small message to whoever is at the other end of *route*."""
        self._port.send(wire.say(kind, *frames), route=route)

    def forget(self, name: str) -> None:
        """Drop what *name* has not sent in full: it has ended."""
        for key in [each for each in list(self._coming) if each[0] == name]:
            self._coming.pop(key, None)
        self._aborted.pop(name, None)

    def flush(self, timeout: float) -> None:
        """Wait until the replies that are known have been handed to ZeroMQ."""
        deadline = time.monotonic() + timeout
        while not self._port.is_empty and time.monotonic() < deadline:
            time.sleep(0.002)

    # -- as a source --------------------------------------------------------------------------

    def drain(self, signalled: bool) -> bool:
        """Handle some of what has come."""
        received = self._port.take(signalled)
        for each in received:
            try:
                self._handle(each)
            except BadMessageError as error:
                logger.warning("A message of %s was dropped: %s", each[1], error)
        return bool(received)

    def tick(self, now: float) -> float | None:
        """Give back memory that is not wanted."""
        self._memory.trim()
        return now + IDLE

    def end(self) -> None:
        """Close the socket."""
        self._port.close()
        self._coming.clear()

    # -- messages -----------------------------------------------------------------------------

    def _handle(self, received: Received) -> None:
        route, sender, part, piece = received
        if not sender:
            raise BadMessageError("nobody is known to have sent it")
        message = wire.unpack(part, self._limits)
        kind, number = message.kind, message.number
        if kind == _REQUEST:
            if self._admits(sender):
                self._request(sender, route, message)
        elif kind == Kind.MANY:
            if self._admits(sender):
                for each in wire.many(message, Kind.REQUEST, self._limits):
                    self._request(sender, route, each)
        elif kind == Kind.PIECE:
            self._piece(sender, route, number, piece)
        elif kind == Kind.MORE:
            self._port.more(route, number)
        elif kind == Kind.ABORT:
            self._abort(sender, number)
        else:
            self._control(sender, route, message)

    def _request(self, sender: str, route: bytes, message: Message) -> None:
        aborted = self._aborted.get(sender)
        if aborted is not None and message.number in aborted:
            return
        if message.flags & wire.LARGE:
            incoming = Incoming(message.table, self._memory)
            self._coming[sender, message.number] = _Coming(route, incoming)
        else:
            act = partial(self._answer, sender, route, message.number, message.frames)
            self._reader.do(act)

    def _piece(self, sender: str, route: bytes, number: int, piece: memoryview | None) -> None:
        coming = self._coming.get((sender, number))
        if coming is None or coming.route != route or piece is None:
            return  # it was given up meanwhile
        try:
            done = coming.incoming.feed(piece)
        except BadMessageError:
            del self._coming[sender, number]
            raise
        if not done:
            self._port.send(wire.say(Kind.MORE, number=number), route=route)
            return
        del self._coming[sender, number]
        frames = coming.incoming.frames()
        self._reader.do(partial(self._answer, sender, route, number, frames))

    def _abort(self, sender: str, number: int) -> None:
        self._port.drop(number, sender)
        if self._coming.pop((sender, number), None) is None:
            aborted = self._aborted.setdefault(sender, OrderedDict())
            aborted[number] = None
            if len(aborted) > ABORTED:
                aborted.popitem(last=False)

    def _answer(self, sender: str, route: bytes, number: int, frames: list[Buffer]) -> None:
        found = attempt(self._handler, sender, frames)
        if isinstance(found, Future):
            found.add_done_callback(lambda done: self._reply(sender, route, number, *outcome(done)))
        else:
            self._reply(sender, route, number, *found)

    def _reply(self, sender: str, route: bytes, number: int, status: int, frames: Frames) -> None:
        try:
            part, raws = wire.pack(Kind.REPLY, number, frames, self._limits, status)
        except (SerializationError, BufferError) as error:
            told = [type(error).__name__.encode(), str(error).encode(errors="replace")]
            part, raws = wire.pack(Kind.REPLY, number, told, self._limits, wire.FAILED)
        if raws:
            self._port.send(
                part, raws, route=route, number=number, whose=sender, piece=self._limits.piece
            )
        else:
            others_follow = bool(self._reader.rest) and dedicated.here.role.kind == LEADING
            self._port.put(part, route=route, wait=others_follow)
