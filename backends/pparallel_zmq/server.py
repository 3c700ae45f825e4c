"""The side of a member that is called: what comes in, and the replies to it."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from typing_extensions import Buffer

from pparallel.interfaces.transport import Frames, Handler
from pparallel.runtime import dedicated
from pparallel.runtime.dedicated import LEADING
from pparallel.runtime.links import FAILED, attempt, outcome
from pparallel_zmq import wire
from pparallel_zmq.memory import IDLE, Memory
from pparallel_zmq.port import Port, Received
from pparallel_zmq.reader import Reader
from pparallel_zmq.sockets import Socket
from pparallel_zmq.streams import Incoming
from pparallel_zmq.wire import BadMessageError, Kind, Limits, Message
from pparallel_zmq.zap import Strangers

logger = logging.getLogger(__name__)

AGAIN = 0.1  #: seconds until a reply is sent again that could not be
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
        strangers: Strangers | None,
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
            strangers: limits those who connect and prove nothing; ``None``: none can.
        """
        self._limits, self._window, self._memory = limits, window, memory
        self._handler, self._control, self._admits = handler, control, admits
        self._port = Port(socket, reader, self, window, strangers)
        self._strangers = strangers
        self._reader = reader
        self._coming: dict[tuple[str, int], _Coming] = {}
        self._announced: Counter[str] = Counter()  # bytes of those, by sender
        self._owed: deque[Callable[[], None]] = deque()  # replies that could not be sent
        self._aborted: dict[str, OrderedDict[int, None]] = {}
        self.fd = self._port.fd

    def say(self, route: bytes, kind: Kind, *frames: bytes) -> None:
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

    def drain(self, signalled: bool) -> bool:
        """Handle some of what has come."""
        if self._strangers is not None:
            self._strangers.drain(False)  # it knows a connection before its first message comes
        received = self._port.take(signalled)
        for each in received:
            try:
                self._handle(each)
            except BadMessageError as error:
                logger.warning("A message of %s was dropped: %s", each[1], error)
            except Exception as error:
                logger.exception("A message of %s could not be handled", each[1])
                self._failed(each, error)
        return bool(received)

    def tick(self, now: float) -> float | None:
        """Give back memory that is not wanted, and send the replies that could not be sent."""
        self._memory.trim()
        for _ in range(len(self._owed)):
            self._owed.popleft()()
        return now + (AGAIN if self._owed else IDLE)

    def end(self) -> None:
        """Close the socket."""
        self._port.close(None if self._strangers is None else self._strangers.monitor)
        self._coming.clear()
        self._owed.clear()

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
            self._large(sender, route, message)
        else:
            act = partial(self._answer, sender, route, message.number, message.frames)
            self._reader.do(act)

    def _large(self, sender: str, route: bytes, message: Message) -> None:
        key, incoming = (sender, message.number), Incoming(message.table, self._memory)
        self._no_longer(key)
        if self._announced[sender] + incoming.size > self._limits.size:
            text = f"unfinished messages of {sender!r} are larger than transport.max_message"
            logger.warning("A message of %s was refused: %s", sender, text)
            self._fail(sender, route, message.number, MemoryError(text))
            return
        self._announced[sender] += incoming.size
        self._coming[key] = _Coming(route, incoming)

    def _no_longer(self, key: tuple[str, int]) -> bool:
        """Expect no more of a large request; return whether it was expected."""
        coming = self._coming.pop(key, None)
        if coming is not None:
            self._announced[key[0]] -= coming.incoming.size
        return coming is not None

    def _piece(self, sender: str, route: bytes, number: int, piece: memoryview | None) -> None:
        coming = self._coming.get((sender, number))
        if coming is None or coming.route != route or piece is None:
            return  # it was given up meanwhile
        try:
            done = coming.incoming.feed(piece)
        except BaseException:
            self._no_longer((sender, number))
            raise
        if not done:
            self._port.send(wire.say(Kind.MORE, number=number), route=route)
            return
        self._no_longer((sender, number))
        frames = coming.incoming.frames()
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
            found.add_done_callback(partial(self._answered, sender, route, number))
        else:
            self._reply(sender, route, number, *found)

    def _answered(self, sender: str, route: bytes, number: int, done: Future[Frames]) -> None:
        try:
            status, frames = outcome(done)
        except Exception as error:  # noqa: BLE001 - it was cancelled, which its caller must know
            self._fail(sender, route, number, error)
        else:
            self._reply(sender, route, number, status, frames)

    def _failed(self, received: Received, error: Exception) -> None:
        """Tell the sender of a message that could not be handled, if it is a request."""
        route, sender, part, _ = received
        kind, _, _, _, number = wire.HEAD.unpack_from(part)
        if not sender or kind not in (Kind.REQUEST, Kind.MANY, Kind.PIECE):
            return
        self._no_longer((sender, number))
        numbers = [number]
        if kind == Kind.MANY:
            found = wire.many(wire.unpack(part, self._limits), Kind.REQUEST, self._limits)
            numbers = [each.number for each in found]
        for each in numbers:
            self._fail(sender, route, each, error)

    def _fail(self, sender: str, route: bytes, number: int, error: BaseException) -> None:
        """Tell the sender of a request that it has failed, as soon as that can be sent."""
        told: Frames = [type(error).__name__.encode(), str(error).encode(errors="replace")]
        try:
            self._send(sender, route, number, FAILED, told)
        except Exception:
            logger.exception("A reply to %s is sent later", sender)
            self._owed.append(partial(self._fail, sender, route, number, error))
            self._reader.tick_soon()

    def _reply(self, sender: str, route: bytes, number: int, status: int, frames: Frames) -> None:
        try:
            self._send(sender, route, number, status, frames)
        except Exception as error:  # noqa: BLE001 - the caller is told whatever it is
            self._fail(sender, route, number, error)

    def _send(self, sender: str, route: bytes, number: int, status: int, frames: Frames) -> None:
        part, raws = wire.pack(Kind.REPLY, number, frames, self._limits, status)
        if raws:
            self._port.send(
                part, raws, route=route, number=number, whose=sender, piece=self._limits.piece
            )
        else:
            others_follow = bool(self._reader.rest) and dedicated.here.role.kind == LEADING
            self._port.put(part, route=route, wait=others_follow)
