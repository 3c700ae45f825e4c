"""The placer: chooses how to search, and says what is proven."""

from __future__ import annotations

import importlib
import logging
import random
import time
from dataclasses import replace

from typing_extensions import override

from pparallel.errors import MissingDependencyError
from pparallel.interfaces.placer import Placer, Problem, Solution
from pparallel_placers.config import ExactPlacerConfig
from pparallel_placers.exact.alike import devices_alike, models_alike
from pparallel_placers.exact.branching import Branching
from pparallel_placers.exact.stars import legs
from pparallel_placers.local_search import LocalSearch, search

logger = logging.getLogger(__name__)

#: Starts of local search before anything is proven, and their share of the time.
_STARTS, _SHARE = 20, 0.2
#: With more models than that the proof may take too long, and more starts are made.
_SURE, _MORE = 18, 50
#: Up to so many assignments branch and bound is quicker than the solver.
_FEW = 100_000
_INSTALL = "pip install 'pparallel[placement]'"


class ExactPlacer(Placer):
    """Finds the best placement and proves it, or says how far off it may be.

    Args:
        config: the options.
        member: who we are in the job, of which placing asks nothing.
    """

    def __init__(self, config: ExactPlacerConfig, *, member: object = None) -> None:
        super().__init__(config, member=member)
        self._solver = config.solver
        self._time_limit = config.time_limit
        self._seed = config.seed

    @override
    def open(self) -> None:
        """Raise if the solver that was named is not installed.

        Raises:
            MissingDependencyError: it is not.
        """
        if self._solver == "highs":
            _require()

    @override
    def solve(self, problem: Problem) -> Solution:
        deadline = time.monotonic() + self._time_limit
        if self._solver == "highs":
            _require()
        known = self._known(problem, time.monotonic() + self._time_limit * _SHARE)
        best = min(known, key=problem.cost)
        if self._solver == "python" or (self._solver == "auto" and _few(problem)):
            return _branched(problem, best, 0.0, deadline)
        if (missing := _missing()) is not None:
            logger.info("Branch and bound instead of HiGHS, which cannot be used: %s", missing)
            return _branched(problem, best, 0.0, deadline)
        return _partitioned(problem, known, deadline)

    def _known(self, problem: Problem, deadline: float) -> list[tuple[int, ...]]:
        """Return assignments that fit, of low cost."""
        local = LocalSearch(problem, deadline)
        chance = random.Random(self._seed)
        found = []
        for start in local.starts(_STARTS, chance):
            found.append(local.improve(start))
            if time.monotonic() >= deadline:
                break
        if len(problem.models) > _SURE:
            found.append(search(problem, starts=_MORE, seed=self._seed, deadline=deadline))
        return list(dict.fromkeys(found))


def _partitioned(problem: Problem, known: list[tuple[int, ...]], deadline: float) -> Solution:
    """Solve with HiGHS, as far as it goes; the rest by branch and bound."""
    from pparallel_placers.exact.halves import TooManyError
    from pparallel_placers.exact.partition import Partition

    found = legs(problem.spans)
    stated = problem if found is not None else _starlike(problem)
    try:
        partition = Partition(stated, found or legs(stated.spans) or (), known, deadline)
    except TooManyError:
        return _branched(problem, min(known, key=problem.cost), 0.0, deadline)
    partition.solve()
    if found is not None:
        return Solution(partition.best, partition.bound)
    local = LocalSearch(problem, deadline)
    known = [*known, local.improve(partition.best)]
    return _branched(problem, min(known, key=problem.cost), partition.bound, deadline)


def _starlike(problem: Problem) -> Problem:
    """Return a problem in which no assignment costs more, with distances that are sums of legs."""
    count = len(problem.devices)
    half = [
        min(problem.distances[here][there] for there in range(count) if there != here) / 2
        for here in range(count)
    ]
    nearer = tuple(
        tuple(half[here] + half[there] if here != there else 0.0 for there in range(count))
        for here in range(count)
    )
    # Distances count as shares of the longest, which must not make them longer again.
    share = max(map(max, nearer)) / max(map(max, problem.distances))
    return replace(problem, distances=nearer, connection_weight=problem.connection_weight * share)


def _branched(problem: Problem, best: tuple[int, ...], bound: float, deadline: float) -> Solution:
    branching = Branching(problem, best, deadline)
    if bound < branching.cost:
        branching.solve()
    bound = min(branching.cost, max(bound, branching.bound))
    return Solution(branching.best, bound)


def _few(problem: Problem) -> bool:
    """Return whether there are few assignments, but for those that differ in what is alike only."""
    many = 1.0
    for models in models_alike(problem):
        many *= len(problem.devices) ** len(models) / len(models)
    for devices in devices_alike(problem):
        many /= len(devices)
    return many <= _FEW


def _missing() -> str | None:
    """Return why HiGHS cannot be used, if it cannot.

    It may be installed and fail: in one process with OR-Tools, which has a HiGHS of its own.
    """
    try:
        importlib.import_module("numpy")
        importlib.import_module("highspy")
    except ImportError as error:
        return str(error)
    return None


def _require() -> None:
    missing = _missing()
    if missing is not None:
        raise MissingDependencyError("solver 'highs' of placer 'exact'", missing, _INSTALL)
