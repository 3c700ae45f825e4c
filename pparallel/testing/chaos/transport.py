"""The transport that has faults."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import Buffer, override

from pparallel.errors import PeerLostError, PparallelError
from pparallel.interfaces.transport import Frames, Handler, Meeting, Transport, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime.future import LeanFuture, fail, settle
from pparallel.runtime.memory import Arena, SharesMemory
from pparallel.runtime.pending import Pending
from pparallel.runtime.rpc import wire
from pparallel.runtime.timers import Timers
from pparallel.testing.chaos.config import ChaosTransportConfig
from pparallel.testing.chaos.fates import FINE, Fate, Fates

if TYPE_CHECKING:
    from pparallel.runtime.member import Member


class ChaosTransport(Transport):
    """Passes requests on to a transport inside it, or does not, or late, or twice.

    The faults are on the sender's side: the transport inside sees sound requests only. A request
    without a fault costs one more function call, no thread and no copy.
    """

    def __init__(self, config: ChaosTransportConfig, *, member: Member) -> None:
        self._config = config
        self._inner: Transport = _class_of(config.transport)(config.transport, member=member)
        self._fates = Fates(config, member.name)
        self._timers = Timers(f"{member.name}-chaos")
        self._pending: Pending[Frames] = Pending(f"transport of {member.name!r}", self._timers)

    @property
    @override
    def name(self) -> str:
        return self._inner.name

    @override
    def members(self) -> list[str]:
        return self._inner.members()

    @override
    def open(self, handler: Handler) -> None:
        self._inner.when_lost(self._peer_lost)
        self._inner.open(handler)

    @override
    def close(self) -> None:
        self._pending.close()
        self._inner.close()

    def arena(self, of: str) -> Arena | None:
        """As :meth:`SharesMemory.arena` of the transport inside."""
        return self._inner.arena(of) if isinstance(self._inner, SharesMemory) else None

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        fate = self._fate(to, frames)
        if fate == FINE:
            return self._inner.request(to, frames, timeout)
        answer: Future[Frames] = LeanFuture()
        self._suffer(fate, to, frames, timeout, answer)
        return answer

    @override
    def send(self, to: str, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        fate = self._fate(to, frames)
        if fate == FINE:
            self._inner.send(to, frames, timeout, future)
        else:
            self._suffer(fate, to, frames, timeout, future)

    @override
    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        fate = self._fate(to, frames)
        if fate == FINE:
            return self._inner.call(to, frames, timeout)
        answer: Future[Frames] = LeanFuture()
        self._suffer(fate, to, frames, timeout, answer)
        return answer.result()

    @override
    def awaiting(
        self, to: str, is_done: Callable[[], bool], timeout: float | None
    ) -> AbstractContextManager[object]:
        return self._inner.awaiting(to, is_done, timeout)

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: ChaosTransportConfig, names: Sequence[str]) -> Iterator[Meeting]:
        with _class_of(config.transport).meeting(config.transport, names) as meeting:
            yield meeting

    # -- inside -------------------------------------------------------------------------------

    def _fate(self, to: str, frames: Frames) -> Fate:
        if self._config.harm == "calls" and wire.is_service(frames):
            return FINE
        if to not in self._inner.members():
            return FINE  # the transport inside says what is to be said
        return self._fates.draw()

    def _suffer(
        self, fate: Fate, to: str, frames: Frames, timeout: float | None, answer: Future[Frames]
    ) -> None:
        self._pending.watch(answer, to, timeout)
        if fate.end == "request lost":
            return
        # The sender may change its memory as soon as the answer is there, or the failure.
        copies = _copies(frames)
        self._later(fate.delay, lambda: self._send(fate, to, copies, timeout, answer))
        if fate.again is not None:
            again = fate.delay + fate.again
            self._later(again, lambda: self._send(fate, to, copies, timeout, answer))
        if fate.end == "broken":
            self._later(fate.delay, lambda: _break(answer, to))

    def _later(self, delay: float, what: Callable[[], None]) -> None:
        if delay:
            self._timers.call_later(delay, what)
        else:
            what()

    def _send(
        self, fate: Fate, to: str, frames: Frames, timeout: float | None, answer: Future[Frames]
    ) -> None:
        # What is sent twice may be answered once: what is never done must not hold what is.
        waiting = weakref.ref(answer)  # held by those that are pending until it is done

        def ended(sent: Future[Frames]) -> None:
            if (answer := waiting()) is None:
                return
            if error := sent.exception():
                fail(answer, error)
            else:
                settle(answer, sent.result())

        try:
            sent = self._inner.request(to, frames, timeout)
        except PparallelError as error:
            fail(answer, error)
            return
        if fate.end == "answered":
            sent.add_done_callback(ended)

    def _peer_lost(self, name: str, reason: str) -> None:
        self._pending.lose(name, reason)
        self.lost(name, reason)


def _class_of(config: TransportConfig) -> Any:
    registry = default_registry()
    return registry.load(registry.find("transport", config.backend))


def _copies(frames: Frames) -> list[Buffer]:
    views = [memoryview(frame) for frame in frames]
    return [bytes(each) if each.readonly else bytearray(each) for each in views]


def _break(answer: Future[Frames], to: str) -> None:
    fail(answer, PeerLostError(to, "broke the connection (injected)"))
