"""Transports that fail once a resource does, or a signal comes, or what they send is full."""

from __future__ import annotations

import gc
import os
import resource
import socket
import struct
import sys
import threading
import time
import tracemalloc  # noqa: F401 - as pytest does where a thread fails, which may lack descriptors
from collections import defaultdict, deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import pytest
from idle_strangers import few_descriptors, has_room, strangers
from typing_extensions import override

import pparallel_local
import pparallel_zmq
from broken.harness import Backends, rejected_by
from pparallel import Runtime
from pparallel.errors import CallTimeoutError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.transport import Frames, Handler, TransportConfig
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.pending import fail, settle
from pparallel.testing import TransportSuite
from pparallel.testing.patience import PATIENCE, until
from pparallel_local import LocalTransportConfig
from pparallel_local.transport import LocalTransport
from pparallel_zmq import ZmqTransportConfig, server
from pparallel_zmq.transport import ZmqTransport

# What a test that hung has left may fail while the next is run.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

backends = Backends(LocalTransportConfig, pparallel_local)
zmq_backends = Backends(ZmqTransportConfig, pparallel_zmq)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return [*backends.records, *zmq_backends.records]


class NeverSendsADeferredReply(LocalTransport):
    """Counts the frames of a reply in 16 bits, and leaves a reply that has more."""

    @override
    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        reply: Future[Frames] = Future()

        def replied(reply: Future[Frames]) -> None:
            if error := reply.exception():
                fail(future, error)
            elif len(reply.result()) < 1 << 16:
                settle(future, reply.result())

        reply.add_done_callback(replied)
        super().deliver(sender, frames, reply)


@rejected_by("test_many_frames_arrive")
class TestNeverSendsADeferredReply(TransportSuite):
    config = backends.config(NeverSendsADeferredReply)


class WindowIgnoresDeadlines(LocalTransport):
    """Has a sender wait until there is room for what it sends, however long that takes."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._changed = threading.Condition()
        self._used: defaultdict[str, int] = defaultdict(int)
        self._room = config.max_in_flight // 2

    def window(self, to: str) -> str:
        return to

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        size, window = sum(memoryview(each).nbytes for each in frames), self.window(to)
        with self._changed:
            self.wait_for_room(window, to, timeout)
            self._used[window] += size
        future = super().request(to, frames, timeout)

        def ended(_: object) -> None:
            with self._changed:
                self._used[window] -= size
                self._changed.notify_all()

        future.add_done_callback(ended)
        return future

    def wait_for_room(self, window: str, to: str, timeout: float | None) -> None:
        while self._used[window] > self._room and not self.closed:
            self._changed.wait(0.05)


@rejected_by("test_a_timeout_is_kept_under_back_pressure", hangs=True)
class TestWindowIgnoresDeadlines(TransportSuite):
    config = backends.config(WindowIgnoresDeadlines)


class WindowForAllMembers(WindowIgnoresDeadlines):
    """Has one window for all members, and calls from inside handlers wait for it too."""

    @override
    def window(self, to: str) -> str:
        return "all"


@rejected_by("test_circles_do_not_deadlock", hangs=True)
class TestWindowForAllMembers(TransportSuite):
    config = backends.config(WindowForAllMembers)


class SlowMemberHoldsUpOthers(WindowIgnoresDeadlines):
    """Has one window for all members, in which a call keeps its time-out."""

    @override
    def window(self, to: str) -> str:
        return "all"

    @override
    def wait_for_room(self, window: str, to: str, timeout: float | None) -> None:
        if not self._changed.wait_for(lambda: self._used[window] <= self._room, timeout):
            raise CallTimeoutError(f"a request to {to!r}", timeout or 0.0)


@rejected_by("test_a_timeout_is_kept_under_back_pressure")
class TestSlowMemberHoldsUpOthers(TransportSuite):
    config = backends.config(SlowMemberHoldsUpOthers)


class CountsAThreadBeforeItStarts(LocalTransport):
    """Counts a thread as running that could not be started, and never starts another."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._lock = threading.Lock()
        self._running = False
        self._waiting: deque[tuple[str, Frames, Future[Frames]]] = deque()

    @override
    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        with self._lock:
            self._waiting.append((sender, frames, future))
            if self._running:
                return
            self._running = True
        with suppress(RuntimeError):
            threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                item = self._waiting.popleft()
            super().deliver(*item)


@rejected_by("test_goes_on_after_no_thread_could_be_started", hangs=True)
class TestCountsAThreadBeforeItStarts(TransportSuite):
    config = backends.config(CountsAThreadBeforeItStarts)


class CountsItsClockBeforeItStarts(LocalTransport):
    """Keeps time-outs by a thread that counts as running once it was to be started."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._lock = threading.Lock()
        self._running = False
        self._limits: list[tuple[float, float, str, Future[Frames]]] = []

    @override
    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        return self.request(to, frames, timeout).result()

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        future = super().request(to, frames)
        if timeout is not None:
            with self._lock:
                self._limits.append((time.monotonic() + timeout, timeout, to, future))
                starts, self._running = not self._running, True
            if starts:
                with suppress(RuntimeError):
                    threading.Thread(target=self._watch, daemon=True).start()
        return future

    def _watch(self) -> None:
        while not threading.Event().wait(0.01):
            now = time.monotonic()
            with self._lock:
                self._limits = [each for each in self._limits if not each[3].done()]
                late = [each for each in self._limits if each[0] < now]
                if self.closed or not self._limits:
                    self._running = False
                    return
            for _, timeout, to, future in late:
                fail(future, CallTimeoutError(f"a request to {to!r}", timeout))


@rejected_by("test_goes_on_after_no_thread_could_be_started", hangs=True)
class TestCountsItsClockBeforeItStarts(TransportSuite):
    config = backends.config(CountsItsClockBeforeItStarts)


class JoinsWhatNeverStarted(LocalTransport):
    """Waits, as it closes, for threads that could not be started, too."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._threads: list[threading.Thread] = []

    @override
    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        with suppress(RuntimeError):
            self._threads.append(threading.Thread(target=str))
            self._threads[-1].start()
        super().deliver(sender, frames, future)

    @override
    def close(self) -> None:
        super().close()
        for each in self._threads:
            each.join()


@rejected_by("test_goes_on_after_no_thread_could_be_started")
class TestJoinsWhatNeverStarted(TransportSuite):
    config = backends.config(JoinsWhatNeverStarted)


class TakesWantForDeath(LocalTransport):
    """Looks at the others now and then, and takes it for their end that it cannot look."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @override
    def open(self, handler: Handler) -> None:
        super().open(handler)
        self._thread.start()

    @override
    def close(self) -> None:
        self._ended.set()
        super().close()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            try:
                os.close(os.open("/proc/self/stat", os.O_RDONLY))
            except OSError:
                for each in set(self._member.names) - {self.name}:
                    self.peer_left(each)
                return


@rejected_by("test_goes_on_after_no_descriptor_could_be_opened")
class TestTakesWantForDeath(TransportSuite):
    config = backends.config(TakesWantForDeath)


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


class PlainLock(LocalTransport):
    """Holds a lock while it sends that the same thread cannot take twice."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._lock = threading.Lock()

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        with self._lock:
            self.between()
            return super().request(to, frames, timeout)

    def between(self) -> None:
        for _ in range(2000):
            pass


@rejected_by("test_a_signal_handler_may_send", hangs=True)
class TestPlainLock(TransportSuite):
    config = backends.config(PlainLock)


class CollectsUnderALock(PlainLock):
    """Allocates under such a lock, so that finalizers run there."""

    @override
    def between(self) -> None:
        gc.collect(0)


@rejected_by("test_a_finalizer_may_send", hangs=True)
class TestCollectsUnderALock(TransportSuite):
    config = backends.config(CollectsUnderALock)


def besieged(rt: Runtime) -> None:
    group = rt.group()
    group.barrier(PATIENCE)
    if rt.rank == 0:
        with few_descriptors(), strangers(rt.member.rendezvous or ""):
            until(has_room, "strangers have taken all descriptors")
    group.barrier(PATIENCE)


class StrangerSuite(TransportSuite):
    """What a transport on a port must do besides: anybody may connect to it."""

    def test_idle_strangers_leave_descriptors(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        assert self.launch(launcher, config, 2, besieged) == [None] * 2


class KeepsStrangers(ZmqTransport):
    """Accepts connections without a limit, and closes none that prove nothing."""

    @override
    def open(self, handler: Handler) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "STRANGERS", sys.maxsize)
            patch.setattr(resource, "getrlimit", lambda _: (sys.maxsize, sys.maxsize))
            super().open(handler)


@rejected_by("test_idle_strangers_leave_descriptors")
class TestKeepsStrangers(StrangerSuite):
    config = zmq_backends.config(KeepsStrangers, address="tcp://127.0.0.1:0")
