"""The side of a member that calls: one connection to each member that it calls."""

from __future__ import annotations

import logging
import math
import select
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import get_ident
from typing import TYPE_CHECKING

import zmq
from typing_extensions import Buffer, override

from pparallel.errors import PeerLostError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.event_fd import EventFd
from pparallel.runtime.future import fail, settle, when_done
from pparallel.runtime.links import failure
from pparallel_zmq import wire
from pparallel_zmq.port import Port
from pparallel_zmq.reader import Monitor, Source
from pparallel_zmq.sockets import FAILED, RETURN, Connection
from pparallel_zmq.streams import Incoming
from pparallel_zmq.wire import BadMessageError, Kind, Message

if TYPE_CHECKING:
    from pparallel_zmq.lanes import Lane
    from pparallel_zmq.network import Network

logger = logging.getLogger(__name__)

SPARE = 16  #: lanes that are kept
KEPT = 60.0  #: seconds that the connection to a member that was given up is kept
LEFT = "has left"
BROKE = "broke the connection; whether it has run what was asked of it is not known"


class Link(Source):
    """A connection to one member: it carries requests that wait for a reply, and tells of its end.

    Attributes:
        to: the member's name.
        ended: set when the link ends.
        is_welcome: whether the other end has let this member in.
        is_over: whether it is of no use any more.
        was_up: whether it has ever been connected to who was meant.
        trouble: what went wrong with the connection last.
        last: what each thread has asked last, if not by a lane.
        unanswered: those of them that the other end has not answered.
    """

    def __init__(self, network: Network, to: str, connection: Connection) -> None:
        self.to, self.ended = to, EventFd()
        self.is_welcome = self.is_over = self.was_up = self._is_connected = False
        self.trouble = ""
        self._network, self._reader = network, network.calling
        self._bound = network.config.liveness_bound
        self._calls: dict[int, Future[Frames]] = {}
        self._coming: dict[int, Incoming] = {}
        self._leaves: float | None = None
        self._closes = math.inf
        self._broken: float | None = time.monotonic()
        # Held until it is known who is there.
        self._port = Port(connection, self._reader, self, network.limits, self._fail, held=True)
        self.fd = self._port.fd
        self.last: dict[int, int] = {}
        self.unanswered: set[int | None] = set()
        # Lanes that no thread uses; the last one is used first. A list's own operations are all the
        # protection that they need, and the barrier that ZeroMQ asks for where a socket goes from
        # one thread to another.
        self._idle: list[Lane] = []
        self._monitor = Monitor(connection.made[1], self._happened)

    def begin(self) -> None:
        """Say who calls, and listen; safe to call again where it was interrupted."""
        self.say(Kind.HELLO, self._network.hello.pack(), urgent=True)
        self._reader.add(self)
        self._reader.add(self._monitor)

    def request(
        self, part: bytes, raws: list[wire.Raw], number: int, future: Future[Frames]
    ) -> None:
        """Send a request, and complete *future* with the reply."""
        self._calls[number] = future

        def ended(_: Future[Frames]) -> None:
            if self._calls.pop(number, None) is not None:
                self.abort(number)

        when_done(future, ended)
        self._port.send(part, raws, number, thread=get_ident())

    def note(self, number: int) -> None:
        """Remember what this thread has asked last, if not by a lane."""
        thread = get_ident()
        self.unanswered.discard(self.last.get(thread))
        self.unanswered.add(number)
        self.last[thread] = number

    def say(self, kind: int, *frames: bytes, number: int = 0, urgent: bool = False) -> None:
        """Send a small message."""
        self._port.send(wire.say(kind, *frames, number=number), urgent=urgent)

    def abort(self, number: int) -> None:
        """Tell the other end that nobody waits for request *number* any more."""
        self._port.drop(number)
        self.say(Kind.ABORT, number=number)

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Fail all requests that wait for a reply."""
        calls = list(self._calls.values())
        self._calls.clear()
        self._coming.clear()
        for each in calls:
            fail(each, error())

    def take(self) -> Lane:
        """Return a lane that no other thread uses.

        Raises:
            ResourceExhaustedError: there is none, and none can be made.
        """
        try:
            return self._idle.pop()
        except IndexError:
            return self._network.lane(self.to)

    def keep(self, lane: Lane, number: int) -> None:
        """Keep a lane for the next call, or close it, after request *number*."""
        if lane.is_idle and len(self._idle) < SPARE:
            self._idle.append(lane)
            if self.is_over:
                self._close_idle()
            return
        if not lane.is_idle:
            # It may be on its way still. What says that it is given up goes by the link, and so
            # does what this thread sends next: it comes there first.
            self.abort(number)
            self.note(number)
        lane.connection.close()

    def _close_idle(self) -> None:
        try:
            while self._idle:
                self._idle.pop().connection.close()
        except IndexError:  # another thread has taken the last
            return

    def why_broken(self) -> Exception:
        """Return why a lane has broken; that is known soon after."""
        if not self.is_over:
            waiting = select.poll()
            waiting.register(self.ended.fd, select.POLLIN)
            waiting.poll(self._bound / 2 * 1000)
        return self._network.why_over(self.to)

    def expect_leave(self, seconds: float) -> None:
        """Take the other end for gone when its connection ends, or after so long."""
        self._leaves = time.monotonic() + seconds
        self._reader.tick_soon()

    def finish(self, *, keep: float = KEPT) -> None:
        """Wake who waits for a reply: none will come.

        Args:
            keep: seconds until the connection is closed. A member that was given up and is back
                by then hears of it.
        """
        self._closes = time.monotonic() + keep
        self.is_over = True
        self.ended.set()
        self._reader.tick_soon()

    # -- as a source --------------------------------------------------------------------------

    @override
    def drain(self, is_there: bool) -> bool:
        received = self._port.take(is_there)
        for _, _, part, piece in received:
            try:
                self._handle(wire.unpack(part, self._network.limits), piece)
            except BadMessageError as error:
                logger.warning("A message of %s was dropped: %s", self.to, error)
            except BaseException as error:  # a callback may raise SystemExit
                logger.exception("A message of %s could not be handled", self.to)
                self._failed(part, error)
        return bool(received)

    @override
    def tick(self, now: float) -> float | None:
        if self.is_over:
            self._close_idle()
            if now < self._closes:
                return self._closes
            self._reader.remove(self)
            self._reader.remove(self._monitor)
            self.end()
            return None
        if self._broken is not None:
            self._monitor.drain(False)  # this thread may have slept while the connection came back
        if self._leaves is not None and (now >= self._leaves or self._broken is not None):
            self._network.membership.lose(self.to, LEFT)
            return None
        if self._broken is None:
            return self._leaves
        if self.was_up:
            until = self._broken + self._bound * RETURN
            why = "cannot be reached any more: its connection broke and did not come back"
        else:
            until = self._broken + self._bound
            why = f"cannot be reached{self.trouble and f': {self.trouble}'}"
            if self._is_connected:  # it takes its time to let this member in
                return None
        if now < until:
            return until
        self._network.unreachable(self, why)
        self._broken = now
        return None if self.is_over else now + self._bound

    @override
    def end(self) -> None:
        self._close_idle()
        self._port.close()

    # -- messages -----------------------------------------------------------------------------

    def _handle(self, message: Message, piece: memoryview | None) -> None:
        kind, _, number, _, frames = message
        if not self.is_welcome and kind not in (Kind.WELCOME, Kind.REFUSED):
            raise BadMessageError("it came before the member was known")
        if kind == Kind.REPLY:
            self._reply(message)
        elif kind == Kind.PIECE and piece is not None:
            self._piece(number, piece)
        elif kind == Kind.MORE:
            self._port.more(b"", number)
        elif kind == Kind.BYE:
            self._network.membership.lose(self.to, LEFT)
        elif kind == Kind.WELCOME and frames:
            if not self.is_welcome and self._network.is_proven(self.to, bytes(frames[0])):
                self.is_welcome = True
                self._port.release()
        elif kind == Kind.REFUSED and frames:
            self._network.refused(self, bytes(frames[0]).decode(errors="replace"))

    def _failed(self, part: bytes, error: BaseException) -> None:
        """Fail the request, if the message that could not be handled is a reply to one."""
        kind, _, _, _, number = wire.HEAD.unpack_from(part)
        if kind not in (Kind.REPLY, Kind.PIECE):
            return
        self._coming.pop(number, None)
        self._fail(self.to, b"", number, error)

    def _fail(self, whose: str, route: bytes, number: int, error: BaseException) -> None:
        """Fail a request; its end tells the other member that nobody waits any more."""
        future = self._calls.get(number)
        if future is not None:
            fail(future, error)

    def _reply(self, message: Message) -> None:
        _, flags, number, table, frames = message
        self.unanswered.discard(number)
        if not flags & wire.LARGE:
            self._settle(number, flags, frames)
        elif number in self._calls:
            self._coming[number] = Incoming(table, self._network.memory, flags)
        else:
            self.abort(number)

    def _piece(self, number: int, piece: memoryview) -> None:
        incoming = self._coming.get(number)
        if incoming is None:
            return
        if number not in self._calls:
            del self._coming[number]
        elif incoming.feed(piece):
            del self._coming[number]
            self._settle(number, incoming.flags, incoming.frames())
        else:
            self.say(Kind.MORE, number=number)

    def _settle(self, number: int, flags: int, frames: list[Buffer]) -> None:
        future = self._calls.pop(number, None)
        if future is None:
            return
        if flags & wire.FAILED:
            self._port.drop(number)  # it may have been refused before all of it was there
            fail(future, failure(self.to, frames))
        else:
            settle(future, frames)

    # -- the connection -----------------------------------------------------------------------

    def _happened(self, event: int, _: int) -> None:
        self._reader.tick_soon()
        if event == zmq.EVENT_CONNECTED:
            self._is_connected = True
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._up()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._network.refused(self, "it does not know the key of this member")
        elif event & FAILED:
            self.trouble = "who answers there does not prove to be it"
        elif event == zmq.EVENT_DISCONNECTED:
            self._is_connected = False
            if self._broken is None:
                self._broken = time.monotonic()
        elif not self._is_connected:
            self.trouble = self.trouble or "it does not answer at that address"

    def _up(self) -> None:
        again = self.was_up
        self.was_up, self._broken = True, None
        if not again:
            return
        self.fail_all(lambda: PeerLostError(self.to, BROKE))
        self._close_idle()  # they are broken too
        self.say(Kind.HELLO, self._network.hello.pack(), urgent=True)
