from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from typing_extensions import override

import pparallel
import ray_rank_programs as programs
from pparallel.errors import ConfigError, WorkerLostError
from pparallel.interfaces.launcher import Launcher, RankSpec
from pparallel.testing import LauncherSuite
from pparallel.testing.patience import PATIENCE
from pparallel_ray import RayLauncherConfig
from pparallel_ray.cluster import RayConnection
from ray_clusters import CPUS, OnRunningCluster


class RayLauncherSuite(LauncherSuite):
    """On whatever cluster."""

    @override
    @pytest.fixture
    def config(self, cluster: RayConnection) -> RayLauncherConfig:
        return RayLauncherConfig(cluster=cluster)


class TestOnRunningCluster(OnRunningCluster, RayLauncherSuite):
    """On a cluster that runs already."""


@pytest.fixture
def launcher(running_cluster: RayConnection) -> Iterator[Launcher]:
    with pparallel.build(RayLauncherConfig(cluster=running_cluster)) as opened:
        yield opened


class TestPlaces:
    """What ranks ask for, and how they get it."""

    def test_ranks_know_their_number_on_their_machine(self, launcher: Launcher) -> None:
        assert launcher.spawn(programs.place, nprocs=3) == [(0, 0), (1, 1), (2, 2)]

    def test_what_a_cluster_can_never_give_is_refused_at_once(self, launcher: Launcher) -> None:
        too_many = CPUS + 1
        with pytest.raises(
            ConfigError, match=f"{too_many} members ask for {too_many} CPU"
        ) as caught:
            launcher.spawn(programs.place, nprocs=too_many)
        assert f"it has {CPUS} CPU" in str(caught.value)
        ranks = [RankSpec(0, programs.place, resources={"shelf": 5}, name="tall")]
        with pytest.raises(
            ConfigError, match=r"'tall' asks for .*5 shelf, more than any one machine"
        ):
            launcher.start(ranks, daemon=False, start_method="spawn")
        ranks = [RankSpec(0, programs.place, resources={"shelves": 1})]
        with pytest.raises(
            ConfigError, match=r"'shelves', which no machine has. Did you mean 'shelf'"
        ):
            launcher.start(ranks, daemon=False, start_method="spawn")

    def test_what_is_no_amount_is_refused(self, launcher: Launcher) -> None:
        for amount in ("two", -1, True, float("nan")):
            ranks = [RankSpec(0, programs.place, resources={"num_cpus": amount})]
            with pytest.raises(ConfigError, match=r"resources.num_cpus: rank 0 asks for"):
                launcher.start(ranks, daemon=False, start_method="spawn")

    def test_each_on_a_machine_of_its_own_needs_so_many_machines(
        self,
        running_cluster: RayConnection,
    ) -> None:
        config = RayLauncherConfig(cluster=running_cluster, placement="strict_spread")
        with (
            pparallel.build(config) as launcher,
            pytest.raises(ConfigError, match="2 members ask for a machine each"),
        ):
            launcher.spawn(programs.place, nprocs=2)

    def test_resources_in_use_are_waited_for(
        self, launcher: Launcher, running_cluster: RayConnection, tmp_path: Path
    ) -> None:
        ranks = [RankSpec(0, programs.wait, (tmp_path,), resources={"shelf": 3, "memory": "10MB"})]
        first = launcher.start(ranks, daemon=False, start_method="spawn")
        hasty = RayLauncherConfig(cluster=running_cluster, start_timeout=0.5)
        with (
            pparallel.build(hasty) as second,
            pytest.raises(ConfigError, match=r"3 shelf.* had no room within 0.5 s.*free") as caught,
        ):
            second.start(ranks, daemon=False, start_method="spawn")
        assert "10 MB of memory" in str(caught.value)
        first.terminate()
        ranks = [RankSpec(0, programs.place, resources={"shelf": 3})]
        assert launcher.start(ranks, daemon=False, start_method="spawn").results() == [(0, 0)]

    def test_members_that_need_nothing(self, running_cluster: RayConnection) -> None:
        config = RayLauncherConfig(cluster=running_cluster, num_cpus=0)
        with pparallel.build(config) as launcher:
            ranks = [
                RankSpec(0, programs.place),
                RankSpec(1, programs.place, resources={"shelf": 1}),
            ]
            assert launcher.start(ranks, daemon=False, start_method="spawn").results() == [
                (0, 0),
                (1, 1),
            ]


class TestSurroundings:
    """What a rank finds, and what it says."""

    def test_a_rank_finds_what_its_launcher_has(self, launcher: Launcher) -> None:
        ranks = [RankSpec(0, programs.surroundings, resources={"num_cpus": 2})]
        (found,) = launcher.start(ranks, daemon=False, start_method="spawn").results()
        assert found == (os.getcwd(), sys.argv, True, "2", "token")

    def test_a_rank_knows_the_script(
        self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        main = sys.modules["__main__"]
        monkeypatch.setattr(main, "__spec__", None)
        monkeypatch.setattr(main, "__file__", "/script.py", raising=False)
        assert launcher.spawn(programs.script, nprocs=1) == [("/script.py", sys.argv)]

    def test_a_rank_may_use_the_cluster_that_placed_it(
        self, launcher: Launcher, running_cluster: RayConnection
    ) -> None:
        ((address, pid),) = launcher.spawn(programs.use_ray, nprocs=1)
        assert address == running_cluster.address
        assert pid != os.getpid()

    def test_what_ranks_print_and_log_comes_to_the_launching_process(
        self,
        launcher: Launcher,
        capsys: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        launcher.spawn(programs.say, nprocs=2)
        printed = capsys.readouterr()
        assert sorted(printed.out.splitlines()) == ["rank 0 printed", "rank 1 printed"]
        assert sorted(printed.err.splitlines()) == ["rank 0 complained", "rank 1 complained"]
        assert sorted(caplog.messages) == ["rank 0 warned", "rank 1 warned"]

    def test_members_of_a_job(
        self, running_cluster: RayConnection, capsys: pytest.CaptureFixture[str]
    ) -> None:
        launcher = RayLauncherConfig(cluster=running_cluster)
        members = [{"name": "a", "resources": {"shelf": 1}}, "b"]
        config = pparallel.RuntimeConfig(members=members, launcher=launcher)
        found = pparallel.launch(config, programs.say_as_member)
        assert found == ["RayTransport 0", "RayTransport 1"]
        assert sorted(capsys.readouterr().out.splitlines()) == ["printed by a", "printed by b"]

    def test_a_child_of_a_rank_does_not_keep_it(self, launcher: Launcher) -> None:
        before = monotonic()
        assert launcher.spawn(programs.fork_and_return, nprocs=1) == ["returned"]
        assert monotonic() - before < PATIENCE

    def test_large_arguments_and_results(self, launcher: Launcher) -> None:
        value = bytes(range(256)) * 20_000
        assert launcher.spawn(programs.echo, (value,), nprocs=2) == [value, value]


class TestEnds:
    """Who ends with whom."""

    @pytest.mark.parametrize("which", ["rank", "supervisor"])
    def test_a_killed_process_is_told(self, launcher: Launcher, tmp_path: Path, which: str) -> None:
        context = launcher.spawn(programs.wait, (tmp_path,), nprocs=2, join=False)
        pids = programs.started(tmp_path, range(2))
        os.kill(pids[1][which == "supervisor"], signal.SIGKILL)
        with pytest.raises(
            WorkerLostError, match=r"it was rank 1 at .* and had not returned"
        ) as lost:
            context.results()
        assert lost.value.pid == context.pids()[1] == pids[1][0]
        assert lost.value.exitcode == (-signal.SIGKILL if which == "rank" else None)
        assert programs.gone([pid for each in pids.values() for pid in each])

    def test_ranks_end_with_the_program(
        self, running_cluster: RayConnection, tmp_path: Path
    ) -> None:
        command = [sys.executable, programs.__file__, str(tmp_path), str(running_cluster.address)]
        environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
        program = subprocess.Popen(command, env=environment)
        try:
            pids = programs.started(tmp_path, range(2))
        finally:
            program.kill()
            program.wait()
        assert programs.gone([pid for each in pids.values() for pid in each])
