"""A member's place on the machine: where others connect, and what it has of each of them."""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pparallel.errors import AuthenticationError, CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.transport import Handler
from pparallel.runtime.interrupts import is_interrupt
from pparallel.runtime.links import Hello, Membership, RefusedError, peer
from pparallel.runtime.memory import Arena
from pparallel.runtime.processes import close_private, private
from pparallel.runtime.resources import explained, is_exhausted
from pparallel_ipc import messages
from pparallel_ipc.arenas import Arenas
from pparallel_ipc.connection import Connection
from pparallel_ipc.door import Door
from pparallel_ipc.guest import Guest
from pparallel_ipc.handshake import Caller, Introduction
from pparallel_ipc.hub import Hub
from pparallel_ipc.line import Line

if TYPE_CHECKING:
    from pparallel.runtime.member import Member
    from pparallel_ipc.config import IpcTransportConfig

logger = logging.getLogger(__name__)

FLUSH = 1.0  #: seconds that closing waits for answers that are known to leave
_AGAIN = 0.002  #: seconds after which what may pass is tried again
#: who has not arrived yet is not there, or does not listen, or has no room for so many
_ABSENT = FileNotFoundError, ConnectionRefusedError, BlockingIOError
_PATIENCE = 2.0  #: seconds in which one that has lets others in
_ROSTER = 48  #: hellos in one message
_DYING = 0.1  #: seconds by which the end of a process may follow that of its connections


class Station:
    """All connections of one member, and the thread that reads them."""

    def __init__(
        self,
        config: IpcTransportConfig,
        member: Member,
        me: Hello,
        membership: Membership,
        handler: Handler,
        key: bytes,
    ) -> None:
        self._config, self._member, self._me = config, member, me
        self._membership, self._handler, self._key = membership, handler, key
        self._hub = Hub(member.name)
        self._lock = threading.RLock()
        self._connecting = threading.RLock()
        self._folder = Path()
        self._door: Door | None = None
        self._arenas = Arenas(config.arena_budget, f"pparallel-ipc-{member.name}")
        self.lines: dict[str, Line] = {}
        self._guests: dict[str, Guest] = {}
        self._connections: dict[Connection, str] = {}
        self._late: dict[Connection, list[int]] = {}  # descriptors that wait for room
        self._refusal: Exception | None = None
        self._have_met = False

    # -- opening ----------------------------------------------------------------------------

    def open(self, folder: Path) -> None:
        """Have a place in *folder*, where others connect."""
        self._folder = folder
        self._hub.start()
        self._arenas.open()
        self._door = Door(
            self._address(self._member.name),
            self._hub,
            self._me,
            self._key,
            self._membership,
            self._arenas.descriptor,
            self._guest_came,
        )
        self._door.open()

    def meet(self, timeout: float) -> None:
        """Wait until all members are here; the first one tells the others who is.

        Raises:
            CallTimeoutError: not all came within *timeout* seconds; it names who is missing.
            ResourceExhaustedError: this process had no room to let them in.
            PeerLostError: a member ended before all had come, or the first refused this one.
        """
        began = time.monotonic()
        membership = self._membership
        if not membership.is_first:
            with self._connecting_to(membership.first):
                try:
                    sock = self._connected(membership.first, began + timeout, _ABSENT)
                except TimeoutError as error:
                    if is_interrupt(error):  # else it is told below
                        raise
                else:
                    self._approach(membership.first, sock)
        try:
            membership.wait_for_all(timeout, began)
        except (PeerLostError, ClosedError) as error:
            raise self._refusal or error from None
        except CallTimeoutError as error:
            shortage = None if self._door is None else self._door.shortage
            if shortage is None:
                raise
            raise explained(shortage, f"letting members in: {error}") from shortage
        with self._lock:
            self._have_met = True
            guests = list(self._guests.values()) if membership.is_first else []
        for guest in guests:
            self._tell_who_is_here(guest)

    def _tell_who_is_here(self, guest: Guest) -> None:
        hellos = [each.pack() for each in self._membership.hellos()]
        for start in range(0, len(hellos), _ROSTER):
            guest.post.say((messages.MEMBERS, hellos[start : start + _ROSTER]))

    # -- connections ------------------------------------------------------------------------

    def arena(self, of: str) -> Arena | None:
        """Return the arena of a member, as far as this one has it."""
        return self._arenas.of(of, of == self._member.name)

    def line(self, name: str) -> Line:
        """Return the way to member *name*, which is there from the first use on.

        Raises:
            PeerLostError: it has ended.
            ClosedError: this member is leaving.
            ResourceExhaustedError: this process cannot connect to it now.
        """
        with self._connecting_to(name):
            until = time.monotonic() + _PATIENCE
            return self.lines.get(name) or self._approach(name, self._connected(name, until))

    @contextmanager
    def _connecting_to(self, name: str) -> Iterator[None]:
        """Connect to a member inside, one thread at a time: it is there for all, or for none."""
        try:
            with self._connecting:
                yield
        except (OSError, MemoryError, RefusedError) as error:
            if is_exhausted(error):
                raise explained(error, f"the connection to member {name!r}") from error
            if self._membership.closed:
                raise ClosedError(f"transport of {self._member.name!r}") from error
            why = error.strerror if isinstance(error, OSError) else error
            self._membership.lose(name, f"cannot be reached: {why}")
            self._membership.check(name)
            raise

    def _connected(
        self, name: str, until: float, passing: tuple[type[OSError], ...] = (BlockingIOError,)
    ) -> socket.socket:
        """Connect to a member; by default wait only where more come than the system lets wait."""
        sock = private(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
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
            close_private(sock)
            raise

    def _approach(self, name: str, sock: socket.socket) -> Line:
        try:
            caller = Caller(self._me, self._key, peer(sock), name)
            connection = Connection(sock, self._hub, calling=True)
            line = Line(name, connection, self._arenas.outbound(), self._config.lanes)
            with self._lock:
                self._connections[connection] = name
            try:
                messages.introduce(sock, caller.first)
                let_in, arena = partial(self._let_in, line), self._arenas.descriptor
                Introduction(connection, caller, arena, let_in, self._turned_away)
            except BaseException:
                self._connections.pop(connection, None)
                raise
        except BaseException:
            close_private(sock)
            raise
        with self._lock:
            return self.lines.setdefault(name, line)

    def _guest_came(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        with self._lock:
            if not self._membership.closed:
                self._connections[connection] = hello.name
        self._let_in(None, connection, hello, fds)

    def _let_in(
        self,
        line: Line | None,
        connection: Connection,
        hello: Hello,
        fds: list[int],
        until: float = math.inf,
    ) -> None:
        """Exchange messages with a member from now on: as a guest, if there is no line to it."""
        name = hello.name
        self._late.pop(connection, None)
        if connection not in self._connections:  # it has ended meanwhile
            messages.close(fds)
            connection.close()
            return
        is_last = False
        try:
            payload = self._arenas.payload(hello, fds, calling=connection.calling)
            fds = []  # they are closed
            end: Line | Guest
            if line is not None:
                self._membership.admit(hello)
                end, line.payload = line, payload
            else:
                end = guest = Guest(name, self._handler, self._hub, connection.post, payload)
                with self._lock:
                    if connection not in self._connections:  # it has ended meanwhile
                        connection.close()
                        return
                    self._guests[name] = guest
                    is_last = self._have_met and self._membership.is_first
            connection.serve(partial(self._take, name, end), self._connection_ended)
        except (RefusedError, OSError, ValueError, MemoryError) as error:
            now = time.monotonic()
            if is_exhausted(error) and now < until:  # it may come back, but not for ever
                self._hub.unregister(connection.sock.fileno())
                until = min(until, now + self._config.liveness_bound)
                self._late[connection] = fds
                again = partial(self._let_in, line, connection, hello, fds, until)
                self._hub.later(_AGAIN, again)
            else:
                messages.close(fds)
                self._turned_away(connection, name, error)
            return
        connection.post.open()
        if is_last:  # the others were told between its being let in and now
            self._tell_who_is_here(guest)

    def _turned_away(self, connection: Connection, name: str, error: Exception) -> None:
        with self._lock:
            self._connections.pop(connection, None)
        connection.close()
        if isinstance(error, ConnectionError):
            reason = self._how_it_ended(name)
        else:
            reason = f"and this member cannot connect: {error}"
            self._refusal = PeerLostError(name, reason)
            if isinstance(error, AuthenticationError):
                self._refusal = error
        self._membership.lose(name, reason)

    # -- members ----------------------------------------------------------------------------

    def _take(self, name: str, end: Line | Guest, message: Any, fds: list[int]) -> None:
        kind = message[0]
        if kind == messages.MANY:
            end.take(message[1])
        elif kind == messages.LANE and isinstance(end, Guest):
            try:
                end.add_lane(fds)
            except OSError as error:
                logger.warning("%s has no lane for a call of %s: %s", self._me.name, name, error)
        elif kind == messages.BYE:
            self._membership.lose(name, "has left")
        elif kind == messages.LOST and name == self._membership.first:
            self._membership.lose(message[1], message[2])
        elif kind == messages.MEMBERS and name == self._membership.first:
            for each in message[1]:
                hello = Hello.unpack(each)
                if hello.name != self._me.name:
                    self._membership.admit(hello)

    def lose(self, name: str, reason: str) -> None:
        """Forget a member that has ended, and tell the others if that is for this one to do."""
        with self._lock:
            line, guest = self.lines.pop(name, None), self._guests.pop(name, None)
            gone = [each for each, peer in self._connections.items() if peer == name]
            for each in gone:
                del self._connections[each]
            others = list(self._guests.values()) if self._membership.is_first else []
        for each in gone:  # what it had answered counts, whichever connection told of its end
            if each.calling:
                each.drain()
        if guest is not None:
            if self._membership.is_first:
                guest.post.say((messages.LOST, name, reason))  # should it still live, it hears why
            guest.close()
        if line is not None:
            line.close()
        for each in gone:
            self._close(each)
        self._arenas.forget(name)
        for other in others:
            other.post.say((messages.LOST, name, reason))

    def _connection_ended(self, connection: Connection) -> None:
        name = self._connections.get(connection)
        if name is not None:
            self._membership.lose(name, connection.problem or self._how_it_ended(name))

    def _how_it_ended(self, name: str) -> str:
        hello = self._membership.hello(name)
        with suppress(OSError, MemoryError):  # whose end is told of also where nobody can look
            if hello is not None and hello.process.ends_within(_DYING):
                return f"has died (process {hello.process.pid})"
        return "has closed the connection"

    # -- closing ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Let answers leave that are known."""
        deadline = time.monotonic() + FLUSH
        pause = threading.Event()
        guests = list(self._guests.values())
        for guest in guests:
            guest.post.flush()
        while not all(each.post.is_empty() for each in guests) and time.monotonic() < deadline:
            pause.wait(0.001)

    def close(self) -> None:
        """Say goodbye, and give everything back."""
        self._hub.close()  # first: nothing new comes from now on
        if self._door is not None:
            self._door.close()
        with self._lock:
            connections, self._connections = list(self._connections), {}
            lines, guests = list(self.lines.values()), list(self._guests.values())
            self.lines.clear()
            self._guests.clear()
        threads = [thread for guest in guests for thread in guest.threads()]
        threads += self._hub.threads()
        for guest in guests:  # first: a peer that hears of it ends its lanes
            guest.close(peer_reads=True)  # in arenas that last as long as it looks at them
        for connection in connections:
            connection.post.say((messages.BYE,))
        for line in lines:
            line.close(peer_reads=True)
        for connection in connections:
            self._close(connection)
        deadline = time.monotonic() + FLUSH
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._arenas.close()

    def _close(self, connection: Connection) -> None:
        connection.close()
        late = self._late.pop(connection, [])
        fds = late[:]
        del late[:]  # whoever is called later finds none to close
        messages.close(fds)

    def _address(self, name: str) -> Path:
        return self._folder / str(self._member.names.index(name))
