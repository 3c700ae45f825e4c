"""The socket where others reach a member, and who is at the other ends of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import zmq
from typing_extensions import Buffer

from pparallel_zmq.address import Address
from pparallel_zmq.sockets import NOW, Sockets
from pparallel_zmq.strangers import WATCHED

logger = logging.getLogger(__name__)

BATCH = 256  #: messages that are taken before other sockets are looked at

_RCVMORE = int(zmq.RCVMORE)

#: called with the sender, its route, the first part of a message, and the others
Take = Callable[[str, bytes, bytes, Iterator[Buffer]], None]


class Listener:
    """Takes what other members send, in the thread that receives.

    Each connection has a route, by which its other end is answered.
    """

    def __init__(
        self,
        address: Address,
        sockets: Sockets,
        take: Take,
        ended: Callable[[str], None],
        *,
        is_open: bool,
    ) -> None:
        """Bind a socket.

        Args:
            address: where.
            sockets: makes it.
            take: called with each message.
            ended: called with the name of a member whose connection has ended.
            is_open: whether there are no keys: everybody is who he says.

        Raises:
            OSError, ZMQError: the address cannot be had, or there are no descriptors.
        """
        self._take, self._ended, self._is_open = take, ended, is_open
        self._dispatcher, self._strangers = sockets.dispatcher, sockets.strangers
        self._names: dict[bytes, str] = {}
        self._routes: dict[str, tuple[bytes, int]] = {}  # and the descriptor, by name
        self._socket = sockets.listening(address)
        _, self._look_at_monitor = sockets.monitor(self._socket, WATCHED, self._happened)
        self.address = sockets.bind(self._socket, address)
        self._recv = self._socket.recv
        self._fd = sockets.watch(self._socket, self.empty)

    def is_connected(self, name: str) -> bool:
        """Return whether more may come from member *name*."""
        return name in self._routes

    def forget(self, name: str) -> None:
        """Expect nothing more of member *name*."""
        found = self._routes.pop(name, None)
        if found is not None:
            self._names.pop(found[0], None)
            self._ended(name)

    def answer(self, route: bytes, part: bytes) -> None:
        """Send an answer to the other end of a connection; harmless if that has ended."""
        with suppress(zmq.ZMQError):
            self._socket.send_multipart([route, part], NOW)
        self._dispatcher.look(self._fd)

    def route(self, name: str) -> bytes | None:
        """Return the route to member *name*."""
        found = self._routes.get(name)
        return None if found is None else found[0]

    def empty(self) -> bool:
        """Take what has come; return whether there may be more."""
        recv, names = self._recv, self._names
        try:
            for _ in range(BATCH):
                route = recv(NOW)
                sender = names.get(route)
                if sender is None:
                    sender, part = self._identified(route)
                else:
                    part = recv(NOW)
                rest = self._rest()
                try:
                    self._take(sender, route, part, rest)
                except Exception:
                    logger.exception("A message of %s could not be handled", sender)
                for _ in rest:
                    pass
        except zmq.Again:
            return False
        return True

    def _identified(self, route: bytes) -> tuple[str, bytes]:
        """Return who is at the other end, and the first part of its first message."""
        self._look_at_monitor()  # which reports a connection before its first message comes
        frame: Any = self._recv(NOW, copy=False)
        if self._is_open:
            name = route.partition(b"\0")[0].decode(errors="replace")
        else:
            name = str(frame.get("User-Id"))
        descriptor = int(frame.get(zmq.SRCFD))
        self._strangers.proven(descriptor)
        if name in self._routes:
            self._names.pop(self._routes[name][0], None)
        self._names[route] = name
        self._routes[name] = route, descriptor
        return name, frame.bytes

    def _rest(self) -> Iterator[Buffer]:
        while self._socket.getsockopt(_RCVMORE):
            frame: Any = self._recv(NOW, copy=False)
            yield frame.buffer

    def _happened(self, event: int, descriptor: int) -> None:
        self._strangers.happened(event, descriptor)
        if event != zmq.EVENT_ACCEPTED:
            for name, (_, of) in list(self._routes.items()):
                if of == descriptor:
                    self.forget(name)
