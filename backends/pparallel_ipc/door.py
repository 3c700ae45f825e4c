"""Where others connect to this member, and prove who they are."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from pparallel.errors import AuthenticationError, PparallelError
from pparallel.runtime.links import Hello, Membership, RefusedError, peer
from pparallel.runtime.processes import close_private, private
from pparallel_ipc import handshake, messages
from pparallel_ipc.connection import Connection
from pparallel_ipc.handshake import Called
from pparallel_ipc.hub import READ, Hub

logger = logging.getLogger(__name__)

BACKLOG = 4096  #: connections that the system lets wait
STRANGERS = 256  #: connections that have not proved who they are; further ones wait outside
PATIENCE = 5.0  #: seconds that one may take for that
_AGAIN = 0.1  #: seconds after which one is accepted that no descriptor was there for
TOLD = 20  #: how many that were turned away are told of; further ones at level DEBUG

LetIn = Callable[[Connection, Hello, list[int]], None]


class Door:
    """A listening socket of one member, in the hub's hands.

    Attributes:
        shortage: why nobody can be let in just now; told once.
    """

    def __init__(
        self,
        address: Path,
        hub: Hub,
        me: Hello,
        key: bytes,
        membership: Membership,
        arena: int,
        let_in: LetIn,
    ) -> None:
        self._address, self._hub, self._me, self._key = address, hub, me, key
        self._membership, self._arena, self._let_in = membership, arena, let_in
        self._sock: socket.socket | None = None
        self._strangers: set[Visitor] = set()
        self._lock = threading.RLock()
        self._told = 0
        self.shortage: OSError | MemoryError | None = None

    def open(self) -> None:
        """Listen.

        Raises:
            PparallelError: another process that lives is this member already.
        """
        sock = private(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        sock.setblocking(False)
        try:
            self._bind(sock)
            sock.listen(BACKLOG)
        except BaseException:
            close_private(sock)
            raise
        self._sock = sock
        self._hub.register(sock.fileno(), self._knocked)

    def close(self) -> None:
        """Let nobody in any more; safe to call again."""
        with self._lock:
            sock, self._sock = self._sock, None
        if sock is not None:
            self._hub.unregister(sock.fileno())
            close_private(sock)
            self._address.unlink(missing_ok=True)
        for each in list(self._strangers):
            each.turn_away("this member is closing")

    def _bind(self, sock: socket.socket) -> None:
        address = os.fspath(self._address)
        try:
            sock.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if _answers(address):
                message = f"another process is member {self._me.name!r} already"
                raise PparallelError(message) from None
            self._address.unlink()  # its owner has died
            sock.bind(address)

    def _knocked(self, _: int) -> None:
        sock = self._sock
        while sock is not None and len(self._strangers) < STRANGERS:
            try:
                accepted = private(lambda: sock.accept()[0])
            except BlockingIOError:
                return
            except (OSError, MemoryError) as error:
                if self.shortage is None:
                    logger.warning("%s cannot let members in: %s", self._me.name, error)
                self.shortage = error
                self._hub.change(sock.fileno(), remove=READ)
                self._hub.later(_AGAIN, self._open_again)
                return
            self.shortage = None
            try:
                self._receive(accepted)
            except (OSError, MemoryError, AuthenticationError) as error:
                logger.warning("%s cannot let a member in: %s", self._me.name, error)
                close_private(accepted)
        if sock is not None:
            self._hub.change(sock.fileno(), remove=READ)  # until one of them is let in, or has gone

    def _receive(self, accepted: socket.socket) -> None:
        called = Called(self._me, self._key, peer(accepted), self._admit)
        connection = Connection(accepted, self._hub, calling=False)
        visitor = Visitor(connection, called, self._arena, self._come_in, self._turned_away)
        self._strangers.add(visitor)
        self._hub.later(PATIENCE, lambda: self._expire(visitor))

    def _admit(self, hello: Hello) -> None:
        try:
            self._membership.admit(hello)
        except RefusedError as error:
            self._membership.refused(hello.name, str(error))
            raise

    def _come_in(self, visitor: Visitor, hello: Hello, fds: list[int]) -> None:
        self._forget(visitor)
        self._let_in(visitor.connection, hello, fds)

    def _turned_away(self, visitor: Visitor, why: str) -> None:
        self._forget(visitor)
        name = visitor.called.name
        self._told += 1
        level = logging.WARNING if self._told <= TOLD else logging.DEBUG
        logger.log(level, "%s did not let in %s: %s", self._me.name, name or "a stranger", why)
        if name:
            self._membership.refused(name, why)

    def _expire(self, visitor: Visitor) -> None:
        if visitor in self._strangers:
            visitor.turn_away(f"it did not prove who it is within {PATIENCE:g} s")

    def _forget(self, visitor: Visitor) -> None:
        was_full = len(self._strangers) >= STRANGERS
        self._strangers.discard(visitor)
        if was_full:
            self._open_again()

    def _open_again(self) -> None:
        sock = self._sock
        if sock is not None:
            self._hub.change(sock.fileno(), add=READ)


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
            fits = hello is not None and self._arena >= 0
            messages.introduce(self.connection.sock, answer, [self._arena] if fits else ())
        except BlockingIOError:
            return
        except (OSError, RefusedError, AuthenticationError) as error:
            messages.close(fds)
            self.turn_away(str(error))
            return
        if hello is not None:
            self.is_done = True
            self._let_in(self, hello, fds)


def _answers(address: str) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
