"""One short history of each server whose clients are killed; the soak does them by the hundred."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
from linearizability_faults import Around
from typing_extensions import override

import pparallel
from pparallel.interfaces.transport import TransportConfig
from pparallel.testing.history import check
from pparallel.testing.linearizability import ClientMembers, ClientProcesses, ClientThreads, explore
from pparallel.testing.linearizability.plan import Act, Fault, Kind, Part, Plan
from pparallel.testing.linearizability.values import Large, Torn, made, told
from pparallel_servers import (
    HostedOrderedServerConfig,
    MemoryOrderedServerConfig,
    SqliteOrderedServerConfig,
)

DEPTH = 3
OPERATIONS = 16  #: of each client


def act(first: int, *faults: Fault) -> Act:
    """Return an act of three clients, and what befalls them."""
    keys = ("a", (1, b"b"))
    numbers = range(first, first + 3)
    return Act(tuple(Part(5, f"c{n}", n, keys, OPERATIONS, 0) for n in numbers), faults)


KILL = Fault("kill", 1, OPERATIONS // 2, 0.0, 0.0)
KILL_ALL = Fault("kill all", 0, OPERATIONS, 0.0, 0.0)


def test_a_host_whose_clients_are_killed() -> None:
    transport: TransportConfig = pparallel.load(TransportConfig, {"backend": "ipc"})
    with ClientMembers(HostedOrderedServerConfig(version_depth=DEPTH), transport) as clients:
        operations = clients.run(Plan(5, (act(0, KILL), act(3))))
        check(operations, DEPTH)
        assert clients.happened == {"kill": 1}
    assert len(operations) >= 5 * OPERATIONS


def test_a_file_whose_clients_are_killed(tmp_path: Path) -> None:
    config = SqliteOrderedServerConfig(path=tmp_path / "values.sqlite", version_depth=DEPTH)
    with ClientProcesses(config) as clients:
        operations = clients.run(Plan(5, (act(0, KILL), act(3, KILL_ALL), act(6))))
        check(operations, DEPTH)
        assert clients.happened == {"kill": 1, "kill all": 1}
    assert len(operations) >= 6 * OPERATIONS


def test_threads_that_are_paused() -> None:
    pauses: set[Kind] = {"pause"}
    with ClientThreads(MemoryOrderedServerConfig(version_depth=DEPTH)) as clients:
        for seed in range(4):
            check(clients.run(Plan.of(seed, pauses)), DEPTH)
        assert clients.happened["pause"]


class Loses(Around):
    """Acknowledges a push that it does not make."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        return True


def test_an_acknowledged_push_that_is_lost_is_found() -> None:
    config = MemoryOrderedServerConfig(version_depth=DEPTH)
    message = "the run with seed 0: .* is not linearizable(.|\n)*none of these can come next"
    with ClientThreads(config, Loses) as clients, pytest.raises(AssertionError, match=message):
        explore(clients, range(1))


def test_a_torn_value_is_told_from_what_was_pushed() -> None:
    value = made(Large(3, 80))
    assert told(value) == Large(3, 80)
    value[5] = 4
    assert told(value) == Torn(((3, 9), (4, 1)))


def test_a_seed_gives_the_same_plan() -> None:
    kinds: set[Kind] = {"kill", "pause", "kill all"}
    assert Plan.of(7, kinds) == Plan.of(7, kinds)
    assert len({Plan.of(seed, kinds) for seed in range(50)}) == 50
