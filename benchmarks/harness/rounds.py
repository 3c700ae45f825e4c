"""Interleaved rounds: every contender takes its turn in each, nobody always after the same."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

from benchmarks.harness.contest import Contest
from benchmarks.harness.pinning import pinned
from benchmarks.harness.processes import cpu_seconds, machine_seconds

Measured = dict[str, dict[str, list[float]]]
"""By contender and metric: one figure for each round that counts."""


class Outcome(NamedTuple):
    """What came of one contest, pinned in one way.

    Attributes:
        measured: The figures.
        others: The share of all cores that processes outside of this tree used meanwhile.
    """

    measured: Measured
    others: float


@contextmanager
def _collected_before() -> Iterator[None]:
    """Leave what lives already out of the collections: with torch loaded each takes 0.1 s."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def play(contest: Contest, rounds: int, pin: str) -> Outcome:
    """Run the rounds."""
    names = list(contest.contenders)
    measured: Measured = {name: {} for name in names}
    began, machine, ours = perf_counter(), machine_seconds(), cpu_seconds()
    with pinned(pin) as pinning, _collected_before():
        for number in range(rounds + contest.warm_up):
            counts = number >= contest.warm_up
            for name in names:
                pinning.apply()  # in each turn, for some contenders start workers as they go
                gc.collect()
                for metric, figure in contest.contenders[name](number).items():
                    measured[name].setdefault(metric, []).extend([figure] if counts else [])
            names.append(names.pop(0))
    used = machine_seconds() - machine - (cpu_seconds() - ours)
    cores = os.cpu_count() or 1
    return Outcome(measured, max(0.0, used / cores / (perf_counter() - began)))
