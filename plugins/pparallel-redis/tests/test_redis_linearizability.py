"""Clients and servers that are killed and paused: no history is impossible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis_servers import RedisServer

from pparallel.testing.linearizability import ClientProcesses, ClientThreads, explore

RUNS = 200  #: at full scale, of each kind
DEPTH = 3

Scale = Callable[[int], int]


# One that is ended in the middle of Python's own socket() leaves a socket for the garbage.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_threads_that_are_ended_and_paused(
    redis_server: RedisServer, namespace: str, scale: Scale
) -> None:
    runs = scale(RUNS)
    with ClientThreads(redis_server.config(namespace, version_depth=DEPTH)) as clients:
        tally = explore(clients, range(runs))
    assert tally.operations > 20 * runs


def test_processes_that_are_killed_and_paused(
    redis_server: RedisServer, namespace: str, scale: Scale
) -> None:
    runs = scale(RUNS)
    with ClientProcesses(redis_server.config(namespace, version_depth=DEPTH)) as clients:
        tally = explore(clients, range(runs))
    assert tally.operations > 20 * runs


@pytest.mark.parametrize("depth", [1, DEPTH])
def test_a_server_that_is_killed_and_paused_too(
    durable_server: RedisServer, namespace: str, scale: Scale, depth: int
) -> None:
    runs = scale(RUNS // 2)
    config = durable_server.config(namespace, version_depth=depth)
    with ClientProcesses(config, durable_server) as clients:
        tally = explore(clients, range(runs))
    assert tally.operations > 20 * runs
    assert tally.faults["kill server"]
