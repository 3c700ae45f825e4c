"""Bars that note what is done with them, and functions that worker processes find."""

from __future__ import annotations

import os


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
