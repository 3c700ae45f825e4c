"""Transport on Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from typing_extensions import override

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames, Meeting, Receiver, Transport
from pparallel.runtime.links import Membership
from pparallel_ray.cluster import Cluster
from pparallel_ray.transport import keys, meeting
from pparallel_ray.transport.connection import BrokerConnection
from pparallel_ray.transport.dispatcher import Dispatcher
from pparallel_ray.transport.inbound import UNREAD, Inbound
from pparallel_ray.transport.messages import BYE, MESSAGE, RESET, SEEN, pack
from pparallel_ray.transport.outbox import Outbox

if TYPE_CHECKING:
    from pparallel.runtime.member import Member
    from pparallel_ray.transport.config import RayTransportConfig

FLUSH = 1.0  #: seconds that closing waits for what was sent, and again for the broker's answer


class RayTransport(Transport):
    """Carries messages as calls of actors: the receiver's broker, from which it pulls.

    Members meet at the job's broker, an actor of the launching process, which passes on every end.
    Those of this machine are watched by :class:`~pparallel.runtime.links.Membership`, those of
    others by Ray. The dispatcher's thread alone calls the receiver.
    """

    def __init__(self, config: RayTransportConfig, *, member: Member) -> None:
        self._config, self._member = config, member
        self._membership = Membership(
            member.name, member.names, config.liveness_bound, self._member_ended
        )
        self._dispatcher = Dispatcher(f"pparallel-ray {member.name}")
        self._inbound = Inbound(member.names, self._take, self._dispatcher)
        self._cluster: Cluster | None = None
        self._connection: BrokerConnection | None = None
        self._receiver: Receiver | None = None
        self._outboxes: dict[str, Outbox] = {}
        self._opening = threading.Lock()
        self._changed = threading.Condition()  # guards these
        self._closed = False
        self._leaving: set[str] = set()  # who has not confirmed yet that all has arrived
        self._has_closed = threading.Event()

    @property
    @override
    def name(self) -> str:
        return self._member.name

    @override
    def members(self) -> list[str]:
        self._check_open()
        return self._membership.names()

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: Any, names: Sequence[str]) -> Iterator[Meeting]:
        with Cluster(config.cluster) as cluster:
            place = meeting.Place.new(cluster.address)
            broker = meeting.start(place, names, config.max_queued)
            try:
                yield Meeting(str(place), keys.fresh(names))
            finally:
                ray.kill(broker)

    # -- opening ------------------------------------------------------------------------------

    @override
    def open(self, receiver: Receiver) -> None:
        try:
            with self._opening:
                self._receiver = receiver
                self._check_open()
                if self._member.world_size > 1:
                    self._connect()
                self._check_open()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        me, patience, began = self._member, self._config.rendezvous_timeout, time.monotonic()
        key, place = keys.JobKey(me.keys), meeting.Place.of(me)
        self._cluster = Cluster(place.connection(self._config.cluster))
        self._cluster.open()
        self._dispatcher.start()
        self._connection = BrokerConnection(
            me, self._config, key, self._membership, self._inbound, self._dispatcher, self._ended
        )
        broker = meeting.find(place, me, self._config.max_queued, patience, lambda: self._closed)
        self._connection.open(broker, patience)
        self._membership.wait_for_all(patience, began)

    # -- messages -----------------------------------------------------------------------------

    @override
    def send(self, to: str, frames: Frames) -> None:
        self._check_open()
        self._membership.check(to)
        if to == self.name:
            raise PeerLostError(to, "is no other member")
        self._outbox(to).put(pack(frames))

    def _outbox(self, to: str) -> Outbox:
        found = self._outboxes.get(to)
        if found is None:
            connection = self._connection
            if connection is None:
                raise ClosedError(f"transport of {self.name!r}", "is not open")
            made = Outbox(
                self._member.rank,
                connection.proof_to(to),
                connection.push_to(to),
                lambda error: self._membership.lose(to, connection.unreachable(to, error)),
                self._dispatcher,
                self._config.max_queued,
            )
            found = self._outboxes.setdefault(to, made)
        return found

    def _take(self, name: str, kind: int, frames: Frames) -> None:
        receiver = self._receiver
        assert receiver is not None
        if kind == MESSAGE:
            if not self._closed:
                receiver.on_message(name, frames)
        elif kind == UNREAD:
            self._outbox(name).put(pack(frames, RESET))
            self._reset(name, f"sent a message, and {_text(frames[0])}")
        elif kind == RESET:
            self._reset(name, f"could not take a message: {_text(frames[0])}")
        elif kind == BYE:
            self._outbox(name).put(pack((), SEEN))
            self._membership.lose(name, "has left")
        elif kind == SEEN:
            self._confirmed(name)

    def _reset(self, name: str, why: str) -> None:
        if self._receiver is not None and not self._closed:
            self._receiver.on_reset(name, PeerLostError(name, why))

    # -- ends ---------------------------------------------------------------------------------

    def _member_ended(self, name: str, reason: str) -> None:
        """Have the end of a member reported after the last of its messages; in any thread."""
        if self._connection is not None:
            if self._membership.is_first:
                self._connection.report_lost(name, reason)
            self._connection.await_last(name)
        self._confirmed(name)

    def _ended(self, name: str) -> None:
        self._inbound.end(name, partial(self._report, name))

    def _report(self, name: str) -> None:
        if (outbox := self._outboxes.get(name)) is not None:
            outbox.end()
        if self._receiver is not None and not self._closed:
            self._receiver.on_lost(name, self._membership.reason(name))

    # -- closing ------------------------------------------------------------------------------

    @override
    def close(self) -> None:
        with self._changed:
            is_first, self._closed = not self._closed, True
        if not is_first:
            if not self._dispatcher.is_here:  # else another thread waits for what this one brings
                self._has_closed.wait()
            return
        try:
            if self._opening.locked():
                self._membership.close()  # which waits for others to arrive
            with self._opening:
                self._leave()
        finally:
            self._has_closed.set()

    def _leave(self) -> None:
        if self._connection is not None:
            # Ray forgets with a process what it has put into the object store.
            self._leaving = set(self._outboxes) & set(self._membership.names())
            for name in list(self._leaving):
                self._outboxes[name].put(pack((), BYE))
            if not self._dispatcher.is_here:
                with self._changed:
                    self._changed.wait_for(lambda: not self._leaving, FLUSH)
            self._connection.close(FLUSH)
            self._dispatcher.close()
        self._membership.close()
        if self._cluster is not None:
            self._cluster.close()

    def _confirmed(self, name: str) -> None:
        with self._changed:
            self._leaving.discard(name)
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed or self._receiver is None:
            why = "is closed" if self._closed else "is not open"
            raise ClosedError(f"transport of {self.name!r}", why)


def _text(frame: Any) -> str:
    return bytes(frame).decode(errors="replace")
