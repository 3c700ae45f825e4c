"""LauncherSuite: what every launcher promises."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

import pytest

import pparallel
from pparallel.errors import ConfigError, PparallelError, WorkerLostError
from pparallel.interfaces.launcher import (
    LaunchContext,
    Launcher,
    LauncherConfig,
    RankSpec,
    StartMethod,
)
from pparallel.testing.deaths import DEATHS, Death
from pparallel.testing.gate import Gate
from pparallel.testing.leftovers import no_leftovers
from pparallel.testing.patience import AGES, PATIENCE
from pparallel.testing.ranks import (
    Gates,
    die_in_one,
    environment_variable,
    exit_in_one,
    fail_beside_a_stubborn_one,
    fail_in,
    fail_one_after_the_other,
    follow_and_fail,
    identify,
    meet,
    note,
    pass_gate,
    tell,
    wait_to_be_stopped,
    who,
)
from pparallel.testing.suite import Suite, requires
from pparallel.testing.threads import in_threads

__all__ = ["LauncherSuite"]


class LauncherSuite(Suite):
    """The guarantees of :class:`~pparallel.interfaces.launcher.Launcher`.

    Attributes:
        start_method: how processes start; a launcher of processes has a class of tests for each.
    """

    interface: ClassVar[str] = "launcher"
    start_method: ClassVar[StartMethod] = "spawn"

    @pytest.fixture
    def subject(
        self, config: LauncherConfig, build: Callable[[LauncherConfig], Launcher]
    ) -> Iterator[Launcher]:
        """The launcher under test, open."""
        with build(config) as opened:
            yield opened

    def spawn(
        self,
        subject: Launcher,
        fn: Callable[..., Any],
        args: Sequence[object] = (),
        nprocs: int | None = None,
        *,
        join: bool = True,
    ) -> Any:
        """Have *subject* run *fn* in ranks that start as this suite's do."""
        return subject.spawn(fn, args, nprocs, join, start_method=self.start_method)

    @pytest.fixture
    def stubborn(self, tmp_path: Path) -> Iterator[Gate]:
        """A gate at which a rank waits whatever it is told; opened at the end of the test."""
        directory = tmp_path / "stubborn"
        directory.mkdir()
        with contextlib.closing(Gate(directory)) as gate:
            yield gate

    def test_each_rank_has_its_number_and_the_arguments(self, subject: Launcher) -> None:
        expected = [(rank, "a", [1]) for rank in range(3)]
        assert self.spawn(subject, identify, ("a", [1]), nprocs=3) == expected

    def test_each_rank_runs_once(self, subject: Launcher, tmp_path: Path) -> None:
        self.spawn(subject, note, (tmp_path,), nprocs=5)
        assert [(tmp_path / str(rank)).read_bytes() for rank in range(5)] == [b"."] * 5

    def test_one_rank(self, subject: Launcher) -> None:
        assert self.spawn(subject, identify, nprocs=1) == [(0,)]

    def test_as_many_ranks_as_devices(self, subject: Launcher) -> None:
        count = 1
        if importlib.util.find_spec("torch") is not None:
            import torch

            count = max(1, torch.cuda.device_count())
        assert self.spawn(subject, identify) == [(rank,) for rank in range(count)]

    @pytest.mark.parametrize("nprocs", [0, -1])
    def test_no_ranks_are_refused(self, subject: Launcher, nprocs: int) -> None:
        with pytest.raises(ValueError, match=f"nprocs must be at least 1, not {nprocs}"):
            self.spawn(subject, identify, nprocs=nprocs)

    def test_results_are_in_order_of_rank(self, subject: Launcher, tmp_path: Path) -> None:
        gates = Gates(tmp_path, 3)
        assert self.spawn(subject, meet, (3, gates), nprocs=4) == [0, 1, 2, 3]

    @pytest.mark.parametrize("failing", [0, 2])
    def test_a_failure_ends_the_others(self, subject: Launcher, failing: int) -> None:
        context = self.spawn(subject, fail_in, (failing,), nprocs=3, join=False)
        with pytest.raises(LookupError, match=f"nothing found in {failing}"):
            context.results()
        assert _all_ended(context)
        for _ in range(2):
            with pytest.raises(LookupError, match=f"nothing found in {failing}"):
                context.join()

    def test_the_first_failure_is_raised(self, subject: Launcher) -> None:
        context = self.spawn(subject, fail_one_after_the_other, nprocs=2, join=False)
        with pytest.raises(LookupError, match="this is what went wrong"):
            context.results()
        assert _all_ended(context)

    def test_a_failure_shows_its_traceback(self, subject: Launcher) -> None:
        with pytest.raises(LookupError, match="nothing found in 1") as caught:
            self.spawn(subject, fail_in, (1,), nprocs=2)
        shown = "".join(traceback.format_exception(caught.value))
        assert "in fail_in" in shown
        assert "rank 1" in shown

    @pytest.mark.parametrize("how", ["told", "lost"])
    def test_a_consequence_is_not_the_failure(
        self, subject: Launcher, tmp_path: Path, how: str
    ) -> None:
        with pytest.raises(LookupError, match="this is what went wrong"):
            self.spawn(subject, follow_and_fail, (how, Gates(tmp_path, 1)), nprocs=2)

    @pytest.mark.parametrize("how", ["0", "3", "interrupt"])
    def test_a_rank_that_exits_has_failed(self, subject: Launcher, how: str) -> None:
        with pytest.raises((RuntimeError, PparallelError), match="rank 1"):
            self.spawn(subject, exit_in_one, (how,), nprocs=2)

    def test_join_with_a_timeout(self, subject: Launcher, tmp_path: Path) -> None:
        gates = Gates(tmp_path, 2)
        context = self.spawn(subject, pass_gate, (gates,), nprocs=2, join=False)
        assert context.join(0.01) is False
        assert len(context.pids()) == 2
        assert len(context.processes) == 2
        gates.open(1)
        assert context.join(0.01) is False
        gates.open(0)
        assert context.join(AGES) is True
        assert context.results() == [0, 1]

    def test_any_thread_may_join(self, subject: Launcher, tmp_path: Path) -> None:
        def join(number: int) -> bool:
            if number == 3:
                assert context.join(0.2) is False  # meanwhile the others have come to wait
                gates.open(0)
            return bool(context.join())

        gates = Gates(tmp_path, 1)
        context = self.spawn(subject, pass_gate, (gates,), nprocs=1, join=False)
        assert in_threads(4, join) == [True] * 4

    def test_terminate(self, subject: Launcher) -> None:
        context = self.spawn(subject, wait_to_be_stopped, nprocs=2, join=False)
        assert context.join(0) is False
        context.terminate()
        assert _all_ended(context)
        context.terminate()

    @requires(lacking=("isolated",))
    def test_a_rank_that_does_not_stop_is_not_waited_for(
        self, subject: Launcher, tmp_path: Path, stubborn: Gate
    ) -> None:
        gates = Gates(tmp_path, 1)
        arguments = (gates, stubborn)
        context = self.spawn(subject, fail_beside_a_stubborn_one, arguments, nprocs=2, join=False)
        stubborn.arrived()
        gates.open(0)
        with pytest.raises(LookupError, match="this is what went wrong"):
            context.results()
        stubborn.open()
        assert _all_ended(context)

    def test_nothing_is_left_behind(self, subject: Launcher) -> None:
        with no_leftovers(self.patience):
            assert self.spawn(subject, identify, nprocs=2) == [(0,), (1,)]
            with pytest.raises(LookupError):
                self.spawn(subject, fail_in, (1,), nprocs=2)

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
        context = subject.start(ranks, daemon=False, start_method=self.start_method)
        assert context.results() == ["shade 0", "shade 1"]
        assert name not in os.environ

    @requires(lacking=("env",))
    def test_environment_is_refused(self, subject: Launcher) -> None:
        ranks = [RankSpec(0, environment_variable, ("COLOUR",), {"COLOUR": "red"})]
        with pytest.raises(ConfigError, match="COLOUR"):
            subject.start(ranks, daemon=False, start_method=self.start_method)

    @requires("resources")
    def test_resources_that_do_not_exist_are_refused(self, subject: Launcher) -> None:
        ranks = [RankSpec(0, identify, resources={"unobtainium": 1})]
        with pytest.raises(ConfigError, match="unobtainium"):
            subject.start(ranks, daemon=False, start_method=self.start_method)

    @requires(lacking=("resources",))
    def test_resources_are_ignored(self, subject: Launcher) -> None:
        ranks = [RankSpec(rank, identify, resources={"unobtainium": 1}) for rank in range(2)]
        context = subject.start(ranks, daemon=False, start_method=self.start_method)
        assert context.results() == [(0,), (1,)]

    @requires("hears")
    def test_what_ranks_tell_is_heard(self, subject: Launcher) -> None:
        heard: dict[int, list[object]] = {0: [], 1: []}
        ranks = [
            RankSpec(0, tell, (200,), hear=heard[0].append),
            RankSpec(1, tell, (100,), hear=heard[1].append),
            RankSpec(2, tell, (50,)),
        ]
        context = subject.start(ranks, daemon=False, start_method=self.start_method)
        assert context.results() == [True, True, False]
        assert heard == {0: [(0, each) for each in range(200)], 1: [(1, e) for e in range(100)]}

    @requires("hears")
    def test_a_listener_that_fails(self, subject: Launcher) -> None:
        def fail(heard: object) -> None:
            message = f"would not hear {heard}"
            raise LookupError(message)

        ranks = [RankSpec(0, tell, (3,), hear=fail)]
        context = subject.start(ranks, daemon=False, start_method=self.start_method)
        assert context.results() == [True]

    @requires("isolated")
    @pytest.mark.parametrize("how", ["quietly", *DEATHS])
    def test_a_rank_that_dies_is_named(self, subject: Launcher, how: str) -> None:
        death = DEATHS.get(how, Death(os._exit, (0,), 0))
        context = self.spawn(subject, die_in_one, (death,), nprocs=2, join=False)
        with pytest.raises(WorkerLostError, match="rank 1") as caught:
            context.results()
        assert (caught.value.pid, caught.value.exitcode) == (context.pids()[1], death.exitcode)
        assert _all_ended(context)

    @requires("isolated")
    def test_a_rank_that_does_not_stop_is_ended(
        self, subject: Launcher, tmp_path: Path, stubborn: Gate
    ) -> None:
        gates = Gates(tmp_path, 1)
        arguments = (gates, stubborn)
        context = self.spawn(subject, fail_beside_a_stubborn_one, arguments, nprocs=2, join=False)
        stubborn.arrived()
        gates.open(0)
        with pytest.raises(LookupError, match="this is what went wrong"):
            context.results()
        assert _all_ended(context)


def _all_ended(context: LaunchContext) -> bool:
    """Return whether all ranks end within the patience of the suite."""
    end = monotonic() + PATIENCE
    processes: list[Any] = list(context.processes)
    for each in processes:
        each.join(max(0.0, end - monotonic()))
    return not any(each.is_alive() for each in processes)
