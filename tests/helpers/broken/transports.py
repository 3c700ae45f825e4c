"""Broken transports."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from typing_extensions import override

import pparallel_local
from broken.harness import Backends, rejected_by
from pparallel.errors import PparallelError
from pparallel.interfaces.transport import Frames
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.flat_views import own
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


class LosesOne(OneInSome):
    """Drops a message in silence."""

    @override
    def otherwise(self, to: str, frames: Frames) -> None:
        """Do nothing."""


@rejected_by("test_each_message_arrives_once")
class TestLosesOne(TransportSuite):
    config = backends.config(LosesOne)


class DeliversTwice(OneInSome):
    """Sends again what was not acknowledged in time, though it had arrived."""

    @override
    def otherwise(self, to: str, frames: Frames) -> None:
        for _ in range(2):
            super().send(to, frames)


@rejected_by("test_each_message_arrives_once")
class TestDeliversTwice(TransportSuite):
    config = backends.config(DeliversTwice)


class SwapsTwo(OneInSome):
    """Has a second way to a member, on which a message is overtaken by the next."""

    some = 4

    @override
    def otherwise(self, to: str, frames: Frames) -> None:
        threading.Timer(0.01, super().send, args=(to, frames)).start()


@rejected_by("test_messages_of_each_thread_arrive_in_order")
class TestSwapsTwo(TransportSuite):
    config = backends.config(SwapsTwo)


class PassesTheSendersMemory(LocalTransport):
    """Saves the copy of a message."""

    @override
    def send(self, to: str, frames: Frames) -> None:
        assert self._hub is not None
        self._hub.here[to].take(self.name, list(frames))


@rejected_by("test_what_arrives_is_the_receivers_own", "test_tensors_are_the_receivers_own")
class TestPassesTheSendersMemory(TransportSuite):
    config = backends.config(PassesTheSendersMemory)


class ForgetsToReportTheLost(LocalTransport):
    """Keeps the end of a member that left to itself."""

    @override
    def lose(self, name: str) -> None:
        """Do nothing."""


@rejected_by("test_a_member_that_leaves")
class TestForgetsToReportTheLost(TransportSuite):
    config = backends.config(ForgetsToReportTheLost)


class SendsByOneThread(LocalTransport):
    """Has one queue for messages to all members, which waits for each to take its own."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._queue: queue.SimpleQueue[tuple[str, Frames]] = queue.SimpleQueue()
        threading.Thread(target=self._send, daemon=True).start()

    @override
    def send(self, to: str, frames: Frames) -> None:
        self._check_peer(to)
        self._queue.put((to, own(frames)))

    def _send(self) -> None:
        while True:
            to, frames = self._queue.get()
            with suppress(PparallelError):
                super().send(to, frames)


@rejected_by("test_a_member_that_does_not_read_holds_up_no_other")
class TestSendsByOneThread(TransportSuite):
    config = backends.config(SendsByOneThread)
