"""What a worker does before its first task."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from pparallel.interfaces.pool import PoolConfig
from pparallel.runtime.processes.imports import when_loaded
from pparallel.runtime.streams import SEEDED, Streams


def prepare(
    initializer: Any, initargs: tuple[Any, ...], context: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Run the initializer; return what is passed first to each function."""
    PoolConfig(backend="a worker", initializer=initializer, initargs=initargs).initialize()
    return context


def seed(streams: Streams) -> None:
    """Give the process-wide generators the worker's streams, a library's once it is imported."""
    streams.seed_globals()
    for name in SEEDED:
        if name not in sys.modules:
            when_loaded(name, partial(streams.seed_library, name))
