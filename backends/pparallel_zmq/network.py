"""A member among others: who is there, what connects them, and how each end is told."""

from __future__ import annotations

import hmac
import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING
from weakref import WeakSet

import zmq

from pparallel.errors import (
    AuthenticationError,
    CallTimeoutError,
    ClosedError,
    ConfigError,
    PeerLostError,
)
from pparallel.interfaces.transport import Frames
from pparallel.runtime.exchange import Exchange
from pparallel.runtime.links import Hello, Membership, ProcessId, RefusedError
from pparallel.runtime.pending import Pending
from pparallel.runtime.request_transport import Handler
from pparallel.runtime.resources import is_exhausted
from pparallel_zmq import address, keys
from pparallel_zmq.address import TORCHRUN, Address
from pparallel_zmq.config import ZmqTransportConfig
from pparallel_zmq.lanes import LAST, Lane
from pparallel_zmq.links import BROKE, LEFT, Link
from pparallel_zmq.memory import Memory
from pparallel_zmq.reader import Reader
from pparallel_zmq.server import Server
from pparallel_zmq.sockets import LINGER, Connection, Sockets, making
from pparallel_zmq.wire import Kind, Limits, Message

if TYPE_CHECKING:
    from pparallel.runtime.member import Member

logger = logging.getLogger(__name__)


class Network:
    """What connects a member to the others.

    Attributes:
        config: of the transport.
        limits: what a message may hold.
        memory: where large frames go.
        serving: reads what others ask, and runs the handler.
        calling: reads the replies to what this member asks.
        hello: what this member says of itself.
        membership: who is there.
        links: the last one to each member that has begun.
        is_closed: whether no request may be sent any more.
    """

    def __init__(
        self,
        config: ZmqTransportConfig,
        member: Member,
        handler: Handler,
        pending: Pending[Frames],
        lost: Callable[[str, str], None],
    ) -> None:
        """Acquire what the member needs to be reached.

        Raises:
            ConfigError: there are no keys, or the address cannot be had.
            ResourceExhaustedError: there are too few descriptors; nothing is left open.
        """
        self.config, self._member = config, member
        self._pending, self._lost = pending, lost
        self.limits = Limits(
            config.max_frames, config.max_message, config.piece_size, config.window
        )
        self._exchange = self._torchruns_exchange()
        self._keyring = keys.keyring(config, member, self._exchange)
        self._place = self._meeting_place()
        self._place.prepare()
        self.links: dict[str, Link] = {}
        self._routes: dict[str, bytes] = {}  # by which connection each member is told something
        self._made: dict[str, Link] = {}  # the last one to each member, even if it has not begun
        self._ever: WeakSet[Link] = WeakSet()
        self._linking = threading.RLock()  # a signal handler may make a second link meanwhile
        self._refusal: Exception | None = None
        self._met = self.is_closed = False
        self.memory = Memory()
        self.membership = Membership(member.name, member.names, config.liveness_bound, self._ended)
        with ExitStack() as undo, making(f"the sockets of member {member.name!r}"):
            self.serving = Reader("pparallel-zmq-serve")
            undo.callback(self.serving.close)
            self.calling = Reader("pparallel-zmq-call")
            undo.callback(self.calling.close)
            self._sockets = Sockets(member.name, self._keyring, config, self.limits)
            undo.callback(self._sockets.close)
            connection, self._address = self._bound()
            here = str(self._address)
            self.hello = Hello(member.name, os.urandom(16), ProcessId.here(), here)
            self._server = Server(self, connection, handler)
            undo.pop_all()

    def meet(self) -> None:
        """Connect to the first member, and wait until all have.

        Raises:
            CallTimeoutError: some did not come in time; it names them.
            PeerLostError: one ended meanwhile.
            AuthenticationError: the first member does not know this one's key.
        """
        self.calling.start()
        self.serving.start()
        first, limit = self.membership.first, self.config.rendezvous_timeout
        if not self.membership.is_first:
            self._link(first, self._place)
        try:
            self.membership.wait_for_all(limit)
        except CallTimeoutError:
            if self.membership.is_first or self.membership.hello(first) is not None:
                raise
            trouble = self.links[first].trouble
            what = f"the hello to the first member, {first!r} at {self._place}"
            what += f" ({trouble})" if trouble else ","
            raise CallTimeoutError(what, limit) from None
        except PeerLostError:
            if self._refusal is not None:
                raise self._refusal from None
            raise
        self._met = True
        if self.membership.is_first:
            roster = [self.hello, *self.membership.hellos()]
            for each in roster[1:]:
                self._connect(each)  # that last one let in may not have been connected to yet
            self._tell(None, Kind.ROSTER, *(each.pack() for each in roster))

    # -- connections --------------------------------------------------------------------------

    def _torchruns_exchange(self) -> Exchange | None:
        """Return where members that torchrun starts meet, unless they are given an address."""
        member, config = self._member, self.config
        where = member.rendezvous or ""
        if config.address is not None or not where.startswith(TORCHRUN):
            return None
        return Exchange(where, member.rank, member.world_size, config.rendezvous_timeout)

    def _meeting_place(self) -> Address:
        if self._exchange is None:
            return address.meeting_place(self.config, self._member)
        return address.torchrun_place(self.config, self._member, self._exchange)

    def _bound(self) -> tuple[Connection, Address]:
        mine = self._place
        if not self.membership.is_first:
            mine = self._place.of_another(self._member, self.config.host)
        try:
            connection, found = self._sockets.bound(mine)
        except zmq.ZMQError as error:
            if is_exhausted(OSError(error.errno, "")):
                raise
            message = f"member {self._member.name!r} cannot be met at {mine}: {error.strerror}"
            raise ConfigError(message, path="transport.address") from None
        if self.membership.is_first:
            self._place = found
            if self._exchange is not None:
                self._exchange.put("zmq", str(found).encode())
        return connection, found

    def link_to(self, to: str) -> Link:
        """Return a link to member *to* that can be used, and make it if need be."""
        link = self.links.get(to)
        if link is not None and not link.is_over:
            return link
        return self._link(to, self._address_of(to))

    def _address_of(self, to: str) -> Address:
        found = self.membership.hello(to)
        if found is None:
            raise PeerLostError(to, self.membership.reason(to))
        # The first is met where this member was told, whatever it is called there.
        return self._place if to == self.membership.first else Address.parse(found.address)

    def _link(self, to: str, place: Address) -> Link:
        with self._linking, making(f"a connection to member {to!r}"):
            if self.is_closed:
                raise ClosedError(f"transport of {self._member.name!r}")
            link = self.links.get(to)
            if link is not None and not link.is_over:
                return link
            link = self._made.get(to)  # a signal's handler may have interrupted its beginning
            if link is None or link.is_over:
                link = Link(self, to, self._sockets.connected(to, place, beats=True))
                self._ever.add(link)
                self._made[to] = link
            link.begin()
            self.links[to] = link
        return link

    def lane(self, to: str) -> Lane:
        """Return a new lane to member *to*."""
        place = self._address_of(to)
        with self._linking, making(f"a connection to member {to!r}"):
            if self.is_closed:
                raise ClosedError(f"transport of {self._member.name!r}")
            return Lane(self._sockets.connected(to, place), self.limits, self.memory)

    def why_over(self, to: str) -> Exception:
        """Return why a link to member *to* is of no use any more."""
        if self.is_closed:
            return ClosedError(f"transport of {self._member.name!r}")
        if not self.membership.expects(to):
            return PeerLostError(to, self.membership.reason(to))
        return PeerLostError(to, BROKE)

    def _connect(self, found: Hello) -> None:
        """As the first member, connect to one that was let in."""
        try:
            place = Address.parse(found.address)
        except ConfigError as error:
            raise RefusedError(f"where member {found.name!r} is met: {error}") from None
        self._link(found.name, place)

    def _proof(self, client: str, server: str, challenge: bytes) -> bytes:
        if self._keyring is None or self._address.is_tcp:
            return b""  # CURVE has proven it, or nothing is to be
        return self._keyring.proof(client, server, challenge)

    def is_proven(self, to: str, proof: bytes) -> bool:
        """Return whether the other end of a link, by its answer to the hello, is member *to*."""
        expected = self._proof(self._member.name, to, self.hello.incarnation)
        return hmac.compare_digest(expected, proof)

    def _tell(self, but: Link | None, kind: int, *frames: bytes) -> None:
        """Say something to all others but one, as the first member."""
        for each in list(self.links.values()):
            if each is not but and not each.is_over:
                each.say(kind, *frames)

    # -- what members say ---------------------------------------------------------------------

    def heard(self, sender: str, route: bytes, message: Message) -> None:
        """Handle a message that is no request."""
        kind, *_, received = message
        frames = [bytes(memoryview(each)) for each in received]
        membership = self.membership
        if kind == Kind.HELLO and len(frames) == 1:
            self._greeted(sender, route, frames[0])
        elif sender != membership.first or membership.is_first:
            return
        elif kind == Kind.ROSTER:
            try:
                for found in map(Hello.unpack, frames):
                    if found.name != membership.me and membership.expects(found.name):
                        membership.admit(found)
            except RefusedError as error:  # it has ended just now
                logger.info("A member was told of and is not let in: %s", error)
        elif kind == Kind.LOST and len(frames) == 2:
            name, reason = (each.decode() for each in frames)
            link = self.links.get(name)
            if reason != LEFT or link is None or link.is_over:
                membership.lose(name, reason)
            else:  # what it has answered last may still be on its way
                link.expect_leave(LAST)

    def _greeted(self, sender: str, route: bytes, data: bytes) -> None:
        try:
            found = Hello.unpack(data)
            if found.name != sender:
                message = f"it says that it is {found.name!r}, and its key is that of {sender!r}"
                raise RefusedError(message)
            membership = self.membership
            if membership.first in (membership.me, found.name):
                membership.admit(found)
            if membership.is_first:
                self._connect(found)
        except RefusedError as error:
            self.membership.refused(sender, str(error))
            self._server.say(route, Kind.REFUSED, str(error).encode())
            return
        self._routes[sender] = route
        proof = self._proof(sender, self._member.name, found.incarnation)
        self._server.say(route, Kind.WELCOME, proof)

    # -- what links tell ----------------------------------------------------------------------

    def refused(self, link: Link, why: str) -> None:
        """Take what the other end says."""
        if link.to == self.membership.first and not self._met and self._refusal is None:
            message = f"the first member, {link.to!r} at {self._place}, refuses this one: {why}"
            self._refusal = AuthenticationError(message)
        whom = "the first" if self.membership.is_first else "this"
        self._give_up(link, f"refuses {whom} member: {why}")

    def unreachable(self, link: Link, why: str) -> None:
        """Give up a member that the first cannot reach, or the first; or just the connection."""
        if link.to == self.membership.first and not self._met and not link.was_up:
            return  # it may be yet to come
        self._give_up(link, why, f" from member {self._member.name!r}")

    def _give_up(self, link: Link, why: str, whence: str = "") -> None:
        if self.membership.first in (self.membership.me, link.to):
            self.membership.lose(link.to, why)
        else:
            link.finish(keep=0.0)
            link.fail_all(lambda: PeerLostError(link.to, why + whence))

    def _ended(self, name: str, reason: str) -> None:
        """Tell of the end of a member, once."""
        link = self.links.get(name)
        if self.membership.is_first:
            told = name.encode(), reason.encode()
            self._tell(link, Kind.LOST, *told)
            if link is not None and reason != LEFT:  # should it ever hear of it
                link.say(Kind.LOST, *told)
        if name in self._made:
            self._made[name].finish()
        self._pending.lose(name, reason)
        self._server.forget(name)
        self._lost(name, reason)

    # -- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Disconnect; called once. In a thread of its own readers another one finishes it."""
        with self._linking:
            self.is_closed = True
        self.membership.close()
        for each in self._made.values():
            each.finish()
        if self.serving.is_here or self.calling.is_here:
            threading.Thread(target=self._finish, name="pparallel-zmq-close").start()
        else:
            self._finish()

    def _finish(self) -> None:
        self._server.flush(LINGER)
        for route in list(self._routes.values()):
            self._server.say(route, Kind.BYE)
        self._server.flush(LINGER)  # the main thread leaves them to the reader
        for reader in (self.calling, self.serving):
            reader.close()
        for reader in (self.calling, self.serving):
            reader.join()
        self._sockets.close()
        for each in list(self._ever):
            each.ended.close()
        self.memory.close()
