"""Bars that note what is done with them, and pools that have them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import pparallel
from pparallel.interfaces.pool import Pool
from pparallel.runtime import bars
from pparallel.runtime.bars import meter
from pparallel_local import SerialPoolConfig, ThreadPoolConfig


def double(number: int) -> int:
    return 2 * number


def add(first: int, second: int) -> int:
    return first + second


def invert(number: int) -> float:
    return 1 / number


def end_if(number: int) -> None:
    if number:
        os._exit(3)


class Recorded:
    """A bar that notes what it is told."""

    def __init__(self, name: str, total: int | None) -> None:
        self.name = name
        self.total = total
        self.count = 0
        self.closed = 0

    def update(self, n: int, /) -> None:
        assert n > 0
        assert not self.closed
        self.count += n

    def close(self) -> None:
        self.closed += 1


class Recorder:
    """Makes bars, and keeps them."""

    def __init__(self) -> None:
        self.bars: list[Recorded] = []

    def __call__(self, name: str, total: int | None) -> Recorded:
        self.bars.append(Recorded(name, total))
        return self.bars[-1]

    @property
    def seen(self) -> list[tuple[str, int | None, int, int]]:
        return [(each.name, each.total, each.count, each.closed) for each in self.bars]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said once is said once in each test."""
    monkeypatch.setattr(bars, "_refused", set())
    monkeypatch.setattr(meter, "_failed", False)


@pytest.fixture(params=[SerialPoolConfig, ThreadPoolConfig])
def pool(request: pytest.FixtureRequest, recorder: Recorder) -> Iterator[Pool]:
    with pparallel.build(request.param(size=2, progress=recorder)) as pool:
        yield pool


def threads(progress: object) -> Pool:
    return pparallel.build(ThreadPoolConfig.model_validate({"size": 2, "progress": progress}))
