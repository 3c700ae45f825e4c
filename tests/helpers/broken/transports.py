"""Broken transports."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from typing import Any

from typing_extensions import override

import pparallel_local
from broken.harness import Backends, rejected_by
from pparallel.interfaces.transport import Frames
from pparallel.plugin import Backend, hookimpl
from pparallel.testing import TransportSuite
from pparallel_local import LocalTransportConfig
from pparallel_local.transport import LocalTransport

backends = Backends(LocalTransportConfig, pparallel_local)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


class OneInSome(LocalTransport):
    """Does something else with one message in *some*."""

    some = 100

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._numbers = itertools.count(1)

    @override
    def send(self, to: str, frames: Frames) -> None:
        if next(self._numbers) % self.some:
            super().send(to, frames)
        else:
            self.otherwise(to, frames)

    def otherwise(self, to: str, frames: Frames) -> None:
        raise NotImplementedError


class DeliversTwice(OneInSome):
    """Sends again what was not acknowledged in time, though it had arrived."""

    @override
    def otherwise(self, to: str, frames: Frames) -> None:
        for _ in range(2):
            super().send(to, frames)


@rejected_by("test_messages_of_each_thread_arrive_once_and_in_order")
class TestDeliversTwice(TransportSuite):
    config = backends.config(DeliversTwice)


class SwapsTwo(OneInSome):
    """Has a second way to a member, on which a message is overtaken by the next."""

    some = 4

    @override
    def otherwise(self, to: str, frames: Frames) -> None:
        threading.Timer(0.01, super().send, args=(to, frames)).start()


@rejected_by("test_messages_of_each_thread_arrive_once_and_in_order")
class TestSwapsTwo(TransportSuite):
    config = backends.config(SwapsTwo)


class PassesTheSendersMemory(LocalTransport):
    """Saves the copy of a message."""

    @override
    def send(self, to: str, frames: Frames) -> None:
        assert self._job is not None
        self._job.here[to].take(self.name, list(frames))


@rejected_by("test_what_arrives_is_the_receivers_own", "test_tensors_are_the_receivers_own")
class TestPassesTheSendersMemory(TransportSuite):
    config = backends.config(PassesTheSendersMemory)
