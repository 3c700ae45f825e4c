"""The placer `exact` beside the plain formulation on two solvers, descent, and local search.

Each round has a random instance of its own. What `exact` finds is proven best but for 32 models,
and nobody else finds anything better; a bound is the time that it may take. The families of
instances are those of `benchmarks/placement_parts/instances.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from benchmarks.harness import Aim, Contest, Making, Setting, Turn, timed
from benchmarks.placement_parts.instances import FAMILIES, instance
from benchmarks.placement_parts.peers import (
    Assignment,
    cpsat,
    descent,
    highs,
    local_search,
    without,
)
from pparallel.interfaces.placer import Problem, Solution
from pparallel_placers.config import ExactPlacerConfig
from pparallel_placers.exact import ExactPlacer

OURS, HIGHS, CPSAT = "exact", "plain, HiGHS", "plain, CP-SAT"
DESCENT, LOCAL, BOUND = "500 steps of descent", "local search, 50 starts", "the bound"

Solving = Callable[[Problem], Assignment]

_PEERS: dict[str, Solving] = {
    HIGHS: highs,
    CPSAT: cpsat,
    DESCENT: descent,
    LOCAL: local_search,
}
#: What the peers need that are not always there.
_NEEDS = {CPSAT: "ortools", DESCENT: "torch"}


class Found(NamedTuple):
    """What `exact` answered."""

    problem: Problem
    solution: Solution


@contextmanager
def placing(
    setting: Setting,
    *,
    family: str = next(iter(FAMILIES)),
    models: int,
    devices: int,
    seconds: float,
    peers: tuple[str, ...] = (LOCAL,),
) -> Iterator[Contest]:
    """Place so many models on so many devices, in each round others."""
    draw = partial(instance, FAMILIES[family], setting.count(models, 6), devices)
    exact = ExactPlacer(ExactPlacerConfig())
    left_out = {name: why for name in peers if (why := without(_NEEDS.get(name, "sys")))}
    best: dict[Problem, float] = {}

    def ours(problem: Problem) -> Solution:
        return exact.solve(problem)

    def is_proven(problem: Problem, solution: Solution) -> bool:
        cost = best[problem] = problem.cost(solution.assignment)
        return solution.bound == cost if models <= 16 else (solution.bound or 0.0) <= cost

    def is_no_better(problem: Problem, assignment: Assignment) -> bool:
        if not assignment or not problem.fits(assignment):
            return True
        least = best.get(problem)
        if least is None:
            least = problem.cost(ours(problem).assignment)
        return problem.cost(assignment) >= least * (1 - 1e-9)

    contenders: dict[str, Turn] = {OURS: timed(ours, draw, is_proven)}
    with ProcessPoolExecutor(1, get_context("spawn")) as elsewhere:
        for name in peers:
            if name not in left_out:
                run = partial(_away, elsewhere) if name == CPSAT else _PEERS[name]
                contenders[name] = timed(run, draw, is_no_better)
        contenders[BOUND] = lambda _: {"wall": seconds}
        yield Contest(contenders=contenders, aims=[Aim(BOUND, 1)], rounds=20, left_out=left_out)


def _away(elsewhere: ProcessPoolExecutor, problem: Problem) -> Assignment:
    """Solve with CP-SAT in another process: its library has a HiGHS too, and both would clash."""
    return elsewhere.submit(cpsat, problem).result()


def _families(models: int, devices: int, seconds: float) -> dict[str, Making]:
    """Return the other families at one size."""
    return {
        f"{name}: {models} on {devices}": partial(
            placing, family=name, models=models, devices=devices, seconds=seconds
        )
        for name in list(FAMILIES)[1:]
    }


CONTESTS: dict[str, Making] = {
    **{
        f"{models} on {devices}": partial(
            placing, models=models, devices=devices, seconds=seconds, peers=tuple(_PEERS)
        )
        for models, devices, seconds in [(8, 4, 0.02), (16, 2, 1), (16, 4, 1), (16, 8, 1)]
    },
    **_families(16, 8, 1),
    "32 on 4": partial(placing, models=32, devices=4, seconds=10),
    "32 on 8": partial(placing, models=32, devices=8, seconds=10),
}
