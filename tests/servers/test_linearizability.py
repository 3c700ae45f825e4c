"""Clients that are killed and paused while they use one server: no history is impossible."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from linearizability_faults import BelievesItsCopy, ComparesThenPushes
from linearizability_server import DEPTH, LogServer

import pparallel
from pparallel.interfaces.transport import TransportConfig
from pparallel.testing.linearizability import (
    ClientMembers,
    ClientProcesses,
    Clients,
    ClientThreads,
    explore,
)
from pparallel.testing.linearizability.plan import Kind, Plan
from pparallel.testing.linearizability.values import Large, Torn, made, told
from pparallel_servers import (
    HostedOrderedServerConfig,
    MemoryOrderedServerConfig,
    SqliteOrderedServerConfig,
)

MEMORY = MemoryOrderedServerConfig(version_depth=DEPTH)
RUNS = 200  #: at full scale, of each backend
MANY = 50  #: runs in which all that is likely does happen
FEWEST = 20  #: at any scale: among so many each planted fault is found

Scale = Callable[[int], int]


def hosted(transport: str, depth: int) -> Callable[[Path], Clients]:
    config = HostedOrderedServerConfig(version_depth=depth)
    return lambda _: ClientMembers(config, connected_by(transport))


def sqlite(depth: int) -> Callable[[Path], Clients]:
    return lambda folder: ClientProcesses(
        SqliteOrderedServerConfig(path=str(folder / "values.sqlite"), version_depth=depth)
    )


def connected_by(transport: str) -> TransportConfig:
    return pparallel.load(TransportConfig, {"backend": transport})


BACKENDS: dict[str, tuple[Callable[[Path], Clients], float]] = {
    "memory": (lambda _: ClientThreads(MEMORY), 0.75),
    "memory, one version": (lambda _: ClientThreads(MemoryOrderedServerConfig()), 0.25),
    "hosted, ipc": (hosted("ipc", DEPTH), 0.75),
    "hosted, zmq, one version": (hosted("zmq", 1), 0.25),
    "sqlite": (sqlite(DEPTH), 0.75),
    "sqlite, one version": (sqlite(1), 0.25),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_history_is_impossible(backend: str, tmp_path: Path, scale: Scale) -> None:
    make, share = BACKENDS[backend]
    runs = int(scale(RUNS) * share)
    with make(tmp_path) as clients:
        tally = explore(clients, range(runs))
    assert tally.operations > 20 * runs
    if runs >= MANY:
        assert tally.faults.keys() == clients.possible
        assert tally.unknown > runs / 10, "clients are seldom ended in the middle of an operation"


def test_a_durable_server_that_is_killed(tmp_path: Path, scale: Scale) -> None:
    with closing(LogServer(tmp_path, hasty=False)) as server:
        server.start()
        with ClientProcesses(MEMORY, server, server.reach) as clients:
            tally = explore(clients, range(max(10, scale(RUNS) // 4)))
    assert tally.faults["kill server"]


def found(clients: Clients) -> str:
    """Return what is said of the first violation that is found."""
    with clients, pytest.raises(AssertionError, match="is not linearizable") as caught:
        explore(clients, range(FEWEST))
    return str(caught.value)


def test_a_copy_that_is_believed_is_found() -> None:
    config = HostedOrderedServerConfig(version_depth=DEPTH)
    said = found(ClientMembers(config, connected_by("ipc"), BelievesItsCopy))
    assert "none of these can come next" in said


def test_a_push_after_its_comparison_is_found() -> None:
    assert "push" in found(ClientThreads(MEMORY, ComparesThenPushes))


def test_an_acknowledged_push_that_is_lost_is_found(tmp_path: Path) -> None:
    with closing(LogServer(tmp_path, hasty=True)) as server:
        server.start()
        assert "kill server" in found(ClientProcesses(MEMORY, server, server.reach))


def test_a_torn_value_is_told_from_what_was_pushed() -> None:
    value = made(Large(3, 80))
    assert told(value) == Large(3, 80)
    value[5] = 4
    assert told(value) == Torn(((3, 9), (4, 1)))


AUDITED = """
import sys, threading, time
from pparallel.testing.linearizability import ClientThreads, explore
from pparallel_servers import MemoryOrderedServerConfig

failed = []
threading.excepthook = lambda said: failed.append(said.exc_value)
sys.addaudithook(lambda event, _: event == "sys.settrace" and time.sleep(0.0005))
with ClientThreads(MemoryOrderedServerConfig()) as clients:
    explore(clients, range(60))
sys.exit(f"{failed}" if failed else 0)
"""


def test_an_audit_hook_that_lets_others_run_fails_no_client() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AUDITED], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_seed_gives_the_same_plan() -> None:
    kinds: set[Kind] = {"kill", "pause", "kill all"}
    assert Plan.of(7, kinds) == Plan.of(7, kinds)
    assert len({Plan.of(seed, kinds) for seed in range(50)}) == 50
