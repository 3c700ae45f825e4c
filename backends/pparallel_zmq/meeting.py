"""How members meet at the first one, and what it tells them from then on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from pparallel.runtime.links import Hello, Membership, ProcessId, RefusedError
from pparallel_zmq.wire import Kind, Message

logger = logging.getLogger(__name__)

Back = Callable[..., None]  #: (route, kind, *frames), to the other end of a connection
Connect = Callable[[Hello], None]


def hello(name: str, address: str) -> Hello:
    """Return what this member says of itself."""
    return Hello(name, os.urandom(16), ProcessId.here(), address)


class Meeting:
    """Answers what members say of themselves and of one another.

    Attributes:
        routes: by which connection each member is told something, if it has one here.
    """

    def __init__(
        self,
        membership: Membership,
        back: Back,
        connect: Connect,
        prove: Callable[[str, bytes], bytes],
        leaving: Callable[[str], None],
    ) -> None:
        """Answer for a member.

        Args:
            membership: who is there.
            back: sends to the other end of a connection.
            connect: called by the first member with the hello of each that it lets in.
            prove: returns what proves to a member, with its challenge, who this one is.
            leaving: called with the name of a member that has left, as the first one says.
        """
        self._membership, self._back, self._connect = membership, back, connect
        self._prove, self._leaving = prove, leaving
        self.routes: dict[str, bytes] = {}

    def heard(self, sender: str, route: bytes, message: Message) -> None:
        """Handle a message that is no request."""
        frames = [bytes(memoryview(each)) for each in message.frames]
        membership = self._membership
        if message.kind == Kind.HELLO and len(frames) == 1:
            self._hello(sender, route, frames[0])
        elif sender != membership.first or membership.is_first:
            return
        elif message.kind == Kind.ROSTER:
            try:
                self._roster(frames)
            except RefusedError as error:  # it has ended just now
                logger.info("A member was told of and is not let in: %s", error)
        elif message.kind == Kind.LOST and len(frames) == 2:
            membership.lose(frames[0].decode(), frames[1].decode())
        elif message.kind == Kind.LEFT and len(frames) == 1:
            self._leaving(frames[0].decode())

    def _hello(self, sender: str, route: bytes, data: bytes) -> None:
        try:
            found = Hello.unpack(data)
            if found.name != sender:
                message = f"it says that it is {found.name!r}, and its key is that of {sender!r}"
                raise RefusedError(message)
            self._admit(found)
        except RefusedError as error:
            self._membership.refused(sender, str(error))
            self._back(route, Kind.REFUSED, str(error).encode())
            return
        self.routes[sender] = route
        self._back(route, Kind.WELCOME, self._prove(sender, found.incarnation))

    def _admit(self, found: Hello) -> None:
        membership = self._membership
        if membership.is_first:
            is_new = membership.hello(found.name) is None
            membership.admit(found)
            if is_new:
                self._connect(found)
        elif found.name == membership.first:
            membership.admit(found)

    def _roster(self, frames: list[bytes]) -> None:
        for each in frames:
            found = Hello.unpack(each)
            if found.name != self._membership.me and self._membership.expects(found.name):
                self._membership.admit(found)
