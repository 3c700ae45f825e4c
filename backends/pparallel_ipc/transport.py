"""Ipc transport: members are processes of one machine."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
import stat
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr
from typing_extensions import override

from pparallel.errors import (
    AuthenticationError,
    CallTimeoutError,
    ClosedError,
    ConfigError,
    PeerLostError,
    ResourceExhaustedError,
)
from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.job_folder import JobFolder
from pparallel.runtime.links import BaseTransport, Hello, ProcessId, RefusedError, peer
from pparallel.runtime.links.dispatcher import Dispatcher
from pparallel.runtime.memory import Arena
from pparallel.runtime.resources import explained, is_exhausted, start_thread
from pparallel_ipc import handshake, messages
from pparallel_ipc.arenas import Arenas
from pparallel_ipc.connection import Connection
from pparallel_ipc.direct import DirectCaller, DirectServer, new_pair
from pparallel_ipc.handshake import Introduction
from pparallel_ipc.listener import Listener

if TYPE_CHECKING:
    from pparallel.runtime.member import Member
    from pparallel_ipc.config import IpcTransportConfig

logger = logging.getLogger(__name__)

FLUSH = 1.0  #: seconds that closing waits for what has been sent to leave
LAST = 1.0  #: seconds that it waits for what is being received
KEPT = 8  #: idle direct connections to one member that are kept

_KEY = "ipc"  #: where a member finds the job's key among its own
_ROOM = 90  #: bytes of a folder's path, so that a socket's fits in the kernel's 108
_AGAIN = 0.002  #: seconds after which what may pass is tried again
#: who has not arrived yet is not there, or does not listen, or has no room for so many
_ABSENT = FileNotFoundError, ConnectionRefusedError, BlockingIOError
_PATIENCE = 2.0  #: seconds in which one that has lets others in
_ROSTER = 48  #: hellos in one packet
_DYING = 0.1  #: seconds by which the end of a process may follow that of its connections


class _Peer:
    """Another member: the connections to it and from it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connection: Connection | None = None  # by which messages leave, always the same one
        self.connections: set[Connection] = set()
        self.idle: list[DirectCaller] = []
        self.direct: set[DirectCaller] = set()  # all of them
        self.servers: set[DirectServer] = set()
        self.has_ended = False


class IpcTransport(BaseTransport["IpcTransportConfig"]):
    """Carries messages over Unix sockets, and large frames through shared memory.

    Messages between two members share a connection, which the dispatcher's thread reads. An
    exchange has a direct connection, which the calling thread reads itself.
    """

    def __init__(self, config: IpcTransportConfig, *, member: Member) -> None:
        super().__init__(config, member)
        self._me = Hello(member.name, uuid.uuid4().bytes, ProcessId.here())
        self._peers = {name: _Peer(name) for name in member.names if name != member.name}
        self._arenas = Arenas(config.arena_budget, f"pparallel-ipc-{member.name}")
        self._folder = Path()
        self._dispatcher: Dispatcher | None = None
        self._listener: Listener | None = None
        self._refusal: Exception | None = None
        self._have_met = False
        self._lock = threading.RLock()  # guards the connections of peers
        self._connected_to = threading.Condition(self._lock)
        self._connecting = threading.RLock()  # one thread connects at a time

    # -- opening ------------------------------------------------------------------------------

    @override
    def _listen(self) -> None:
        key, self._folder = self._key(), self._where()
        self._dispatcher = dispatcher = Dispatcher(
            f"{self.name}-dispatcher", self._lose_all, spins=True
        )
        self._arenas.open(dispatcher)
        self._listener = Listener(
            self._address(self.name),
            dispatcher,
            self._me,
            key,
            self._membership,
            self._arenas.descriptor,
            self._accepted,
        )
        self._listener.open()
        dispatcher.start()

    @override
    def _meet(self) -> None:
        """Wait until all members are here; the first one tells the others who is.

        Raises:
            CallTimeoutError: not all came within *timeout* seconds; it names who is missing.
            ResourceExhaustedError: this process had no room to let them in.
            PeerLostError: a member ended before all had come, or the first refused this one.
        """
        began, membership = time.monotonic(), self._membership
        timeout = self._config.rendezvous_timeout
        if not membership.is_first:
            with suppress(TimeoutError):  # reported below
                self._connect(membership.first, began + timeout, _ABSENT)
        try:
            membership.wait_for_all(timeout, began)
        except (PeerLostError, ClosedError) as error:
            raise self._refusal or error from None
        except CallTimeoutError as error:
            shortage = None if self._listener is None else self._listener.shortage
            if shortage is None:
                raise
            raise explained(shortage, f"letting members in: {error}") from shortage
        with self._lock:
            # Members were admitted a moment before their connections can be used: a message that
            # is sent meanwhile would make a second one, for which a close does not wait.
            self._connected_to.wait_for(
                lambda: self._closed or not membership.is_first or self._is_connected(), _PATIENCE
            )
            self._have_met = True
            connections = [each.connection for each in self._peers.values()]
        for connection in filter(None, connections if membership.is_first else ()):
            self._send_roster(connection)

    def _is_connected(self) -> bool:
        return all(each.connection or each.has_ended for each in self._peers.values())

    def _send_roster(self, connection: Connection) -> None:
        hellos = [each.pack() for each in self._membership.hellos()]
        for start in range(0, len(hellos), _ROSTER):
            connection.send((messages.MEMBERS, hellos[start : start + _ROSTER]))

    # -- connections --------------------------------------------------------------------------

    def _connect(
        self, name: str, until: float, passing: tuple[type[OSError], ...] = (BlockingIOError,)
    ) -> Connection:
        """Return the connection to member *name*, which is made at the first use.

        Raises:
            PeerLostError: it has ended.
            ClosedError: this member is leaving.
            ResourceExhaustedError: this process cannot connect to it now.
        """
        try:
            with self._connecting:
                found = self._peers[name].connection
                if found is not None:
                    return found
                return self._approach(name, self._connected(name, until, passing))
        except (OSError, RefusedError) as error:
            if is_exhausted(error):
                raise explained(error, f"the connection to member {name!r}") from error
            if self._closed:
                raise ClosedError(f"transport of {self.name!r}") from error
            if passing is _ABSENT and isinstance(error, TimeoutError):
                raise
            why = error.strerror if isinstance(error, OSError) else error
            self._membership.lose(name, f"cannot be reached: {why}")
            self._membership.check(name)
            raise

    def _connected(
        self, name: str, until: float, passing: tuple[type[OSError], ...]
    ) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            while time.monotonic() < until and not self._membership.closed:
                try:
                    sock.connect(os.fspath(self._address(name)))
                except passing:
                    time.sleep(_AGAIN)
                else:
                    return sock
            raise TimeoutError(errno.ETIMEDOUT, "it does not let anybody in")
        except BaseException:
            sock.close()
            raise

    def _approach(self, name: str, sock: socket.socket) -> Connection:
        """Begin the handshake; messages that are sent meanwhile wait in the connection."""
        dispatcher = self._dispatcher
        if dispatcher is None:  # closed meanwhile
            sock.close()
            raise ClosedError(f"transport of {self.name!r}")
        try:
            part = handshake.outbound(self._me, self._key(), peer(sock), name)
            connection = Connection(sock, dispatcher, calling=True)
            connection.payload = self._arenas.outbound()
            messages.send_with(sock, next(part).said, ())
        except BaseException:
            sock.close()
            raise
        found = self._peers[name]
        with self._lock:
            found.connections.add(connection)
            if found.connection is None:
                found.connection = connection
        Introduction(
            connection, part, name, self._arenas.descriptor, self._let_in, self._turned_away
        )
        return found.connection

    def _accepted(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        found = self._peers[hello.name]
        with self._lock:
            if self._closed or found.has_ended:
                connection.close()
                messages.close(fds)
                return
            found.connections.add(connection)
        self._let_in(connection, hello, fds)

    def _let_in(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        """Exchange messages with a member from now on."""
        name = hello.name
        try:
            connection.payload = self._arenas.payload(hello, fds, calling=connection.calling)
            fds = []  # they are closed
            if connection.calling:
                self._membership.admit(hello)
        except (RefusedError, OSError, ValueError, MemoryError) as error:
            messages.close(fds)
            self._turned_away(connection, name, error)
            return
        connection.serve(partial(self._take, name, connection), self._connection_ended)
        found = self._peers[name]
        with self._lock:
            if found.connection is None:
                found.connection = connection
            self._connected_to.notify_all()
            is_last = self._have_met and self._membership.is_first
        if is_last and not connection.calling:  # it was let in after the others had the roster
            self._send_roster(connection)

    def _turned_away(self, connection: Connection, name: str, error: Exception) -> None:
        connection.close()
        if isinstance(error, ConnectionError):
            reason = self._how_it_ended(name)
        else:
            reason = f"and this member cannot connect: {error}"
            self._refusal = PeerLostError(name, reason)
            if isinstance(error, AuthenticationError):
                self._refusal = error
        self._membership.lose(name, reason)

    # -- messages -----------------------------------------------------------------------------

    @override
    def send(self, to: str, frames: Frames) -> None:
        connection = self._connection(to)
        packed = connection.payload.short(frames)
        if packed is None:
            frames = [*frames]  # the sender may have left them to this
            packed = connection.payload.move(frames)
        large = packed if type(packed) is tuple else None
        connection.send((messages.MESSAGE, packed), large=large)

    @override
    def exchange(self, to: str, frames: Frames, timeout: float | None) -> Frames | None:
        connection, found = self._connection(to), self._peers[to]
        try:
            direct = found.idle.pop()  # the one used last: what it needs is in the caches
        except IndexError:
            made = self._new_direct(found, connection)
            if made is None:
                return None
            direct = made
        keeps, reply = False, None
        try:
            reply = direct.exchange(frames, connection, timeout)
            keeps = reply is not None and not found.has_ended and len(found.idle) < KEPT
        finally:
            if keeps:
                found.idle.append(direct)
            else:
                with self._lock:
                    found.direct.discard(direct)
                direct.close()
        if reply is None and direct.is_served:
            raise self._membership.why_ended(to, direct.until)
        return reply

    def _new_direct(self, found: _Peer, connection: Connection) -> DirectCaller | None:
        with self._lock:
            if found.has_ended or len(found.direct) >= self._config.lanes:
                return None
            try:
                ours, theirs = new_pair()
            except OSError as error:
                if is_exhausted(error):
                    return None  # the connection is there already
                raise
            direct = DirectCaller(ours, found.name)
            found.direct.add(direct)
        connection.send((messages.DIRECT,), [theirs.detach()])
        return direct

    def _take(self, name: str, connection: Connection, packet: Any, fds: list[int]) -> None:
        """Take a packet of a member."""
        kind, receiver = packet[0], self._receiver
        assert receiver is not None
        if kind == messages.MESSAGE:
            frames = connection.payload.unpack(packet[1])
            try:
                receiver.on_message(name, frames)
            except Exception:
                logger.exception("%s could not take a message of %s", self.name, name)
        elif kind == messages.DIRECT:
            self._serve_direct(name, connection, fds)
        elif kind == messages.BYE:
            self._membership.lose(name, "has left")
        elif kind == messages.LOST and name == self._membership.first:
            self._membership.lose(packet[1], packet[2])
        elif kind == messages.MEMBERS and name == self._membership.first:
            for each in packet[1]:
                hello = Hello.unpack(each)
                if hello.name != self.name:
                    self._membership.admit(hello)

    def _serve_direct(self, name: str, connection: Connection, fds: list[int]) -> None:
        found, receiver = self._peers[name], self._receiver
        assert receiver is not None
        if not fds:
            logger.warning("%s has no descriptor for requests of %s", self.name, name)
            return  # its caller sees that, and sends a message
        sock = socket.socket(fileno=fds[0])
        server = DirectServer(sock, name, receiver, connection.payload, found.servers.discard)
        with self._lock:
            if found.has_ended or self._closed:
                sock.close()
                return
            found.servers.add(server)
        try:
            start_thread(server.thread)
        except ResourceExhaustedError as error:
            logger.warning("%s has no thread for requests of %s: %s", self.name, name, error)
            server.close()  # its caller sees that, and sends a message

    def _connection(self, to: str) -> Connection:
        found = self._peers.get(to)
        if found is None or found.connection is None or found.has_ended or self._closed:
            self._check_peer(to)
            return self._connect(to, time.monotonic() + _PATIENCE)
        return found.connection

    # -- ends ---------------------------------------------------------------------------------

    @override
    def _member_ended(self, name: str, reason: str) -> None:
        if self._dispatcher is not None:
            self._dispatcher.call(partial(self._lose, name, reason))

    def _lose_all(self) -> None:
        """Report all other members lost, unless this is closed: nothing is received any more."""
        for name in self._membership.names():
            if name != self.name and not self._closed:
                self._membership.lose(name, "cannot be reached: the thread that receives has ended")

    def _lose(self, name: str, reason: str) -> None:
        found = self._peers[name]
        for each in list(found.connections):
            each.drain()
        if self._membership.is_first:
            self._send_lost(name, reason)
        self._disconnect(found)
        self._arenas.forget(name)
        self._report_lost(name, reason)

    def _send_lost(self, name: str, reason: str) -> None:
        """Report an end to the others; also to that member, which may live on."""
        with self._lock:
            connections = [each.connection for each in self._peers.values()]
        for connection in filter(None, connections):
            with suppress(ResourceExhaustedError):
                connection.send((messages.LOST, name, reason))

    def _disconnect(self, found: _Peer, *, peer_reads: bool = False) -> None:
        with self._lock:
            found.has_ended = True
            self._connected_to.notify_all()
            direct = list(found.direct)
            servers, connections = list(found.servers), list(found.connections)
            found.connections.clear()
        for each in direct:
            each.keeps = peer_reads
            each.end()
        with suppress(IndexError):  # one that a thread takes meanwhile, that thread closes
            while True:
                found.idle.pop().close()
        for server in servers:
            server.keeps = peer_reads
            server.end()
        for connection in connections:
            connection.close(peer_reads=peer_reads)

    def _connection_ended(self, connection: Connection) -> None:
        for found in self._peers.values():
            if connection in found.connections:
                reason = connection.problem or self._how_it_ended(found.name)
                self._membership.lose(found.name, reason)

    def _how_it_ended(self, name: str) -> str:
        hello = self._membership.hello(name)
        with suppress(OSError, MemoryError):  # reported also where there is no room to look
            if hello is not None and hello.process.ends_within(_DYING):
                return f"has died (process {hello.process.pid})"
        return "has closed the connection"

    @override
    def close(self) -> None:
        if self._parent:
            return  # the connections, what epoll watches and the address are the parent's
        with self._opening:  # of two threads that close, the second waits for the first
            with self._lock:
                self._closed = True
                self._connected_to.notify_all()
            self._membership.close()
            dispatcher, self._dispatcher = self._dispatcher, None
            if dispatcher is not None:
                self._disconnect_all(dispatcher)

    def _disconnect_all(self, dispatcher: Dispatcher) -> None:
        connections = [each for found in self._peers.values() for each in found.connections]
        deadline = time.monotonic() + FLUSH
        _wait_until_empty(connections, deadline)
        for connection in connections:  # after the last message by any of them
            with suppress(ResourceExhaustedError):
                connection.send((messages.BYE,))
        _wait_until_empty(connections, deadline)
        dispatcher.close(LAST)
        if self._listener is not None:
            self._listener.close()
        servers = [each.thread for found in self._peers.values() for each in found.servers]
        for found in self._peers.values():
            self._disconnect(found, peer_reads=True)  # in arenas that last as long as they are read
        for thread in servers:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._arenas.close()

    # -- inside -------------------------------------------------------------------------------

    def arena(self, of: str) -> Arena | None:
        """As :meth:`SharesMemory.arena`."""
        return self._arenas.of(of, of == self.name)

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: Any, names: Sequence[str]) -> Iterator[Meeting]:
        key = SecretStr(secrets.token_hex(32))
        with JobFolder() as folder:
            yield Meeting(str(folder.path), {name: {_KEY: key} for name in names})

    def _address(self, name: str) -> Path:
        return self._folder / str(self._member.names.index(name))

    def _where(self) -> Path:
        given = self._config.directory
        if given is None and (self._member.rendezvous or "").startswith("/"):
            given = Path(str(self._member.rendezvous))
        if given is None:
            message = (
                "nothing says where the members meet: start them with pparallel.launch, "
                "or give transport.directory, a folder of mode 700, and transport.key"
            )
            raise ConfigError(message, path="transport.directory")
        return _checked(given)

    def _key(self) -> bytes:
        key = self._member.keys.get(_KEY) or self._config.key
        if key is None:
            message = (
                "members prove to one another that they are of one job, and there is no key: start "
                "them with pparallel.launch, or give all of them the same transport.key"
            )
            raise ConfigError(message, path="transport.key")
        return key.get_secret_value().encode()


def _wait_until_empty(connections: Sequence[Connection], deadline: float) -> None:
    """Wait until all that was sent has left."""
    pause = threading.Event()
    while not all(each.is_empty() for each in connections) and time.monotonic() < deadline:
        pause.wait(0.001)


def _checked(folder: Path) -> Path:
    """Return *folder* if members may meet there.

    Raises:
        ConfigError: there is no such folder, or others may enter it, or its path is too long.
    """
    path = "transport.directory"
    if len(os.fsencode(folder)) > _ROOM:
        raise ConfigError(f"{folder} is too long for a socket: use a shorter path", path=path)
    try:
        found = folder.stat()
    except OSError as error:
        message = f"members cannot meet in {folder}: {error.strerror}; make it with mkdir -m 700"
        raise ConfigError(message, path=path) from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{folder} is no folder", path=path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        message = f"others may enter {folder}: make it your own, with mode 700"
        raise ConfigError(message, path=path)
    return folder
