"""Clients that are killed and paused while they use one server: no history is impossible."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
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
from pparallel_servers import (
    HostedOrderedServerConfig,
    MemoryOrderedServerConfig,
    SqliteOrderedServerConfig,
)

MEMORY = MemoryOrderedServerConfig(version_depth=DEPTH)
RUNS = 10  #: of each round
MANY = 50  #: runs in which all that is likely does happen


def hosted(transport: str, depth: int) -> Callable[[Path], Clients]:
    config = HostedOrderedServerConfig(version_depth=depth)
    return lambda _: ClientMembers(config, connected_by(transport))


def sqlite(depth: int) -> Callable[[Path], Clients]:
    return lambda folder: ClientProcesses(
        SqliteOrderedServerConfig(path=folder / "values.sqlite", version_depth=depth)
    )


def connected_by(transport: str) -> TransportConfig:
    return pparallel.load(TransportConfig, {"backend": transport})


BACKENDS: dict[str, Callable[[Path], Clients]] = {
    "memory": lambda _: ClientThreads(MEMORY),
    "memory, one version": lambda _: ClientThreads(MemoryOrderedServerConfig()),
    "hosted, ipc": hosted("ipc", DEPTH),
    "hosted, zmq, one version": hosted("zmq", 1),
    "sqlite": sqlite(DEPTH),
    "sqlite, one version": sqlite(1),
}


def seeds(rng: random.Random) -> Iterator[int]:
    return (rng.randrange(2**32) for _ in range(RUNS))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_history_is_impossible(
    backend: str, tmp_path: Path, rounds: Iterable[random.Random]
) -> None:
    runs = operations = unknown = 0
    with BACKENDS[backend](tmp_path) as clients:
        for rng in rounds:
            tally = explore(clients, seeds(rng))
            runs += RUNS
            operations += tally.operations
            unknown += tally.unknown
        assert operations > 20 * runs
        if runs >= MANY:
            assert clients.happened.keys() == clients.possible
            assert unknown > runs / 10, "clients are seldom ended in the middle of an operation"


def test_a_durable_server_that_is_killed(tmp_path: Path, rounds: Iterable[random.Random]) -> None:
    with closing(LogServer(tmp_path, hasty=False)) as server:
        server.start()
        with ClientProcesses(MEMORY, server, server.reach) as clients:
            for rng in rounds:
                explore(clients, seeds(rng))
            assert clients.happened["kill server"]


def found(clients: Clients, rounds: Iterable[random.Random]) -> str:
    """Return what is said of the first violation that is found."""
    every = (seed for rng in rounds for seed in seeds(rng))
    with clients, pytest.raises(AssertionError, match="is not linearizable") as caught:
        explore(clients, every)
    return str(caught.value)


def test_a_copy_that_is_believed_is_found(rounds: Iterable[random.Random]) -> None:
    config = HostedOrderedServerConfig(version_depth=DEPTH)
    clients = ClientMembers(config, connected_by("ipc"), BelievesItsCopy)
    assert "none of these can come next" in found(clients, rounds)


def test_a_push_after_its_comparison_is_found(rounds: Iterable[random.Random]) -> None:
    assert "push" in found(ClientThreads(MEMORY, ComparesThenPushes), rounds)


def test_a_push_that_is_acknowledged_before_it_is_written_is_found(
    tmp_path: Path, rounds: Iterable[random.Random]
) -> None:
    with closing(LogServer(tmp_path, hasty=True)) as server:
        server.start()
        clients = ClientProcesses(MEMORY, server, server.reach)
        assert "kill server" in found(clients, rounds)


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
