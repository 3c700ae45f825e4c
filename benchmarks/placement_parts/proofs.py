"""``python -m benchmarks.placement_parts.proofs``: in every family, what is proven, and when.

Beside it, how far above what ``exact`` found the local search from 50 starts ends.
"""

from __future__ import annotations

import argparse
import os
import sys
from statistics import median
from time import perf_counter
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is loaded

from benchmarks.placement_parts.instances import FAMILIES, instance
from pparallel.interfaces.placer import Problem
from pparallel_placers.config import ExactPlacerConfig
from pparallel_placers.exact import ExactPlacer
from pparallel_placers.local_search import search

_HEAD = (
    "family | models | devices | proven | median | slowest | worst gap | local search above, most"
)


class Result(NamedTuple):
    """What came of one instance.

    Attributes:
        seconds: that it took.
        gap: between the cost and the bound, as a share of the cost.
        above: how far local search ended above it, as a share.
    """

    seconds: float
    gap: float
    above: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--instances", type=int, default=20)
    parser.add_argument("--only", default="", help="families whose names contain this")
    given = parser.parse_args()
    sys.stdout.write(f"| {_HEAD} |\n|{' --- |' * (_HEAD.count('|') + 1)}\n")
    for name, family in FAMILIES.items():
        for models in given.models if given.only in name else ():
            for devices in given.devices:
                numbers = range(given.instances)
                drawn = [instance(family, models, devices, each) for each in numbers]
                found = _row([_result(each) for each in drawn])
                sys.stdout.write(f"| {name} | {models} | {devices} | {found} |\n")
                sys.stdout.flush()


def _result(problem: Problem) -> Result:
    placer = ExactPlacer(ExactPlacerConfig())
    start = perf_counter()
    solution = placer.solve(problem)
    seconds = perf_counter() - start
    cost = problem.cost(solution.assignment)
    above = problem.cost(search(problem, starts=50)) - cost
    assert solution.bound is not None
    if not solution.bound <= cost:
        raise ValueError(f"the bound {solution.bound} is above the cost {cost}")
    return Result(seconds, (cost - solution.bound) / cost if cost else 0.0, above / (cost or 1.0))


def _row(results: list[Result]) -> str:
    proven = sum(not each.gap for each in results)
    seconds = [each.seconds for each in results]
    return (
        f"{proven} of {len(results)} | {median(seconds):.3f} s | {max(seconds):.3f} s"
        f" | {max(each.gap for each in results):.2%} | {max(each.above for each in results):.2%}"
    )


if __name__ == "__main__":
    main()
