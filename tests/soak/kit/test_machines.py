"""The state machines with sequences that the gate does not try."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import seed

from pparallel.testing.machines import ordered_server_machine, pool_machine, run_machine
from pparallel.testing.machines.machine import Machine
from pparallel_local import SerialPoolConfig, ThreadPoolConfig
from pparallel_process import ProcessPoolConfig
from pparallel_servers import (
    HostedOrderedServerConfig,
    MemoryOrderedServerConfig,
    SqliteOrderedServerConfig,
)


def files(folder: Path) -> type[Machine]:
    config = SqliteOrderedServerConfig(path=folder / "values.db", synchronous="normal", poll=1)
    return ordered_server_machine(config, clients=3, durable=True)


MACHINES: dict[str, Callable[[Path], type[Machine]]] = {
    "memory": lambda _: ordered_server_machine(MemoryOrderedServerConfig()),
    "hosted": lambda _: ordered_server_machine(HostedOrderedServerConfig()),
    "sqlite": files,
    "serial": lambda _: pool_machine(SerialPoolConfig()),
    "thread": lambda _: pool_machine(ThreadPoolConfig()),
    "process": lambda _: pool_machine(ProcessPoolConfig(size=2)),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_any_sequence(machine: str, tmp_path: Path, rounds: Iterable[random.Random]) -> None:
    for rng in rounds:
        made: Any = MACHINES[machine](tmp_path)
        run_machine(seed(rng.randrange(2**32))(made), sequences=10)
