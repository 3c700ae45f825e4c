"""Transports that fail once a signal comes, a handler or callback raises, or another is full."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import pytest
from typing_extensions import override

import pparallel_local
from broken.harness import Backends, rejected_by
from pparallel.errors import CallTimeoutError
from pparallel.interfaces.request_transport import Handler
from pparallel.interfaces.transport import Frames
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.future import settle
from pparallel.testing import TransportSuite
from pparallel_local import LocalTransportConfig
from pparallel_local.transport import LocalTransport

# What a test that hung has left may fail while the next is run.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

backends = Backends(LocalTransportConfig, pparallel_local)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


class SlowMemberHoldsUpOthers(LocalTransport):
    """Has one window for all members, in which a call keeps its time-out."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._changed = threading.Condition()
        self._used, self._room = 0, config.max_in_flight // 2

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        size = sum(memoryview(each).nbytes for each in frames)
        with self._changed:
            if not self._changed.wait_for(lambda: self._used <= self._room, timeout):
                raise CallTimeoutError(f"a request to {to!r}", timeout or 0.0)
            self._used += size
        future = super().request(to, frames, timeout)

        def ended(_: object) -> None:
            with self._changed:
                self._used -= size
                self._changed.notify_all()

        future.add_done_callback(ended)
        return future


@rejected_by("test_a_timeout_is_kept_under_back_pressure")
class TestSlowMemberHoldsUpOthers(TransportSuite):
    config = backends.config(SlowMemberHoldsUpOthers)


class RestartsAtSignals(LocalTransport):
    """Waits with a time-out of the socket, which begins anew after each signal."""

    @override
    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        future = self.request(to, frames)
        near, far = socket.socketpair()
        with near, far:
            whole, part = divmod(timeout or 0.0, 1)
            limit = struct.pack("ll", int(whole), int(part * 1e6))
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            number = far.fileno()
            future.add_done_callback(lambda _: self._wake(number))
            try:
                near.recv(1)
            except BlockingIOError:
                raise CallTimeoutError(f"a request to {to!r}", timeout or 0.0) from None
            return future.result()

    @staticmethod
    def _wake(number: int) -> None:
        with suppress(OSError):
            os.write(number, b".")


@rejected_by("test_a_timeout_is_kept_under_signals", hangs=True)
class TestRestartsAtSignals(TransportSuite):
    config = backends.config(RestartsAtSignals)


class Receiver(LocalTransport):
    """Has one thread that receives, and runs there what belongs to others."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._arrived: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._receive, daemon=True)

    @override
    def open(self, handler: Handler) -> None:
        self._handler = handler
        self._thread.start()
        super().open(handler)

    @override
    def close(self) -> None:
        super().close()
        self._arrived.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    @override
    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        self._arrived.put((sender, frames, future))

    def _receive(self) -> None:
        while (item := self._arrived.get()) is not None:
            self.take(*item)

    def take(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        super().deliver(sender, frames, future)


class EndsWithACallback(Receiver):
    """Runs callbacks in the thread that receives, which ends when one exits."""

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        future: Future[Frames] = Future()
        self._pending.watch(future, to, timeout)
        self._opened().find(to).deliver(self.name, frames, future)
        return future

    @override
    def take(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        reply: Future[Frames] = Future()
        super().take(sender, frames, reply)
        future.set_result(reply.result())


@rejected_by("test_a_callback_that_exits")
class TestEndsWithACallback(TransportSuite):
    config = backends.config(EndsWithACallback)


class EndsWithAHandler(Receiver):
    """Ends the thread that receives when a handler raises."""

    @override
    def take(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        try:
            reply = self._handler(sender, frames)
        except Exception:  # noqa: BLE001 - as such a transport would
            raise SystemExit from None
        super().take(sender, frames, future) if isinstance(reply, Future) else settle(future, reply)


@rejected_by("test_a_handler_that_fails")
class TestEndsWithAHandler(TransportSuite):
    config = backends.config(EndsWithAHandler)
