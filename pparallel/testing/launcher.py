"""LauncherSuite: what every launcher promises."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import pparallel
from pparallel.errors import ClosedError, ConfigError, PparallelError
from pparallel.interfaces.launcher import LaunchContext, Launcher, LauncherConfig, RankSpec
from pparallel.runtime import stopping
from pparallel.testing.suite import Suite, requires

if TYPE_CHECKING:
    from pparallel.builder import Runtime

PATIENCE = 20.0  #: seconds after which what should have happened never will


class Gates:
    """Lets ranks wait for one another, and for the test, whatever they are: by named pipes."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        for each in range(count):
            os.mkfifo(folder / str(each))

    def wait(self, number: int) -> None:
        """Wait until the gate is opened."""
        (self.folder / str(number)).read_text()

    def open(self, number: int) -> None:
        """Let whoever waits through; waits until someone does."""
        (self.folder / str(number)).write_text("open")


def identify(rank: int, *args: object) -> tuple[object, ...]:
    """Return the arguments."""
    return (rank, *args)


def end_in_reverse(rank: int, last: int, gates: Gates) -> int:
    """Return the rank after those that are greater have returned theirs, or nearly so."""
    if rank < last:
        gates.wait(rank)
    if rank > 0:
        gates.open(rank - 1)
    return rank


def fail_in(rank: int, failing: int) -> None:
    """Raise in one rank, and wait in the others until they are ended."""
    if rank == failing:
        message = f"nothing found in {rank}"
        raise LookupError(message)
    wait_to_be_stopped(rank)


def wait_to_be_stopped(rank: int) -> None:
    """Wait until this rank is told to stop, or for ever where ranks are ended by force."""
    signal = stopping.current()
    threading.Event().wait() if signal is None else signal.wait()


def follow_and_fail(rank: int, gates: Gates) -> None:
    """Fail in rank 0 as a consequence of what is about to fail in rank 1."""
    if rank == 0:
        gates.open(0)
        what = "the job"
        raise ClosedError(what, "is ending", consequence=True)
    gates.wait(0)
    message = "this is what went wrong"
    raise LookupError(message)


def exit_in_one(rank: int, how: str) -> None:
    """End rank 1 by what is no ordinary exception."""
    if rank == 1 and how == "interrupt":
        raise KeyboardInterrupt
    if rank == 1:
        sys.exit(int(how))


def pass_gate(rank: int, gates: Gates) -> int:
    """Return the rank once its gate is open."""
    gates.wait(rank)
    return rank


def fail_beside_a_stubborn_one(rank: int) -> None:
    """Fail in rank 0, and never end in rank 1."""
    if rank == 0:
        message = "this is what went wrong"
        raise LookupError(message)
    threading.Event().wait()


def environment_variable(rank: int, name: str) -> str | None:
    """Return a variable of the rank's environment."""
    return os.environ.get(name)


def who(rt: Runtime) -> tuple[str, int]:
    """Return this member's name and rank."""
    return rt.name, rt.rank


class LauncherSuite(Suite):
    """The guarantees of :class:`~pparallel.interfaces.launcher.Launcher`."""

    interface: ClassVar[str] = "launcher"

    @pytest.fixture
    def subject(
        self, config: LauncherConfig, build: Callable[[LauncherConfig], Launcher]
    ) -> Iterator[Launcher]:
        """The launcher under test, open."""
        with build(config) as opened:
            yield opened

    def test_each_rank_runs_once(self, subject: Launcher) -> None:
        expected = [(rank, "a", 1) for rank in range(3)]
        assert subject.spawn(identify, ("a", 1), nprocs=3) == expected

    def test_one_rank(self, subject: Launcher) -> None:
        assert subject.spawn(identify, nprocs=1) == [(0,)]

    def test_as_many_ranks_as_devices(self, subject: Launcher) -> None:
        results = subject.spawn(identify)
        assert results == [(rank,) for rank in range(max(1, len(results)))]

    @pytest.mark.parametrize("nprocs", [0, -1])
    def test_no_ranks_are_refused(self, subject: Launcher, nprocs: int) -> None:
        with pytest.raises(ValueError, match=f"nprocs must be at least 1, not {nprocs}"):
            subject.spawn(identify, nprocs=nprocs)

    def test_results_are_in_order_of_rank(self, subject: Launcher, tmp_path: Path) -> None:
        gates = Gates(tmp_path, 3)
        assert subject.spawn(end_in_reverse, (3, gates), nprocs=4) == [0, 1, 2, 3]

    @pytest.mark.parametrize("failing", [0, 2])
    def test_a_failure_ends_the_others(self, subject: Launcher, failing: int) -> None:
        context = subject.spawn(fail_in, (failing,), nprocs=3, join=False)
        with pytest.raises(LookupError, match=f"nothing found in {failing}"):
            context.results()
        assert _all_ended(context)
        with pytest.raises(LookupError, match=f"nothing found in {failing}"):
            context.join()

    def test_a_failure_shows_its_traceback(self, subject: Launcher) -> None:
        with pytest.raises(LookupError, match="nothing found in 1") as caught:
            subject.spawn(fail_in, (1,), nprocs=2)
        shown = "".join(traceback.format_exception(caught.value))
        assert "in fail_in" in shown
        assert "rank 1" in shown

    def test_a_consequence_is_not_the_failure(self, subject: Launcher, tmp_path: Path) -> None:
        with pytest.raises(LookupError, match="this is what went wrong"):
            subject.spawn(follow_and_fail, (Gates(tmp_path, 1),), nprocs=2)

    @pytest.mark.parametrize("how", ["0", "3", "interrupt"])
    def test_a_rank_that_exits_has_failed(self, subject: Launcher, how: str) -> None:
        with pytest.raises((RuntimeError, PparallelError), match="rank 1"):
            subject.spawn(exit_in_one, (how,), nprocs=2)

    def test_join_with_a_timeout(self, subject: Launcher, tmp_path: Path) -> None:
        gates = Gates(tmp_path, 2)
        context = subject.spawn(pass_gate, (gates,), nprocs=2, join=False)
        assert context.join(0.01) is False
        assert len(context.pids()) == 2
        assert len(context.processes) == 2
        gates.open(1)
        gates.open(0)
        assert context.join() is True
        assert context.results() == [0, 1]

    def test_terminate(self, subject: Launcher) -> None:
        context = subject.spawn(wait_to_be_stopped, nprocs=2, join=False)
        assert context.join(0) is False
        context.terminate()
        assert _all_ended(context)
        context.terminate()

    def test_ranks_of_a_job(self, config: LauncherConfig) -> None:
        job = pparallel.RuntimeConfig(members=["a", "b", "c"], launcher=config)
        assert pparallel.launch(job, who) == [("a", 0), ("b", 1), ("c", 2)]

    @requires("env")
    def test_environment(self, subject: Launcher) -> None:
        name = "PPARALLEL_SUITE_COLOUR"
        ranks = [
            RankSpec(rank, environment_variable, (name,), {name: f"shade {rank}"})
            for rank in range(2)
        ]
        context = subject.start(ranks, daemon=False, start_method="spawn")
        assert context.results() == ["shade 0", "shade 1"]
        assert name not in os.environ

    @requires(lacking=("env",))
    def test_environment_is_refused(self, subject: Launcher) -> None:
        ranks = [RankSpec(0, environment_variable, ("COLOUR",), {"COLOUR": "red"})]
        with pytest.raises(ConfigError, match="COLOUR"):
            subject.start(ranks, daemon=False, start_method="spawn")

    @requires("isolated")
    def test_a_rank_that_does_not_stop_is_ended(self, subject: Launcher) -> None:
        context = subject.spawn(fail_beside_a_stubborn_one, nprocs=2, join=False)
        with pytest.raises(LookupError, match="this is what went wrong"):
            context.results()
        assert _all_ended(context)


def _all_ended(context: LaunchContext) -> bool:
    """Return whether all ranks end within the patience of the suite."""
    processes: list[Any] = list(context.processes)
    for each in processes:
        each.join(PATIENCE)
    return not any(each.is_alive() for each in processes)
