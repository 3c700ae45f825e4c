"""Clients and servers that are killed and paused: no history is impossible."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from redis_servers import DURABLE, running

from pparallel.testing.linearizability import ClientProcesses, Clients, ClientThreads, explore

DEPTH = 3
RUNS = 10  #: of each round


def explore_all(clients: Clients, rounds: Iterable[random.Random]) -> None:
    for rng in rounds:
        tally = explore(clients, [rng.randrange(2**32) for _ in range(RUNS)])
        assert tally.operations > 20 * RUNS


# One that is ended in the middle of Python's own socket() leaves a socket for the garbage.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_threads_that_are_ended_and_paused(rounds: Iterable[random.Random]) -> None:
    with running() as server, ClientThreads(server.config(version_depth=DEPTH)) as clients:
        explore_all(clients, rounds)


def test_processes_that_are_killed_and_paused(rounds: Iterable[random.Random]) -> None:
    with running() as server, ClientProcesses(server.config(version_depth=DEPTH)) as clients:
        explore_all(clients, rounds)


@pytest.mark.parametrize("depth", [1, DEPTH])
def test_a_server_that_is_killed_and_paused_too(
    rounds: Iterable[random.Random], depth: int
) -> None:
    with (
        running(*DURABLE) as server,
        ClientProcesses(server.config(version_depth=depth), server) as clients,
    ):
        explore_all(clients, rounds)
        assert clients.happened["kill server"]
