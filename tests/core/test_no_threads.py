"""What starts threads when none can be started: it fails once, and the next time works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from exhausted import no_threads
from rpc_members import add_late, between
from rpc_members import launch as launch_members

import pparallel
from pparallel import Runtime
from pparallel.errors import CallTimeoutError, ResourceExhaustedError
from pparallel.interfaces.launcher import Launcher, LauncherConfig
from pparallel.runtime.clock import Clock
from pparallel.runtime.pending import Pending
from pparallel.runtime.rpc.group import RpcGroup
from pparallel.runtime.ticker import Ticker
from pparallel.testing.patience import PATIENCE
from pparallel_local import ThreadLauncherConfig
from pparallel_process import ProcessLauncherConfig


@contextmanager
def closing(made: Any) -> Iterator[Any]:
    try:
        yield made
    finally:
        made.close()


def call_later(stack: ExitStack) -> Callable[[], object]:
    clock, called = stack.enter_context(closing(Clock("clock"))), threading.Event()

    def act() -> None:
        clock.after(0, called.set)
        assert called.wait(PATIENCE)

    return act


def call_often(stack: ExitStack) -> Callable[[], object]:
    ticker, called = stack.enter_context(closing(Ticker("ticker", 0.001))), threading.Event()

    def act() -> None:
        ticker.add(lambda _: called.set())
        assert called.wait(PATIENCE)

    return act


def expire(stack: ExitStack) -> Callable[[], object]:
    pending: Pending[None] = stack.enter_context(closing(Pending("transport")))

    def act() -> None:
        with pytest.raises(CallTimeoutError):
            pending.add("other", 0.01).result(PATIENCE)
        assert not len(pending)

    return act


def built(config: LauncherConfig) -> Launcher:
    return pparallel.build(config)


def launch(stack: ExitStack) -> Callable[[], object]:
    launcher = stack.enter_context(built(ThreadLauncherConfig()))
    return lambda: launcher.spawn(lambda rank: rank, nprocs=2)


def launch_processes(stack: ExitStack) -> Callable[[], object]:
    launcher = stack.enter_context(built(ProcessLauncherConfig()))
    return lambda: launcher.spawn(abs, nprocs=1, start_method="fork")


@pytest.mark.parametrize("prepare", [call_later, call_often, expire, launch, launch_processes])
def test_no_thread_can_be_started_once(prepare: Callable[[ExitStack], Callable[[], Any]]) -> None:
    with ExitStack() as stack:
        act = prepare(stack)
        for _ in range(2):
            with no_threads(), pytest.raises(ResourceExhaustedError, match="threads"):
                act()
        act()


@pytest.mark.parametrize("backend", ["local", "ipc", "zmq"])
def test_a_member_that_could_start_no_thread_serves_calls_afterwards(backend: str) -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        with no_threads():
            futures = []
            for n in range(6):
                with suppress(RuntimeError, OSError):
                    futures.append(group.rpc_async(1, add_late, 0.5, (n, 1)))
            for each in futures:
                each.exception(PATIENCE)
        later = [group.rpc_async(1, add_late, PATIENCE, (n, 1)) for n in range(6)]
        assert [each.wait() for each in later] == [*range(1, 7)]

    launch_members(between(program), backend=backend, handler_threads=2)


_has_begun, _may_end = threading.Event(), threading.Event()


def wait_between() -> None:
    _has_begun.set()
    assert _may_end.wait(PATIENCE)


def test_a_callback_for_which_no_thread_could_be_started_is_called_later() -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        future, called = group.rpc_async(1, wait_between), threading.Event()
        assert _has_begun.wait(PATIENCE)
        with no_threads():
            future.add_done_callback(lambda _: called.set())
            _may_end.set()
            future.wait()
            assert not called.wait(0.05)
        assert called.wait(PATIENCE)

    launch_members(between(program), backend="ipc", handler_threads=2)


@pytest.fixture
def pending() -> Pending[None]:
    """Requests for whose first time-out no thread could be started."""
    made: Pending[None] = Pending("transport")
    with no_threads(), suppress(RuntimeError, OSError):
        made.add("other", 0.01)
    return made


def test_time_outs_are_kept_once_threads_can_be_started(pending: Pending[None]) -> None:
    with closing(pending), pytest.raises(CallTimeoutError):
        pending.add("other", 0.01).result(PATIENCE)


def test_requests_without_a_thread_for_their_time_outs_close(pending: Pending[None]) -> None:
    waiting = pending.add("other", None)
    pending.close()
    assert waiting.done()
