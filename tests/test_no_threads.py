"""What starts threads when none can be started: it fails once, and the next time works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from exhausted import no_threads

import pparallel
from pparallel.errors import CallTimeoutError, ResourceExhaustedError
from pparallel.interfaces.launcher import Launcher, LauncherConfig
from pparallel.runtime.clock import Clock
from pparallel.runtime.pending import Pending
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
