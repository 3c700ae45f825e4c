"""Broken transports."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from typing_extensions import Buffer, override

import pparallel_local
from broken.harness import Backends, rejected_by
from pparallel.errors import RemoteError
from pparallel.interfaces.request_transport import Handler
from pparallel.interfaces.transport import Frames
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.future import fail, settle
from pparallel.testing import TransportSuite
from pparallel_local import LocalTransportConfig
from pparallel_local.transport import LocalTransport

backends = Backends(LocalTransportConfig, pparallel_local)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


class OneInSome(LocalTransport):
    """Does something else with one request in *some*."""

    some = 100

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._numbers = itertools.count(1)

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        if next(self._numbers) % self.some:
            return super().request(to, frames, timeout)
        future = self._pending.add(to, timeout)
        self.otherwise(self._opened().find(to), frames, future)
        return future

    def otherwise(self, peer: LocalTransport, frames: Frames, future: Future[Frames]) -> None:
        raise NotImplementedError


class DeliversTwice(OneInSome):
    """Sends again what was not acknowledged in time, though it had arrived."""

    @override
    def otherwise(self, peer: LocalTransport, frames: Frames, future: Future[Frames]) -> None:
        for _ in range(2):
            peer.deliver(self.name, frames, future)


@rejected_by("test_each_request_is_handled_once")
class TestDeliversTwice(TransportSuite):
    config = backends.config(DeliversTwice)


class SwapsTwo(OneInSome):
    """Has a second way to a member, on which a request is overtaken by the next."""

    some = 4  # many calls are one request

    @override
    def otherwise(self, peer: LocalTransport, frames: Frames, future: Future[Frames]) -> None:
        threading.Timer(0.01, peer.deliver, args=(self.name, frames, future)).start()


@rejected_by("test_order")
class TestSwapsTwo(TransportSuite):
    config = backends.config(SwapsTwo)


class PassesTheSendersMemory(LocalTransport):
    """Saves the copy of a request."""

    @override
    def open(self, handler: Handler) -> None:
        self._handler = handler
        super().open(handler)

    @override
    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        reply = self._handler(sender, list(frames))
        if not isinstance(reply, Future):
            settle(future, own(reply))
            return

        def replied(source: Future[Frames]) -> None:
            if error := source.exception():
                fail(future, RemoteError(self.name, type(error).__name__, str(error), ""))
            else:
                settle(future, own(source.result()))

        reply.add_done_callback(replied)


def own(frames: Frames) -> list[Buffer]:
    return [bytearray(each) for each in frames]


@rejected_by("test_what_arrives_is_the_receivers_own", "test_tensors_are_the_receivers_own")
class TestPassesTheSendersMemory(TransportSuite):
    config = backends.config(PassesTheSendersMemory)


class ForgetsToReportTheLost(LocalTransport):
    """Fails what waits for a member that left, and tells nobody else of it."""

    @override
    def peer_left(self, name: str) -> None:
        self._pending.lose(name, "has left")


@rejected_by("test_a_member_that_leaves")
class TestForgetsToReportTheLost(TransportSuite):
    config = backends.config(ForgetsToReportTheLost)
