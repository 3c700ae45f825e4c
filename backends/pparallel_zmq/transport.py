"""ZeroMQ transport: between processes and machines."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.errors import ClosedError, PeerLostError, ResourceExhaustedError
from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.delivery import Delivery
from pparallel.runtime.future import LeanFuture
from pparallel.runtime.pending import Pending
from pparallel.runtime.request_transport import Handler, RequestTransport
from pparallel_zmq import address, keys, wire
from pparallel_zmq.config import ZmqTransportConfig
from pparallel_zmq.network import Network
from pparallel_zmq.wire import Kind

if TYPE_CHECKING:
    from pparallel.runtime.member import Member


class ZmqTransport(RequestTransport):
    """Carries requests by ZeroMQ.

    Each member has one socket where all others reach it, read by one thread, and a connection to
    each member that it calls, its link, read by another. A synchronous call has a connection to
    itself, its lane, on which the calling thread sends and waits.

    What one thread sends to one member arrives in order: a call takes the link, too, until the last
    request before it has been answered.
    """

    has_lanes = True

    def __init__(self, config: ZmqTransportConfig, *, member: Member) -> None:
        self._config, self._member = config, member
        self._pending: Pending[Frames] = Pending(f"transport of {member.name!r}")
        self._to_self: Delivery | None = None
        self._network: Network | None = None
        self._numbers = itertools.count(1)
        self._pid = 0
        self._lock = threading.RLock()
        self._closed = False

    @property
    @override
    def name(self) -> str:
        return self._member.name

    @override
    def members(self) -> list[str]:
        self._opened()
        return [self.name] if self._network is None else self._network.membership.names()

    @override
    def open(self, handler: Handler) -> None:
        self._pid = os.getpid()
        if self._member.world_size > 1:
            with self._lock:
                if self._closed:
                    raise ClosedError(f"transport of {self.name!r}")
                self._network = Network(
                    self._config, self._member, handler, self._pending, self.lost
                )
        self._to_self = Delivery(self.name, handler)
        if self._network is not None:
            self._network.meet()

    @override
    def close(self) -> None:
        with self._lock:
            if self._closed or self._pid not in (0, os.getpid()):
                return  # in a child that was forked it is the parent's
            self._closed = True
        if self._to_self is not None:
            self._to_self.finish()
        self._pending.close()  # first: what others answer to our leaving is no answer to a request
        if self._network is not None:
            self._network.close()

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        future: Future[Frames] = LeanFuture()
        self.send(to, frames, timeout, future)
        return future

    @override
    def send(self, to: str, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        to_self, network = self._opened(), self._network
        if to == self._member.name:
            self._pending.watch(future, to, timeout)
            to_self.deliver(to, frames, future)
            return
        if network is None:
            raise PeerLostError(to, "is not a member")
        network.membership.check(to)
        link = network.link_to(to)
        number = next(self._numbers)
        part, raws = wire.pack(Kind.REQUEST, number, frames, network.limits)
        self._pending.watch(future, to, timeout)
        link.note(number)
        link.request(part, raws, number, future)
        if link.is_over:
            link.fail_all(lambda: network.why_over(to))

    @override
    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        network = self._network
        link = None if network is None else network.links.get(to)
        if (
            network is None
            or link is None
            or link.is_over
            or not link.is_welcome
            or link.last.get(get_ident()) in link.unanswered
            or self._closed
            or self._pid != os.getpid()
        ):
            return self.request(to, frames, timeout).result()
        network.membership.check(to)
        number = next(self._numbers)
        part, raws = wire.pack(Kind.REQUEST, number, frames, network.limits)
        try:
            lane = link.take()
        except ResourceExhaustedError:
            return self.request(to, frames, timeout).result()
        try:
            return lane.call(link, part, raws, number, timeout)
        finally:
            link.keep(lane, number)

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: ZmqTransportConfig, names: Sequence[str]) -> Iterator[Meeting]:
        with address.held(config) as place:
            yield Meeting(str(place), keys.fresh(names))

    def _opened(self) -> Delivery:
        if self._closed or self._to_self is None or self._pid != os.getpid():
            why = "is closed" if self._closed else "is not open"
            if self._pid not in (0, os.getpid()):
                why = "is that of the process that this one was forked from"
            raise ClosedError(f"transport of {self.name!r}", why)
        return self._to_self
