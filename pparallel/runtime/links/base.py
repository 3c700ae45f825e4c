"""The common part of transports between processes: the state of a member, open or closed."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import override

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.transport import Receiver, Transport, TransportConfig
from pparallel.runtime.forks import Inherited
from pparallel.runtime.links.membership import Membership

if TYPE_CHECKING:
    from pparallel.runtime.member import Member

C = TypeVar("C", bound=TransportConfig)


class BaseTransport(Transport, Generic[C]):
    """A transport whose members meet, and report one another's ends, by a :class:`Membership`.

    A copy in a forked child is closed: connections and threads are the parent's.
    """

    def __init__(self, config: C, member: Member) -> None:
        self._config, self._member = config, member
        self._membership = Membership(
            member.name, member.names, config.liveness_bound, self._member_ended
        )
        self._receiver: Receiver | None = None
        self._opening = threading.RLock()  # one thread opens, or connects, or closes at a time
        self._closed = False
        self._parent = 0  # the process that has opened this, in a forked child

    @property
    @override
    def name(self) -> str:
        return self._member.name

    @override
    def members(self) -> list[str]:
        self._check_open()
        return self._membership.names()

    @override
    def open(self, receiver: Receiver) -> None:
        with self._opening:
            self._receiver = receiver
            self._check_open()
            _opened.add(self)
            if self._member.world_size == 1:
                return
            self._listen()
        self._meet()

    @abstractmethod
    def _listen(self) -> None:
        """Make what others connect to; one thread at a time calls it, unless this is closed."""

    def _meet(self) -> None:
        """Wait until all members are here; :meth:`close` may be called meanwhile."""
        self._membership.wait_for_all(self._config.rendezvous_timeout)

    @abstractmethod
    def _member_ended(self, name: str, reason: str) -> None:
        """Have the end of a member reported after the last of its messages; in any thread."""

    def _check_open(self) -> None:
        """Raise ``ClosedError`` unless this is open."""
        if self._closed or self._receiver is None:
            why = "is closed" if self._closed else "is not open"
            if self._parent:
                why = f"belongs to process {self._parent}, of which this one is a fork"
            raise ClosedError(f"transport of {self.name!r}", why)

    def _check_peer(self, to: str) -> None:
        """Raise if nothing can be sent to member *to*.

        Raises:
            ClosedError: this transport is not open.
            PeerLostError: it has ended, or is no other member.
        """
        self._check_open()
        self._membership.check(to)
        if to == self.name:
            raise PeerLostError(to, "is no other member")

    def _report_reset(self, name: str, why: str) -> None:
        """Report that messages to or from a member may have been lost."""
        if self._receiver is not None and not self._closed:
            self._receiver.on_reset(name, PeerLostError(name, why))

    def _report_lost(self, name: str, reason: str) -> None:
        """Report the end of a member; after that of its last message."""
        if self._receiver is not None and not self._closed:
            self._receiver.on_lost(name, reason)

    def _forked(self) -> None:
        """Close this copy, in a forked child."""
        self._parent, self._closed = os.getppid(), True


_opened = Inherited[BaseTransport[Any]](lambda each: each._forked(), once=True)
