"""ZeroMQ transport: between processes and machines."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames, Handler, Meeting, Transport
from pparallel.runtime.delivery import own
from pparallel.runtime.lean_future import LeanFuture
from pparallel.runtime.links import FAILED, answer, failure
from pparallel.runtime.pending import Pending, fail, settle
from pparallel_zmq import address, keys
from pparallel_zmq.calls import Calls
from pparallel_zmq.config import ZmqTransportConfig
from pparallel_zmq.network import Network

if TYPE_CHECKING:
    from pparallel.runtime.member import Member


FLUSH = 1.0  #: seconds that closing waits for requests of the member itself


class ZmqTransport(Transport):
    """Carries requests by ZeroMQ.

    Each member has one socket where all others reach it, read by one thread, and a connection to
    each member that it calls, read by another. A synchronous call has a connection to itself, on
    which the calling thread sends and waits; only after requests whose replies are not there yet
    does it take the way of those, so that it stays behind them.
    """

    def __init__(self, config: ZmqTransportConfig, *, member: Member) -> None:
        self._config, self._member = config, member
        self._pending: Pending[Frames] = Pending(f"transport of {member.name!r}")
        self._alone: _Alone | None = None
        self._network: Network | None = None
        self._calls: Calls | None = None  # the network's
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
                self._calls = self._network.calls
        self._alone = _Alone(self.name, handler, self._pending)
        if self._network is not None:
            self._network.meet()

    @override
    def close(self) -> None:
        with self._lock:
            if self._closed or self._pid not in (0, os.getpid()):
                return  # in a child that was forked it is the parent's
            self._closed = True
        if self._alone is not None:
            self._alone.finish()
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
        alone = self._opened()
        if to == self._member.name:
            alone.send(frames, timeout, future)
        elif self._calls is None:
            raise PeerLostError(to, "is not a member")
        else:
            self._calls.send(to, frames, timeout, future)

    @override
    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        calls = self._calls
        if calls is None or to == self._member.name or self._closed or self._pid != os.getpid():
            return self.request(to, frames, timeout).result()
        return calls.call(to, frames, timeout)

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: ZmqTransportConfig, names: Sequence[str]) -> Iterator[Meeting]:
        with address.held(config) as place:
            yield Meeting(str(place), keys.fresh(names))

    def _opened(self) -> _Alone:
        if self._closed or self._alone is None or self._pid != os.getpid():
            why = "is closed" if self._closed else "is not open"
            if self._pid not in (0, os.getpid()):
                why = "is that of the process that this one was forked from"
            raise ClosedError(f"transport of {self.name!r}", why)
        return self._alone


class _Alone:
    """Handles requests of the member itself, in the thread that sends them."""

    def __init__(self, name: str, handler: Handler, pending: Pending[Frames]) -> None:
        self._name, self._handler, self._pending = name, handler, pending
        self._handled = threading.Condition()
        self._handling: list[int] = []  # threads that are inside the handler

    def send(self, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        """Handle a request, whose reply completes *future*."""
        self._pending.watch(future, self._name, timeout)

        def reply(status: int, frames: Frames) -> None:
            if status == FAILED:
                fail(future, failure(self._name, frames))
            else:
                settle(future, own(frames))

        me = threading.get_ident()
        with self._handled:
            self._handling.append(me)
        try:
            answer(self._handler, self._name, own(frames), reply)
        finally:
            with self._handled:
                self._handling.remove(me)
                self._handled.notify_all()

    def finish(self) -> None:
        """Let replies that are known be given; handlers never block, so that it is soon done."""
        me = threading.get_ident()
        with self._handled:
            self._handled.wait_for(lambda: all(each == me for each in self._handling), FLUSH)
