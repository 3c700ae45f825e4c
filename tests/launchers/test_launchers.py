"""Launchers: the suites, and what is particular to threads."""

from __future__ import annotations

import contextvars
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import ClassVar

import pytest
from selected_tests import only
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, ConfigError, ResourceExhaustedError
from pparallel.interfaces.launcher import Launcher, LauncherConfig, RankSpec, StartMethod
from pparallel.runtime import stopping
from pparallel.runtime.stopping import StopSignal
from pparallel.testing import LauncherSuite
from pparallel_local import ThreadLauncherConfig
from pparallel_process import ProcessLauncherConfig

PATIENCE = 60.0
#: the laws that each start method is tried with
IN_EACH_WAY = (
    "test_each_rank_has_its_number_and_the_arguments",
    "test_a_failure_ends_the_others",
    "test_what_ranks_tell_is_heard",
    "test_a_rank_that_dies_is_named",
)
FORK_WARNS = "ignore:This process .* is multi-threaded:DeprecationWarning"  # since Python 3.12


class TestThreadLauncher(LauncherSuite):
    @pytest.fixture
    @override
    def config(self) -> LauncherConfig:
        return ThreadLauncherConfig()


class ProcessLauncherSuite(LauncherSuite):
    """Its ranks, and the members of its job, start in one of the three ways."""

    @pytest.fixture
    @override
    def config(self) -> LauncherConfig:
        return ProcessLauncherConfig(start_method=self.start_method)


class TestForkServerLauncher(ProcessLauncherSuite):
    start_method: ClassVar[StartMethod] = "forkserver"


@only(*IN_EACH_WAY)
class TestSpawnLauncher(ProcessLauncherSuite):
    start_method: ClassVar[StartMethod] = "spawn"


@only(*IN_EACH_WAY)
@pytest.mark.filterwarnings(FORK_WARNS)
class TestForkLauncher(ProcessLauncherSuite):
    start_method: ClassVar[StartMethod] = "fork"


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with pparallel.build(ThreadLauncherConfig()) as opened:
        yield opened


def test_ranks_are_daemon_threads_of_this_process(launcher: Launcher) -> None:
    gate = threading.Event()

    def work(rank: int) -> tuple[str, bool]:
        gate.wait(PATIENCE)
        return threading.current_thread().name, threading.current_thread().daemon

    context = launcher.spawn(work, nprocs=2, join=False)
    assert context.pids() == [os.getpid()] * 2
    assert [each.name for each in context.processes] == ["rank-0", "rank-1"]
    gate.set()
    assert context.results() == [("rank-0", True), ("rank-1", True)]


def test_each_rank_has_its_own_signal_and_context(launcher: Launcher) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("by the caller")

    def work(rank: int) -> tuple[StopSignal | None, str]:
        found = variable.get()
        variable.set(f"by rank {rank}")
        return stopping.current(), found

    (first, seen), (second, seen_too) = launcher.spawn(work, nprocs=2)
    assert first is not None
    assert second is not None
    assert first is not second
    assert not first.is_set()
    assert seen == seen_too == variable.get() == "by the caller"
    assert stopping.current() is None


def test_the_reason_to_stop_is_the_first_failure(launcher: Launcher) -> None:
    def work(rank: int) -> None:
        if rank == 1:
            message = "first"
            raise LookupError(message)
        told = stopping.current()
        assert told is not None
        told.wait()
        raise ClosedError("the call", "ends", consequence=True) from told.reason

    with pytest.raises(LookupError, match="first") as caught:
        launcher.spawn(work, nprocs=2)
    assert caught.value.__notes__ == ["raised in rank 1"]


def test_a_stubborn_rank_is_left_behind(launcher: Launcher) -> None:
    gate = threading.Event()

    def work(rank: int) -> None:
        if rank == 0:
            message = "this is what went wrong"
            raise LookupError(message)
        gate.wait(PATIENCE)

    context = launcher.spawn(work, nprocs=2, join=False)
    context.grace = 0.05
    with pytest.raises(LookupError):
        context.results()
    assert context.processes[1].is_alive()
    gate.set()
    context.processes[1].join(PATIENCE)
    assert not context.processes[1].is_alive()


@pytest.mark.parametrize("how", [SystemExit(0), SystemExit("bye"), KeyboardInterrupt()])
def test_a_rank_that_exits_is_named_with_its_cause(launcher: Launcher, how: BaseException) -> None:
    def work(rank: int) -> None:
        raise how

    with pytest.raises(RuntimeError, match="rank 0 was ended by") as caught:
        launcher.spawn(work, nprocs=1)
    assert caught.value.__cause__ is how


def test_an_interrupt_ends_the_ranks(launcher: Launcher) -> None:
    reasons: list[BaseException | None] = []

    def work(rank: int) -> None:
        told = stopping.current()
        assert told is not None
        if rank == 0:
            _wait_until_the_main_thread_joins()
            _interrupt_the_main_thread()
            # A signal that comes just before a thread begins to wait is not seen by CPython until
            # the next one.
            while not told.wait(1.0):
                _interrupt_the_main_thread()
        told.wait()
        reasons.append(told.reason)

    with pytest.raises(KeyboardInterrupt) as caught:
        launcher.spawn(work, nprocs=2)
    assert reasons == [caught.value] * 2


def _wait_until_the_main_thread_joins() -> None:
    pause = threading.Event()
    while "join" not in _functions_of(threading.main_thread()):
        pause.wait(0.002)


def _interrupt_the_main_thread() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _functions_of(thread: threading.Thread) -> list[str]:
    frame = sys._current_frames().get(thread.ident or 0)
    return [each[0].f_code.co_name for each in traceback.walk_stack(frame)] if frame else []


def test_a_launch_inside_a_rank_stops_with_it(launcher: Launcher) -> None:
    inside = threading.Event()
    ended: list[str] = []

    def inner(rank: int) -> None:
        inside.set()
        told = stopping.current()
        assert told is not None
        told.wait()
        ended.append("inner")

    def outer(rank: int) -> None:
        launcher.spawn(inner, nprocs=1)
        ended.append("outer")

    context = launcher.spawn(outer, nprocs=1, join=False)
    assert inside.wait(PATIENCE)
    context.terminate()
    assert ended == ["inner", "outer"]


def test_an_environment_of_its_own_is_refused_before_anything_starts(launcher: Launcher) -> None:
    ran: list[int] = []
    ranks = [RankSpec(0, ran.append), RankSpec(1, ran.append, env={"COLOUR": "red"})]
    with pytest.raises(ConfigError, match=r"rank 1 .*COLOUR.*launcher: \{backend: process\}"):
        launcher.start(ranks, daemon=False, start_method="spawn")
    assert ran == []


def test_threads_that_cannot_be_started(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse_the_second(thread: threading.Thread) -> None:
        if thread.name == "rank-1":
            message = "can't start new thread"
            raise RuntimeError(message)
        start(thread)

    def work(rank: int) -> None:
        told = stopping.current()
        assert told is not None
        told.wait()

    monkeypatch.setattr(threading.Thread, "start", refuse_the_second)
    with pytest.raises(ResourceExhaustedError, match="no more threads"):
        launcher.spawn(work, nprocs=3)


def test_devices_are_counted_only_with_torch(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert launcher.spawn(int) == [0]
