"""Where others connect to this member, and prove who they are."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from functools import partial
from pathlib import Path

from pparallel.errors import AuthenticationError, PparallelError
from pparallel.runtime.links import Hello, Membership, RefusedError, peer
from pparallel.runtime.links.dispatcher import READ, Dispatcher
from pparallel_ipc import handshake
from pparallel_ipc.connection import Connection
from pparallel_ipc.handshake import Introduction, LetIn

logger = logging.getLogger(__name__)

BACKLOG = 4096  #: connections that the system lets wait
STRANGERS = 256  #: connections that have not proved who they are; further ones wait outside
PATIENCE = 5.0  #: seconds that one may take for that
AGAIN = 0.1  #: seconds after which a listener that has paused goes on
LOGGED = 20  #: how many that were turned away are logged; further ones at level DEBUG


class Listener:
    """A listening socket of one member, which the dispatcher serves.

    Attributes:
        shortage: why nobody can be let in just now; logged once.
    """

    def __init__(
        self,
        address: Path,
        dispatcher: Dispatcher,
        me: Hello,
        key: bytes,
        membership: Membership,
        arena: int,
        let_in: LetIn,
    ) -> None:
        self._address, self._dispatcher, self._me, self._key = address, dispatcher, me, key
        self._membership, self._arena, self._let_in = membership, arena, let_in
        self._sock: socket.socket | None = None
        self._strangers: dict[Connection, Introduction] = {}
        self._logged = 0
        self.shortage: OSError | MemoryError | None = None

    def open(self) -> None:
        """Listen.

        Raises:
            PparallelError: another process that lives is this member already.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            self._bind(sock)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        self._dispatcher.register(sock.fileno(), self._accept)

    def close(self) -> None:
        """Let nobody in any more; safe to call again."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._dispatcher.unregister(sock.fileno())
            sock.close()
            self._address.unlink(missing_ok=True)
        for each in list(self._strangers.values()):
            each.fail(RefusedError("this member is closing"))

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

    def _accept(self, _: int) -> None:
        sock = self._sock
        while sock is not None and len(self._strangers) < STRANGERS:
            try:
                accepted = sock.accept()[0]
            except BlockingIOError:
                return
            except (OSError, MemoryError) as error:
                if self.shortage is None:
                    logger.warning("%s cannot let members in: %s", self._me.name, error)
                self.shortage = error
                break
            self.shortage = None
            try:
                self._receive(accepted)
            except (OSError, MemoryError, AuthenticationError) as error:
                logger.warning("%s cannot let a member in: %s", self._me.name, error)
                accepted.close()
        if sock is not None:  # perhaps one of them is let in soon, or goes
            self._dispatcher.watch(sock.fileno(), 0)
            self._dispatcher.call_later(AGAIN, self._resume)

    def _resume(self) -> None:
        if self._sock is not None:
            self._dispatcher.watch(self._sock.fileno(), READ)

    def _receive(self, accepted: socket.socket) -> None:
        part = handshake.inbound(self._me, self._key, peer(accepted), self._membership.admit)
        name = next(part).name
        connection = Connection(accepted, self._dispatcher, calling=False)
        stranger = Introduction(connection, part, name, self._arena, self._come_in, self._turn_away)
        self._strangers[connection] = stranger
        late = RefusedError(f"it did not prove who it is within {PATIENCE:g} s")
        self._dispatcher.call_later(PATIENCE, partial(stranger.fail, late))

    def _come_in(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        self._strangers.pop(connection, None)
        self._let_in(connection, hello, fds)

    def _turn_away(self, connection: Connection, name: str, error: Exception) -> None:
        why = str(error)
        try:
            connection.sock.send(handshake.refusal(why), socket.MSG_NOSIGNAL)
        except OSError:
            logger.debug("a stranger had gone before it was told: %s", why)
        connection.close()
        self._strangers.pop(connection, None)
        self._logged += 1
        level = logging.WARNING if self._logged <= LOGGED else logging.DEBUG
        logger.log(level, "%s did not let in %s: %s", self._me.name, name or "a stranger", why)
        if name:
            self._membership.refused(name, why)


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
