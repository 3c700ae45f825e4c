"""The two pools of processes, for tests that are for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pparallel
from pparallel.testing.gate import Gate
from pparallel_process import P2PPoolConfig, ProcessPoolConfig

BACKENDS = {"process": ProcessPoolConfig, "p2p": P2PPoolConfig}
TASKS = "pparallel.testing.pool.tasks"

each_backend = pytest.mark.parametrize("backend", BACKENDS)


def pool_of(backend: str, size: int = 2, preload: tuple[str, ...] = (), **options: Any) -> Any:
    """Return a pool that is not open yet.

    The modules of *preload* are imported by the fork server, not by each worker: name the module
    of the test if its own functions are what workers run.
    """
    config = BACKENDS[backend](size=size, preload=(*preload, TASKS), **options)
    return pparallel.build(config)


@contextmanager
def gate_in(directory: Path) -> Iterator[Gate]:
    """Make a gate in a folder of its own, which is opened at the end."""
    directory.mkdir()
    gate = Gate(directory)
    try:
        yield gate
    finally:
        gate.close()
