"""The launcher ``torchrun``, and programs that torchrun itself starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torchrun_programs as programs
from exhausted import no_descriptors
from free_ports import free_ports
from selected_tests import only
from typing_extensions import override

import pparallel
from pparallel.builder.loading import member_of
from pparallel.errors import CallTimeoutError, ConfigError, RemoteError, WorkerLostError
from pparallel.interfaces.launcher import Launcher, LauncherConfig
from pparallel.runtime import environment
from pparallel.runtime.exchange import Exchange
from pparallel.testing import LauncherSuite
from pparallel.testing.patience import PATIENCE, until, until_gone
from pparallel.testing.threads import in_threads
from pparallel_torch import TorchRpcTransportConfig, TorchrunLauncherConfig

HELPERS = Path(__file__).resolve().parents[1] / "helpers"


@only(
    "test_each_rank_has_its_number_and_the_arguments",
    "test_results_are_in_order_of_rank",
    "test_a_failure_ends_the_others",
    "test_a_rank_that_exits_has_failed",
    "test_a_rank_that_dies_is_named",
    "test_a_rank_that_does_not_stop_is_ended",
    "test_terminate",
    "test_environment",
    "test_what_ranks_tell_is_heard",
    "test_a_listener_that_fails",
    "test_nothing_is_left_behind",
)
class TestTorchrunLauncher(LauncherSuite):
    @pytest.fixture
    @override
    def config(self) -> LauncherConfig:
        return TorchrunLauncherConfig()


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with pparallel.build(TorchrunLauncherConfig()) as opened:
        yield opened


def test_ranks_are_told_their_place_and_need_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/script.py", raising=False)
    offset = 10

    def look(rank: int, more: int) -> tuple[object, ...]:
        script = sys.modules["__main__"].__file__
        return (*programs.place(rank), programs.threads(rank), offset + rank + more, script)

    with pparallel.build(TorchrunLauncherConfig(threads_per_rank=3)) as launcher:
        expected = [(rank, 2, 1, False, "3", 15 + rank, "/script.py") for rank in range(2)]
        assert launcher.spawn(look, (5,), nprocs=2) == expected


def test_what_fails_each_time_is_raised_in_the_end() -> None:
    with (
        pparallel.build(TorchrunLauncherConfig(max_restarts=1, shutdown_timeout=1)) as launcher,
        pytest.raises(LookupError, match="failed after 1 restarts"),
    ):
        launcher.spawn(programs.fail_again, nprocs=2)


def test_ranks_that_come_without_descriptors_are_let_in_later(
    launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    context = launcher.spawn(programs.place, nprocs=2, join=False)
    with no_descriptors():
        until(lambda: "could not be let in" in caplog.text, "no rank came")
    assert context.results() == [(rank, 2, 1, False) for rank in range(2)]


def test_two_machines() -> None:
    """The members of a job are dealt to two agents, and call one another."""
    launcher = TorchrunLauncherConfig(
        nnodes=2,
        rdzv_endpoint=f"127.0.0.1:{free_ports()[0]}",
        rdzv_id="job",
        local_addr="127.0.0.1",
    )
    config = pparallel.RuntimeConfig(
        members=["a", "b"],
        launcher=launcher,
        transport=TorchRpcTransportConfig(),
        reducer={"backend": "local"},
    )
    found = in_threads(2, lambda _: pparallel.launch(config, programs.call_the_other))
    assert sorted(found) == [[("a calls b", 0, 2, 2)], [("b calls a", 0, 2, 2)]]


def test_other_machines_that_do_not_come() -> None:
    config = TorchrunLauncherConfig(
        nnodes=2, rdzv_endpoint="127.0.0.1:0", rdzv_id="job", rdzv_timeout=1.0
    )
    with (
        pparallel.build(config) as launcher,
        pytest.raises(RemoteError, match="RendezvousTimeoutError"),
    ):
        launcher.spawn(programs.place, nprocs=2)


@pytest.mark.parametrize(
    ("options", "ranks", "message"),
    [
        ({"nnodes": 2, "rdzv_endpoint": "a:1", "rdzv_id": "x"}, 3, "3 ranks cannot be dealt to 2"),
        ({"nnodes": 2}, 2, "give rdzv_endpoint"),
    ],
)
def test_what_cannot_be_dealt(options: dict[str, Any], ranks: int, message: str) -> None:
    with (
        pparallel.build(TorchrunLauncherConfig(**options)) as launcher,
        pytest.raises(ConfigError, match=message),
    ):
        launcher.spawn(programs.place, nprocs=ranks)


def pids(folder: Path, count: int) -> list[int]:
    files = [folder / f"{rank}.pid" for rank in range(count)]
    until(lambda: all(each.exists() for each in files), "not all ranks came")
    return [int(each.read_text()) for each in files]


def test_the_agent_is_killed(launcher: Launcher, tmp_path: Path) -> None:
    context = launcher.spawn(programs.wait, (tmp_path,), nprocs=2, join=False)
    ranks = pids(tmp_path, 2)
    assert context.pids() == ranks
    agent = int(Path(f"/proc/{ranks[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(agent, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="elastic agent") as caught:
        context.join()
    assert caught.value.pid == agent
    until_gone(*ranks)


def test_ranks_end_with_the_launching_process(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import pathlib, pparallel, pparallel_torch, torchrun_programs as programs\n"
        "with pparallel.build(pparallel_torch.TorchrunLauncherConfig()) as launcher:\n"
        "    launcher.spawn(programs.wait, (pathlib.Path(sys.argv[2]),), nprocs=2)\n"
    )
    command = [sys.executable, "-c", program, str(HELPERS), str(tmp_path)]
    with subprocess.Popen(command) as launching:
        try:
            ranks = pids(tmp_path, 2)
        finally:
            launching.kill()
    until_gone(*ranks)


def test_where_the_members_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "RANK": "1",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "::1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "job/7",
        "TORCHELASTIC_RESTART_COUNT": "3",
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    found = environment.torchrun()
    assert found is not None
    assert found.machines == 2
    member = member_of(pparallel.load({"members": "auto"}), None)
    assert member.rendezvous == found.address == "torchrun://[::1]:29500/job%2F7/3"
    counted = pparallel.load({"members": 2, "collective": "gloo"})  # no launcher of threads
    assert member_of(counted, None).name == "member-1"
    monkeypatch.delenv("MASTER_PORT")
    assert member_of(pparallel.load({"members": "auto"}), None).rendezvous is None


@pytest.fixture(scope="module")
def _libuv() -> None:
    """Have torch's store make what it keeps for the life of the process: libuv's own pipe."""
    Exchange(f"tcp://127.0.0.1:{free_ports()[0]}", 0, 1, PATIENCE)


@pytest.mark.usefixtures("_libuv")
def test_members_leave_one_another_their_addresses() -> None:
    port, _ = free_ports()
    host, guest = (Exchange(f"tcp://127.0.0.1:{port}", rank, 2, PATIENCE) for rank in range(2))
    assert host.get("address") is None  # its name differs from the next one's here
    host.put("address", b"\0tcp://")
    assert host.get("address") == b"\0tcp://"
    assert guest.get("address") is None
    assert dict(host.arrivals(["address", "other"], 0.02, lambda: False)) == {
        "address": b"\0tcp://"
    }
    assert not list(host.arrivals(["other"], PATIENCE, lambda: True))
    with pytest.raises(ConfigError, match="torchrun://HOST:PORT/JOB/RESTART"):
        Exchange("zmq://x", 0, 1, 1.0)


def test_a_new_start_finds_nothing_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"file://{tmp_path}/store"
    first = Exchange(address, 0, 1, PATIENCE)
    first.put("address", b"old")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert Exchange(address, 0, 1, PATIENCE).get("address") is None


def test_nobody_listens() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(CallTimeoutError, match="the arrival of the first member"):
            Exchange(f"tcp://127.0.0.1:{port}", 1, 2, 0.5)


class TestTrainingGoesOnAfterAKill:
    """The soak has a program that torchrun itself starts."""

    def test_by_the_launcher(self, tmp_path: Path) -> None:
        config = pparallel.RuntimeConfig(
            members=["a", "b"],
            launcher=TorchrunLauncherConfig(max_restarts=1),
            reducer={"backend": "local"},
        )
        told = pparallel.launch(config, programs.train, (tmp_path,))
        names = ["a", "b"]
        assert told == [[names[rank], rank, names, 1, 3, programs.STEPS] for rank in range(2)]
