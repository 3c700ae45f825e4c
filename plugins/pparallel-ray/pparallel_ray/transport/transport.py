"""Transport on Ray."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
from typing_extensions import override

from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.links import BaseTransport
from pparallel_ray.cluster import Cluster
from pparallel_ray.transport import keys, meeting
from pparallel_ray.transport.config import RayTransportConfig
from pparallel_ray.transport.connection import BrokerConnection
from pparallel_ray.transport.dispatcher import Dispatcher
from pparallel_ray.transport.messages import BYE, MESSAGE, RESET, SEEN, UNREAD, pack

if TYPE_CHECKING:
    from pparallel.runtime.member import Member

FLUSH = 1.0  #: seconds that closing waits for what was sent, and again for the broker's answer


class RayTransport(BaseTransport[RayTransportConfig]):
    """Carries messages as calls of actors: the receiver's broker, from which it pulls.

    Members meet at the job's broker, an actor of the launching process, which passes on every end.
    Those of this machine are watched by :class:`~pparallel.runtime.links.Membership`, those of
    others by Ray. The dispatcher's thread alone calls the receiver.
    """

    def __init__(self, config: RayTransportConfig, *, member: Member) -> None:
        super().__init__(config, member)
        self._dispatcher = Dispatcher(f"pparallel-ray {member.name}")
        self._cluster: Cluster | None = None
        self._connection: BrokerConnection | None = None
        self._has_left = False

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

    @override
    def _listen(self) -> None:
        me, config, patience = self._member, self._config, self._config.rendezvous_timeout
        key, place = keys.JobKey(me.keys), meeting.Place.of(me)
        self._cluster = Cluster(place.connection(config.cluster))
        self._cluster.open()
        self._dispatcher.start()
        self._connection = BrokerConnection(
            me, config, key, self._membership, self._dispatcher, self._take, self._ended
        )
        broker = meeting.find(place, me, config.max_queued, patience, self._check_open)
        self._connection.open(broker, patience, self._check_open)

    # -- messages -----------------------------------------------------------------------------

    @override
    def send(self, to: str, frames: Frames) -> None:
        self._check_peer(to)
        self._put(to, frames)

    def _put(self, to: str, frames: Frames, kind: int = MESSAGE) -> None:
        assert self._connection is not None
        self._connection.peers[to].put(pack(frames, kind))

    def _take(self, name: str, kind: int, frames: Frames) -> None:
        if kind == MESSAGE:
            if not self._closed and self._receiver is not None:
                self._receiver.on_message(name, frames)
        elif kind == UNREAD:
            self._put(name, frames, RESET)
            self._report_reset(name, f"sent a message, and {_text(frames[0])}")
        elif kind == RESET:
            self._report_reset(name, f"could not take a message: {_text(frames[0])}")
        elif kind == BYE:
            self._put(name, (), SEEN)
            self._membership.lose(name, "has left")
        elif kind == SEEN and self._connection is not None:
            self._connection.peers[name].confirmed.set()

    # -- ends ---------------------------------------------------------------------------------

    @override
    def _member_ended(self, name: str, reason: str) -> None:
        assert self._connection is not None  # by which it has come
        self._connection.lost(name, reason)

    def _ended(self, name: str) -> None:
        self._report_lost(name, self._membership.reason(name))

    @override
    def close(self) -> None:
        if self._parent:
            return  # the threads and Ray's connection are the parent's
        self._closed = True  # which ends the opening in another thread
        # The dispatcher cannot wait for another thread, which waits for what it brings.
        if self._opening.acquire(blocking=not self._dispatcher.is_here):
            try:
                if not self._has_left:
                    self._has_left = True
                    self._leave()
            finally:
                self._opening.release()

    @override
    def _forked(self) -> None:
        super()._forked()
        # To free an object of Ray's, here, may wait for a lock that a thread of the parent's had.
        _kept.append(self)
        gc.freeze()

    def _leave(self) -> None:
        if self._connection is not None:
            if not self._dispatcher.is_here:
                self._flush(self._connection)
            self._connection.close(FLUSH)
        self._dispatcher.close()
        self._membership.close()
        if self._cluster is not None:
            self._cluster.close()

    def _flush(self, connection: BrokerConnection) -> None:
        """Wait until what was sent has arrived: Ray forgets what this process has stored."""
        deadline, here = time.monotonic() + FLUSH, self._membership.names()
        used = [name for name in here if name != self.name and connection.peers[name].was_used]
        for name in used:
            self._put(name, (), BYE)
        for name in used:
            connection.peers[name].confirmed.wait(max(0.0, deadline - time.monotonic()))


_kept: list[RayTransport] = []  #: copies, in a forked child


def _text(frame: Any) -> str:
    return bytes(frame).decode(errors="replace")
