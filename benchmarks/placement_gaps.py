"""The placers on models so few that all assignments can be tried: how far off, and how long.

As a benchmark it compares times. How far the placers are from the best, as distributions, is told
by ``python -m benchmarks.placement_gaps``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np

from benchmarks.harness import Contest, Making, Setting, Turn, timed
from benchmarks.placement_parts.instances import FAMILIES, instance
from pparallel.interfaces.placer import Placer, Problem, Solution
from pparallel_placers.config import ExactPlacerConfig, GradientPlacerConfig, GreedyPlacerConfig
from pparallel_placers.exact import ExactPlacer
from pparallel_placers.gradient import GradientPlacer
from pparallel_placers.greedy import GreedyPlacer

MODELS, DEVICES, COUNT = range(3, 9), range(2, 5), 500
FRESH = 1_000_000  #: the first seed: no setting of a placer was chosen on these instances
NEARLY = 1e-9  #: what rounding may do to a cost, as a share of it

PLACERS: dict[str, Callable[[], Placer]] = {
    "greedy": lambda: GreedyPlacer(GreedyPlacerConfig()),
    "gradient": lambda: GradientPlacer(GradientPlacerConfig()),
    "gradient, rounded only": lambda: GradientPlacer(GradientPlacerConfig(local_search=False)),
    "gradient, one start, rounded only": lambda: GradientPlacer(
        GradientPlacerConfig(local_search=False, restarts=1)
    ),
    "exact": lambda: ExactPlacer(ExactPlacerConfig()),
}


def problems(count: int = COUNT) -> list[Problem]:
    """Return so many instances, of all families and sizes in turn."""
    kinds = [
        (family, models, devices)
        for family, models, devices in itertools.product(FAMILIES.values(), MODELS, DEVICES)
        if devices - family.cpu > 1  # of one that has power there is nothing to choose
    ]
    return [instance(*kinds[number % len(kinds)], FRESH + number) for number in range(count)]


def best(problem: Problem) -> float:
    """Return the least that an assignment costs which fits, by trying all."""
    sizes, spans = np.array(problem.sizes_mb), np.array(problem.spans)
    tried = _assignments(len(problem.models), len(problem.devices))
    cost = np.zeros(len(tried))
    for i, j in itertools.combinations(range(len(problem.models)), 2):
        cost += problem.traffic[i][j] * spans[tried[:, i], tried[:, j]]
    for device, (limit, power) in enumerate(
        zip(problem.limits_mb, problem.power_shares, strict=True)
    ):
        here = tried == device
        load = here @ np.array(problem.shares)
        cost += problem.imbalance_weight * (load - power) ** 2
        cost[here @ sizes > limit] = np.inf
    return float(cost.min())


@cache
def _assignments(models: int, devices: int) -> np.ndarray[tuple[int, int], np.dtype[np.intp]]:
    """Return [devices ** models, models] all assignments."""
    return np.indices((devices,) * models).reshape(models, -1).T.copy()


def gaps(placer: Placer, asked: Sequence[Problem], least: Sequence[float]) -> list[float]:
    """Return by how much what *placer* finds costs more than the best, as shares of that."""
    return [
        _gap(problem, placer.solve(problem), cost)
        for problem, cost in zip(asked, least, strict=True)
    ]


def table(count: int = COUNT) -> str:
    """Return the distribution of each placer's gaps."""
    asked = problems(count)
    least = [best(each) for each in asked]
    lines = [
        f"Cost above the best, on {count} random instances of {MODELS[0]} to {MODELS[-1]} models on"
        f" {DEVICES[0]} to {DEVICES[-1]} devices.",
        "",
        "| placer | best found | mean | median | 90 % | 95 % | 99 % | worst |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, making in PLACERS.items():
        found = gaps(making(), asked, least)
        exactly = sum(each <= NEARLY for each in found) / len(found)
        quantiles = np.quantile(found, [0.5, 0.9, 0.95, 0.99, 1])
        cells = " | ".join(f"{each:.2%}" for each in (exactly, np.mean(found), *quantiles))
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


def _gap(problem: Problem, solution: Solution, least: float) -> float:
    """Return by how much *solution* costs more than the best, as a share of that.

    Raises:
        ValueError: it exceeds a memory limit, or costs less.
    """
    gap = problem.cost(solution.assignment) / least - 1
    if not problem.fits(solution.assignment) or gap < -NEARLY:
        raise ValueError(f"{solution} to {problem}, of which the best costs {least}")
    return max(0.0, gap)


@contextmanager
def placing(setting: Setting) -> Iterator[Contest]:
    """Place the instances one after the other, in each round others; the times are of one."""
    calls = setting.count(50, 2)
    asked = problems((9 if setting.rounds is None else setting.rounds + 1) * calls)
    least = {each: best(each) for each in asked}

    def contender(name: str) -> Turn:
        placer = PLACERS[name]()
        return timed(
            placer.solve,
            lambda number: asked[number % len(asked)],
            lambda problem, solution: _gap(problem, solution, least[problem]) >= 0,
            calls=calls,
        )

    yield Contest(contenders={name: contender(name) for name in ("greedy", "gradient", "exact")})


CONTESTS: dict[str, Making] = {"up to 8 on 4": placing}

if __name__ == "__main__":
    sys.stdout.write(table())
