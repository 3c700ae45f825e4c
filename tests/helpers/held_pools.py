"""Pools whose tasks wait until the test lets them go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from still_pool import StillPool
from typing_extensions import override

import pparallel
from pparallel.interfaces.pool import Batch, Pool, PoolState, Sink
from pparallel_local import ThreadPoolConfig


def double(number: int) -> int:
    return 2 * number


def invert(number: int) -> float:
    return 1 / number


@pytest.fixture
def pool() -> Iterator[Pool]:
    with pparallel.build(ThreadPoolConfig(size=2)) as pool:
        yield pool


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


class HeldPool(StillPool):
    """A pool whose tasks are reported by the test."""

    def __init__(self) -> None:
        self.taken: list[tuple[Batch, Sink]] = []
        self.state = PoolState.OPEN

    @override
    def lookahead(self) -> int:
        return 4

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        self.state.check_taking(self, continues=batch.continues)
        if batch.items:
            assert sink.begin()
            self.taken.append((batch, sink))


def worker_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if "-pool-" in each.name]
