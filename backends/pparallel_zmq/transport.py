"""ZeroMQ transport: between processes and machines."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import zmq
from typing_extensions import Buffer, override

from pparallel.errors import (
    AuthenticationError,
    CallTimeoutError,
    ClosedError,
    ConfigError,
    PeerLostError,
    ResourceExhaustedError,
)
from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.exchange import Exchange
from pparallel.runtime.links import BaseTransport, Hello, ProcessId, RefusedError
from pparallel.runtime.links.dispatcher import Dispatcher
from pparallel.runtime.resources import is_exhausted
from pparallel_zmq import address, keys, messages
from pparallel_zmq.address import TORCHRUN, Address
from pparallel_zmq.config import ZmqTransportConfig
from pparallel_zmq.connection import Connection
from pparallel_zmq.direct import DirectCaller, DirectConnections, DirectServer, EndedError
from pparallel_zmq.listener import BATCH, Listener
from pparallel_zmq.messages import MORE_BACK, BadMessageError, Incoming, Limits
from pparallel_zmq.sockets import Sockets, making

if TYPE_CHECKING:
    from pparallel.runtime.member import Member

logger = logging.getLogger(__name__)

FLUSH = 1.0  #: seconds that closing waits for what has been sent to arrive
LAST = 0.25  #: seconds that the last messages of a member that has ended may take to come
AGAIN = 0.1  #: seconds until it is tried again to connect to a member, for want of descriptors

_LEFT = "has left"
_BROKE = "broke the connection; whether it has run what was asked of it is not known"


class ZmqTransport(BaseTransport[ZmqTransportConfig]):
    """Carries messages by ZeroMQ.

    Each member has one socket where all others reach it, and a connection to each other one, by
    which its messages to that member leave. One thread receives.
    """

    def __init__(self, config: ZmqTransportConfig, *, member: Member) -> None:
        super().__init__(config, member)
        self._limits = Limits(config.max_frames, config.max_message, config.piece_size)
        self._store: Exchange | None = None
        self._place = Address()  # where the first member is met
        self._listens = False
        self._connections: dict[str, Connection] = {}
        self._direct: dict[str, DirectConnections] = {}
        self._incoming: dict[str, Incoming] = {}  # large messages, by sender
        self._greeted: set[str] = set()  # whose hello has come here
        self._ending: dict[str, str] = {}  # why members have ended whose last messages may come yet
        self._leaving: set[str] | None = None  # who has not confirmed that this member leaves
        self._refusal: Exception | None = None
        self._have_met = False

    # -- opening ------------------------------------------------------------------------------

    @override
    def _listen(self) -> None:
        """Have others reach this member.

        Raises:
            ConfigError: there are no keys, or the address cannot be had.
            ResourceExhaustedError: there are too few descriptors; nothing is left open.
        """
        config, member = self._config, self._member
        if config.address is None and (member.rendezvous or "").startswith(TORCHRUN):
            where, timeout = str(member.rendezvous), config.rendezvous_timeout
            self._store = Exchange(where, member.rank, member.world_size, timeout)
        keyring = keys.keyring(config, member, self._store)
        if self._store is None:
            self._place = address.meeting_place(config, member)
        else:
            self._place = address.torchrun_place(config, member, self._store)
        self._place.prepare()
        mine, is_first = self._place, self._membership.is_first
        if not is_first:
            mine = mine.of_another(member, config.host)
        with ExitStack() as undo, making(f"the sockets of member {self.name!r}"):
            self._dispatcher = dispatcher = Dispatcher(f"{self.name}-zmq", self._finish)
            undo.callback(dispatcher.close)
            self._sockets = Sockets(self.name, keyring, config, self._limits, dispatcher)
            undo.callback(self._sockets.end)
            try:
                self._listener = Listener(
                    mine, self._sockets, self._take, self._disconnected, is_open=not keyring
                )
            except zmq.ZMQError as error:
                if is_exhausted(OSError(error.errno, "")):
                    raise
                message = f"member {self.name!r} cannot be met at {mine}: {error.strerror}"
                raise ConfigError(message, path="transport.address") from None
            mine = self._listener.address
            for each in member.names:
                known = each if keyring is not None else None
                self._direct[each] = DirectConnections(known, config.liveness_bound)
            self._me = Hello(self.name, os.urandom(16), ProcessId.here(), str(mine))
            self._first = messages.pack([self._me.pack()], self._limits, messages.HELLO)
            self._listens = True  # before anything comes
            dispatcher.start()
            undo.pop_all()
        if is_first:
            self._place = mine
            if self._store is not None:
                self._store.put("zmq", str(mine).encode())

    @override
    def _meet(self) -> None:
        """Wait until all members are here; the first one tells the others who is.

        Raises:
            CallTimeoutError: some did not come in time; it names them.
            PeerLostError: one ended meanwhile.
            AuthenticationError: the first member does not know this one's key.
        """
        membership, first = self._membership, self._membership.first
        timeout = self._config.rendezvous_timeout
        if not membership.is_first:
            self._connect(first, self._place)
        try:
            membership.wait_for_all(timeout)
        except CallTimeoutError:
            if membership.is_first or membership.hello(first) is not None:
                raise
            trouble = self._connections[first].trouble
            what = f"the hello to the first member, {first!r} at {self._place}"
            what += f" ({trouble})" if trouble else ","
            raise CallTimeoutError(what, timeout) from None
        except (PeerLostError, ClosedError) as error:
            raise self._refusal or error from None
        self._have_met = True
        if membership.is_first:
            roster = [self._me, *membership.hellos()]
            for each in roster[1:]:
                self._connect(each.name, Address.parse(each.address))
            self._send_to_all(messages.ROSTER, *(each.pack() for each in roster))

    # -- connections --------------------------------------------------------------------------

    def _connect(self, to: str, place: Address) -> Connection:
        """Return the connection to member *to*, which is made if there is none.

        Raises:
            ClosedError: this member is leaving.
            ResourceExhaustedError: there are no descriptors or no memory for it.
        """
        with self._opening, making(f"a connection to member {to!r}"):
            if self._closed:
                self._check_open()
            found = self._connections.get(to)
            if found is None or found.is_closed:
                found = Connection(to, place, self._sockets, self, self._first)
                self._connections[to] = found
            return found

    def _connection(self, to: str) -> Connection:
        self._check_peer(to)
        hello = self._membership.hello(to)
        if hello is None:  # it has ended just now
            raise PeerLostError(to, self._membership.reason(to))
        # The first is met at the address that this member was given, whatever it is called there.
        is_first = to == self._membership.first
        return self._connect(to, self._place if is_first else Address.parse(hello.address))

    def came_back(self, connection: Connection) -> None:
        """Greet the other end again: the connection broke, and is there again."""
        connection.send(self._first)
        self._report_reset(connection.to, _BROKE)

    def refused(self, connection: Connection, why: str) -> None:
        """Give up a member that does not let this one in."""
        if connection.to == self._membership.first and not self._have_met and not self._refusal:
            message = f"the first member, {connection.to!r} at {self._place}, refuses this one"
            self._refusal = AuthenticationError(f"{message}: {why}")
        whom = "the first" if self._membership.is_first else "this"
        self._give_up(connection, f"refuses {whom} member: {why}")

    def unreachable(self, connection: Connection, why: str) -> None:
        """Give up a member to which the connection cannot be made, or is not made again."""
        is_first = connection.to == self._membership.first
        if is_first and not self._have_met and not connection.was_up:
            return  # it may be yet to come
        self._give_up(connection, why, f" from member {self.name!r}")

    def _give_up(self, connection: Connection, why: str, whence: str = "") -> None:
        """Give up a member that the first cannot reach, or the first; or just the connection."""
        to = connection.to
        if self._membership.first in (self.name, to):
            self._membership.lose(to, why)
        else:
            connection.close()
            self._report_reset(to, why + whence)

    def answered(self, connection: Connection, part: bytes) -> None:
        """Take what the other end has answered by this connection."""
        kind = part[:1]
        if kind == bytes([messages.LEFT]):
            self._confirmed(connection.to)
            return
        why = b"".join(bytes(each) for each in self._frames(part))
        if kind == bytes([messages.REFUSED]):
            self.refused(connection, bytes(why).decode(errors="replace"))
        elif kind == bytes([messages.LOST]) and connection.to == self._membership.first:
            self._membership.lose(self.name, bytes(why).decode(errors="replace"))

    def _send_to_all(self, kind: int, *frames: bytes) -> None:
        parts = messages.pack(frames, self._limits, kind)
        for each in list(self._connections.values()):
            each.send(parts)

    def _frames(self, part: bytes) -> list[Buffer]:
        found = messages.unpack(part, self._limits)
        return [] if isinstance(found, Incoming) else found

    def _answer(self, route: bytes, kind: int, *frames: bytes) -> None:
        self._listener.answer(route, bytes(messages.pack(frames, self._limits, kind)[0][0]))

    # -- messages -----------------------------------------------------------------------------

    @override
    def send(self, to: str, frames: Frames) -> None:
        connection = self._connections.get(to)
        if connection is None or connection.is_closed or self._closed:
            connection = self._connection(to)
        connection.send(messages.pack(frames, self._limits))

    @override
    def exchange(self, to: str, frames: Frames, timeout: float | None) -> Frames | None:
        connection = self._connections.get(to)
        if connection is None or connection.is_closed or self._closed:
            connection = self._connection(to)
        found = self._direct[to]
        direct = found.take(partial(self._new_direct, connection))
        if direct is None:
            return None
        reply = None
        try:
            reply = direct.exchange(frames, timeout)
        except EndedError:
            raise self._membership.why_ended(to, direct.until) from None
        except TimeoutError as error:
            if type(error) is not TimeoutError or error.args:
                raise  # of a signal's handler
            raise CallTimeoutError(f"a request to {to!r}", timeout or 0.0) from None
        finally:
            (found.drop if reply is None else found.give_back)(direct)
        return reply

    def _new_direct(self, connection: Connection) -> DirectCaller | None:
        """Return the end of a new direct connection, and ask the other one to connect."""
        try:
            with making(f"a direct connection to {connection.to!r}"):
                mine, where = self._sockets.direct(self._listener.address)
                direct = DirectCaller(self._sockets, *mine)
        except OSError as error:
            logger.debug("%s: requests go with the other messages", error)
            return None
        connection.send(messages.pack([where.encode()], self._limits, messages.DIRECT))
        return direct

    def _serve_direct(self, sender: str, where: str) -> None:
        """Answer requests of a member by a direct connection, which it has asked for."""
        found, receiver = self._direct[sender], self._receiver
        assert receiver is not None
        try:
            with making(f"a direct connection of {sender!r}"):
                server = DirectServer(
                    self._sockets,
                    self._sockets.direct_to(sender, where),
                    partial(receiver.on_exchange, sender),
                    f"direct-of-{sender}",
                    found.drop,
                )
                found.start(server)
        except (OSError, ConfigError) as error:
            logger.warning("%s answers requests of %s as messages: %s", self.name, sender, error)

    def _take(self, sender: str, route: bytes, part: bytes, rest: Iterator[Buffer]) -> None:
        """Take a message in."""
        kind = part[0] if part else 0
        found: list[Buffer] | Incoming
        try:
            if kind == messages.PIECE:
                self._listener.answer(route, MORE_BACK)
                incoming = self._incoming[sender]
                if not incoming.feed(part, memoryview(next(rest, b""))):
                    return
                kind, found = incoming.kind, self._incoming.pop(sender).frames()
            else:
                self._incoming.pop(sender, None)
                found = messages.unpack(part, self._limits)
        except KeyError:
            return  # of a message whose head did not come
        except BadMessageError as error:
            self._incoming.pop(sender, None)
            logger.warning("A message of %s was dropped: %s", sender, error)
            return
        if isinstance(found, Incoming):
            self._incoming[sender] = found
        else:
            self._act(kind, sender, route, found)

    def _act(self, kind: int, sender: str, route: bytes, frames: list[Buffer]) -> None:
        receiver = self._receiver
        assert receiver is not None
        if kind in (messages.FRAME, messages.FRAMES):
            if not (self._membership.expects(sender) or sender in self._ending):
                self._answer_lost(sender, route, self._membership.reason(sender))
            elif not self._closed:
                receiver.on_message(sender, frames)
        elif kind == messages.HELLO and len(frames) == 1:
            self._take_hello(sender, route, bytes(frames[0]))
        elif kind == messages.DIRECT and self._membership.expects(sender):
            self._serve_direct(sender, bytes(frames[0]).decode())
        elif kind == messages.BYE:
            self._bye(sender, route)
        elif sender == self._membership.first and kind in (messages.ROSTER, messages.LOST):
            self._take_news(kind, [bytes(each) for each in frames])

    def _take_hello(self, sender: str, route: bytes, data: bytes) -> None:
        membership = self._membership
        try:
            hello = Hello.unpack(data)
            if hello.name != sender:
                message = f"it says that it is {hello.name!r}, and its key is that of {sender!r}"
                raise RefusedError(message)
            membership.admit(hello)
            if membership.is_first:
                self._connect(sender, Address.parse(hello.address))
        except (RefusedError, ConfigError) as error:
            membership.refused(sender, str(error))
            self._answer(route, messages.REFUSED, str(error).encode())
        except ResourceExhaustedError:
            logger.exception("It is tried again to connect to %s", sender)
            again = partial(self._take_hello, sender, route, data)
            self._dispatcher.call_later(AGAIN, again)
        except ClosedError:
            return
        else:
            if sender in self._greeted:
                self._report_reset(sender, _BROKE)
            self._greeted.add(sender)

    def _answer_lost(self, name: str, route: bytes | None, reason: str) -> None:
        """As the first member, answer one that was given up, should it live."""
        if self._membership.is_first and reason != _LEFT and route is not None:
            self._answer(route, messages.LOST, reason.encode())

    def _take_news(self, kind: int, frames: list[bytes]) -> None:
        """Take the news of the first member."""
        membership = self._membership
        if kind == messages.LOST:
            name, reason = (each.decode() for each in frames)
            membership.lose(name, reason)
            return
        for hello in map(Hello.unpack, frames):
            if hello.name != self.name and membership.expects(hello.name):
                try:
                    membership.admit(hello)
                except RefusedError as error:  # it has ended just now
                    logger.info("A member in the roster is not let in: %s", error)

    # -- ends ---------------------------------------------------------------------------------

    @override
    def _member_ended(self, name: str, reason: str) -> None:
        self._dispatcher.call(partial(self._await_end, name, reason))

    def _await_end(self, name: str, reason: str) -> None:
        self._ending[name] = reason
        if self._membership.is_first:
            told = name.encode(), reason.encode()
            for each in list(self._connections.values()):
                if each.to != name:
                    each.send(messages.pack(told, self._limits, messages.LOST))
        if self._listener.is_connected(name):
            longest = FLUSH if reason == _LEFT else LAST
            self._dispatcher.call_later(longest, partial(self._lose, name))
        else:
            self._lose(name)

    def _disconnected(self, name: str) -> None:
        """Have the end of a member reported, as no more comes from it."""
        if name in self._ending:
            self._dispatcher.call(partial(self._lose, name))

    def _lose(self, name: str) -> None:
        if name not in self._ending:
            return
        for _ in range(BATCH):  # others may send without end
            if not self._listener.empty():
                break
        reason = self._ending.pop(name)
        self._answer_lost(name, self._listener.route(name), reason)
        self._incoming.pop(name, None)
        self._direct[name].close()
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()
        self._report_lost(name, reason)

    def _bye(self, sender: str, route: bytes) -> None:
        self._answer(route, messages.LEFT)
        self._listener.forget(sender)
        self._confirmed(sender)
        self._membership.lose(sender, _LEFT)

    @override
    def close(self) -> None:
        if self._parent:
            return  # the thread and the sockets are the parent's
        with self._opening:
            is_first, self._closed = not self._closed, True
        self._membership.close()
        if self._listens:
            if is_first:
                self._dispatcher.call(self._leave)
            self._dispatcher.join()

    def _leave(self) -> None:
        """Send a farewell, and end once all have confirmed that everything has come."""
        live = {name for name, each in self._connections.items() if not each.is_closed}
        self._leaving = live - self._ending.keys()
        self._send_to_all(messages.BYE)
        self._dispatcher.call_later(FLUSH, self._dispatcher.close)
        self._confirmed("")

    def _confirmed(self, name: str) -> None:
        if self._leaving is not None:
            self._leaving.discard(name)
            if not self._leaving:
                self._dispatcher.close()

    def _finish(self) -> None:
        """Close the sockets; the thread that receives has ended."""
        is_failing, self._closed = not self._closed, True
        self._membership.close()
        self._ending.clear()
        for direct in self._direct.values():
            direct.close()
        for each in list(self._connections.values()):
            each.close()
        if is_failing and self._receiver is not None:
            for name in self._membership.names():
                if name != self.name:
                    self._receiver.on_lost(
                        name, "cannot be reached: the thread that receives has ended"
                    )
        self._sockets.end()

    # -- inside -------------------------------------------------------------------------------

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: ZmqTransportConfig, names: Sequence[str]) -> Iterator[Meeting]:
        with address.held(config) as place:
            yield Meeting(str(place), keys.fresh(names))
