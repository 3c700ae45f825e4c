"""The transport that has faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel.errors import PeerLostError, PparallelError
from pparallel.interfaces.transport import Frames, Meeting, Receiver, Transport, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime.flat_views import own
from pparallel.runtime.memory import Arena, SharesMemory
from pparallel.runtime.rpc.codec import RESULTS, SERVICES, kind_of
from pparallel.runtime.timers import Timers
from pparallel.testing.chaos.config import ChaosTransportConfig
from pparallel.testing.chaos.fates import FINE, Fate, Fates

if TYPE_CHECKING:
    from pparallel.runtime.member import Member


class ChaosTransport(Transport):
    """Passes messages on to a transport inside it, or does not, or late, or twice.

    The faults are on the sender's side: the transport inside sees sound messages only. A message
    without a fault costs one more function call, no thread and no copy. There are no exchanges.
    """

    def __init__(self, config: ChaosTransportConfig, *, member: Member) -> None:
        self._config = config
        self._inner: Transport = _class_of(config.transport)(config.transport, member=member)
        self._fates = Fates(config, member.name)
        self._timers = Timers(f"{member.name}-chaos")
        self._receiver: Receiver | None = None

    @property
    @override
    def name(self) -> str:
        return self._inner.name

    @override
    def members(self) -> list[str]:
        return self._inner.members()

    @override
    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._timers.start()
        self._inner.open(receiver)

    @override
    def close(self) -> None:
        self._timers.close()
        self._inner.close()

    def arena(self, of: str) -> Arena | None:
        """As :meth:`SharesMemory.arena` of the transport inside."""
        return self._inner.arena(of) if isinstance(self._inner, SharesMemory) else None

    @override
    def send(self, to: str, frames: Frames) -> None:
        fate = self._fate(to, frames)
        if fate == FINE:
            self._inner.send(to, frames)
            return
        if fate.end == "request lost":
            return
        frames = own(frames)  # their sender may change them meanwhile
        if fate.end == "broken":
            self._later(fate.delay, partial(self._break, to))
        self._later(fate.delay, partial(self._inner.send, to, frames))
        if fate.again is not None:
            self._later(fate.delay + fate.again, partial(self._inner.send, to, frames))

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: ChaosTransportConfig, names: Sequence[str]) -> Iterator[Meeting]:
        with _class_of(config.transport).meeting(config.transport, names) as meeting:
            yield meeting

    # -- inside -------------------------------------------------------------------------------

    def _fate(self, to: str, frames: Frames) -> Fate:
        kind = kind_of(frames)
        if self._config.harm == "calls" and kind == SERVICES:
            return FINE
        if to not in self._inner.members():
            return FINE  # the transport inside says what is to be said
        fate = self._fates.draw()
        if kind == RESULTS:
            is_lost = fate.end in ("reply lost", "broken")
            return fate._replace(end="request lost" if is_lost else "answered")
        return fate._replace(end="answered") if fate.end == "reply lost" else fate

    def _later(self, delay: float, act: Callable[[], None]) -> None:
        if delay:
            self._timers.call_later(delay, partial(_try, act))
        else:
            act()

    def _break(self, to: str) -> None:
        assert self._receiver is not None
        self._receiver.on_reset(to, PeerLostError(to, "broke the connection (injected)"))


def _class_of(config: TransportConfig) -> Any:
    registry = default_registry()
    return registry.load(registry.find("transport", config.backend))


def _try(act: Callable[[], None]) -> None:
    with suppress(PparallelError):  # this member or the other has ended meanwhile
        act()
