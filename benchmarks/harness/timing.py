"""A contender's turn made from what it runs: prepared and checked beside the clock."""

from __future__ import annotations

from collections.abc import Callable
from statistics import quantiles
from time import perf_counter, thread_time
from typing import TypeVar

from benchmarks.harness.contest import Samples, Turn
from benchmarks.harness.processes import Stopwatch

Argument = TypeVar("Argument")
Outcome = TypeVar("Outcome")


def timed(
    run: Callable[[Argument], Outcome],
    prepare: Callable[[int], Argument],
    check: Callable[[Argument, Outcome], bool],
    *,
    calls: int = 1,
    tasks: int = 1,
) -> Turn:
    """Return a turn that calls *run* so many times and checks each outcome.

    Args:
        run: What is measured.
        prepare: Makes an argument from a number that never comes twice in a contest.
        check: Whether the outcome is right; it never sees the clock.
        calls: How many calls make one turn. One: the turn's figure is ``wall``; several: it has a
            median and a 99th percentile, ``p50`` and ``p99``.
        tasks: By how many tasks per call the figures are divided.

    Returns:
        A turn; with the times it gives ``cpu``, which all processes below this one used together,
        less what this thread used to prepare and to check.
    """

    def turn(number: int) -> Samples:
        walls, aside = [], 0.0
        used = Stopwatch()
        for call in range(number * calls, (number + 1) * calls):
            mark = thread_time()
            argument = prepare(call)
            aside += thread_time() - mark
            start = perf_counter()
            outcome = run(argument)
            walls.append(perf_counter() - start)
            mark = thread_time()
            if not check(argument, outcome):
                raise ValueError(f"call {call} has a wrong result: {str(outcome)[:200]}")
            del argument, outcome
            aside += thread_time() - mark
        cpu = used.read() - aside
        return {**spread(walls, tasks), "cpu": cpu / calls / tasks}

    return turn


def spread(walls: list[float], tasks: int = 1) -> Samples:
    """Return the figures of several calls, or the one of one call."""
    if len(walls) == 1:
        return {"wall": walls[0] / tasks}
    cuts = quantiles(walls, n=100, method="inclusive")
    return {"p50": cuts[49] / tasks, "p99": cuts[98] / tasks}
