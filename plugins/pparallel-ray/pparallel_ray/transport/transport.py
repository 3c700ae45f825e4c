"""RequestTransport on Ray."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from typing_extensions import override

from pparallel.errors import ClosedError, PeerLostError, RemoteError, SerializationError
from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.flat_views import own
from pparallel.runtime.future import LeanFuture, fail, settle, when_done
from pparallel.runtime.links import FAILED, OK, Membership, answer, failure
from pparallel.runtime.pending import Pending, awaited
from pparallel.runtime.request_transport import Handler, RequestTransport
from pparallel_ray.cluster import Cluster
from pparallel_ray.transport import keys, meeting
from pparallel_ray.transport.inbound import Inbound
from pparallel_ray.transport.link import Link
from pparallel_ray.transport.messages import Kind, Message, pack
from pparallel_ray.transport.outbox import Outbox
from pparallel_ray.transport.post import Post

if TYPE_CHECKING:
    from pparallel.runtime.member import Member
    from pparallel_ray.transport.config import RayTransportConfig

FLUSH = 1.0  #: seconds that closing waits for what is underway, and again for the good-bye


class RayTransport(RequestTransport):
    """Carries messages as calls of actors: of the receiver's own, else of the job's exchange.

    Members meet at the exchange, an actor of the launching process, and hear there of every end.
    Those of this machine are watched by :class:`~pparallel.runtime.links.Membership`, those of
    others by Ray.
    """

    def __init__(self, config: RayTransportConfig, *, member: Member) -> None:
        self._config, self._member = config, member
        self._membership = Membership(
            member.name, member.names, config.liveness_bound, self._peer_ended
        )
        self._pending: Pending[Frames] = Pending(f"transport of {member.name!r}")
        self._post = Post(f"pparallel-ray {member.name}")
        self._inbound = Inbound(member.names, self._received, self._post)
        self._cluster: Cluster | None = None
        self._link: Link | None = None
        self._handler: Handler | None = None
        self._outboxes: dict[str, Outbox] = {}
        self._numbers = itertools.count()
        self._asked: dict[tuple[str, int], Future[Frames]] = {}
        self._lock = threading.Lock()
        self._opened = self._closed = False
        self._settled = threading.Event()  # nothing is being opened
        self._settled.set()
        self._closer = threading.Thread(target=self._shut, name="pparallel-ray-close")
        self._inside = threading.local()  # whether this thread must not wait for others

    @property
    @override
    def name(self) -> str:
        return self._member.name

    @override
    def members(self) -> list[str]:
        self._check_open()
        return self._membership.names()

    @override
    def open(self, handler: Handler) -> None:
        self._handler = handler
        self._settled.clear()
        try:
            if self._member.world_size > 1:
                self._connect()
            with self._lock:
                if self._closed:
                    raise ClosedError(f"transport of {self.name!r}")
                self._opened = True
        except BaseException:
            self._settled.set()
            self.close()
            raise
        self._settled.set()

    @override
    def close(self) -> None:
        with self._lock:
            starts = not self._closed
            self._closed = True
            if starts:
                self._closer.start()
        if starts:
            self._pending.close()
        if not self._is_inside():
            self._closer.join()

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        future: Future[Frames] = LeanFuture()
        self.send(to, frames, timeout, future)
        return future

    @override
    def send(self, to: str, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        self._check_open()
        self._membership.check(to)
        self._pending.watch(future, to, timeout)
        if to == self.name:
            self._handle(to, own(frames), lambda how, found: _reply(to, future, how, own(found)))
            return
        outbox = self._outbox(to)
        if not self._is_inside() and not outbox.wait_for_room(future):
            return
        key = to, next(self._numbers)
        self._asked[key] = future
        when_done(future, lambda _: self._asked.pop(key, None))
        try:
            outbox.put(pack(Kind.REQUEST, key[1], frames))
        except BaseException as error:
            fail(future, error)  # nobody waits for it, and it is not to be kept
            raise

    @override
    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        return awaited(self.request(to, frames, timeout), to, timeout)

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: Any, names: Sequence[str]) -> Iterator[Meeting]:
        with Cluster(config.cluster) as cluster:
            place = meeting.Place.new(cluster.address)
            exchange = meeting.start(place, names, config.max_queued)
            try:
                yield Meeting(str(place), keys.fresh(names))
            finally:
                ray.kill(exchange)

    # -- what arrives -------------------------------------------------------------------------

    def _received(self, name: str, message: Message) -> None:
        kind, number, frames = message
        with self._in_callback():
            if kind == Kind.REQUEST and frames is not None:
                self._handle(name, frames, partial(self._send_reply, name, number))
            elif kind == Kind.REQUEST:
                told = [b"ObjectLostError", b"its large frames were lost in Ray's object store"]
                self._send_reply(name, number, FAILED, told)
            elif kind == Kind.FLUSH:
                self._send_reply(name, number, OK, [])
            elif (future := self._asked.get((name, number))) is not None:
                if frames is None:
                    what = "the large frames of the reply were lost in Ray's object store"
                    fail(future, RemoteError(name, "ObjectLostError", what, ""))
                else:
                    _reply(name, future, OK if kind == Kind.REPLY else FAILED, frames)

    def _handle(self, sender: str, frames: Frames, reply: Any) -> None:
        assert self._handler is not None
        answer(self._handler, sender, frames, reply)

    def _send_reply(self, to: str, number: int, status: int, frames: Frames) -> None:
        kind = Kind.REPLY if status == OK else Kind.FAILED
        try:
            message = pack(kind, number, frames)
        except SerializationError as error:
            message = pack(Kind.FAILED, number, [b"SerializationError", str(error).encode()])
        if self._membership.expects(to):
            self._outbox(to).put(message)

    # -- coming -------------------------------------------------------------------------------

    def _connect(self) -> None:
        me, patience, began = self._member, self._config.rendezvous_timeout, time.monotonic()
        key, place = keys.JobKey(me.keys), meeting.Place.of(me)
        self._cluster = Cluster(place.connection(self._config.cluster))
        self._cluster.open()
        self._post.start()
        link = Link(me, self._config, key, self._membership, self._inbound, self._post)
        self._link = link
        exchange = meeting.find(place, me, self._config.max_queued, patience, lambda: self._closed)
        link.arrive(exchange, patience)
        self._membership.wait_for_all(patience, began)

    def _outbox(self, to: str) -> Outbox:
        found = self._outboxes.get(to)
        if found is None:
            link = self._link
            assert link is not None
            made = Outbox(
                self._member.rank,
                link.proof_to(to),
                link.way_to(to),
                lambda error: self._membership.lose(to, link.unreachable(to, error)),
                self._post,
                self._config.max_queued,
            )
            found = self._outboxes.setdefault(to, made)
        return found

    # -- going --------------------------------------------------------------------------------

    def _peer_ended(self, name: str, reason: str) -> None:
        with self._in_callback():
            if self._membership.is_first and self._link is not None:
                self._link.tell_lost(name, reason)
            self._inbound.forget(name)
            if (outbox := self._outboxes.get(name)) is not None:
                outbox.end()
            for key, future in list(self._asked.items()):
                if key[0] == name:
                    fail(future, PeerLostError(name, reason))
            self._pending.lose(name, reason)
            self.lost(name, reason)

    def _shut(self) -> None:
        """Say good-bye and disconnect; no thread that brings messages can, for others wait then."""
        if not self._settled.is_set():
            self._membership.close()  # it waits for others to arrive
        self._settled.wait()
        if self._link is not None:
            self._flush()
            self._link.leave(FLUSH)
            self._post.close()
        self._membership.close()
        if self._cluster is not None:
            self._cluster.close()

    def _flush(self) -> None:
        """Wait until the others have what was sent: Ray forgets with a process what it has put."""
        flushed: list[Future[Frames]] = []
        for name in self._membership.names():
            outbox = self._outboxes.get(name)
            if outbox is not None and outbox.was_used:
                key = name, next(self._numbers)
                flushed.append(LeanFuture())
                self._asked[key] = flushed[-1]
                outbox.put(pack(Kind.FLUSH, key[1], []))
        wait(flushed, FLUSH)

    def _check_open(self) -> None:
        if not self._opened or self._closed:
            why = "is closed" if self._closed else "is not open"
            raise ClosedError(f"transport of {self.name!r}", why)

    def _is_inside(self) -> bool:
        return bool(getattr(self._inside, "callback", False))

    @contextmanager
    def _in_callback(self) -> Iterator[None]:
        """Keep this thread from waiting for its own end if what it calls closes this transport."""
        before = self._is_inside()
        self._inside.callback = True
        try:
            yield
        finally:
            self._inside.callback = before


def _reply(peer: str, future: Future[Frames], status: int, frames: Frames) -> None:
    if status == OK:
        settle(future, frames)
    else:
        fail(future, failure(peer, frames))
