"""The first seed's placer: gradient descent on the probability of each model for each device."""

from __future__ import annotations

import heapq

from typing_extensions import override

from pparallel.interfaces.placer import Placer, Problem, Solution
from pparallel_placers.config import GradientPlacerConfig
from pparallel_placers.local_search import LocalSearch
from pparallel_placers.relaxation import descend


class GradientPlacer(Placer):
    """Descends from several random starts, makes fit what it comes by, and improves the best of it.

    Args:
        config: the options.
        member: who we are in the job, of which placing asks nothing.

    Source: the model assigner of machin (``machin.parallel.assigner``), for the relaxation and its
    four weights.
    """

    def __init__(self, config: GradientPlacerConfig, *, member: object = None) -> None:
        super().__init__(config, member=member)
        self._options = config

    @override
    def solve(self, problem: Problem) -> Solution:
        local = LocalSearch(problem)
        passed = dict.fromkeys(map(local.fit, descend(problem, self._options)))
        best = heapq.nsmallest(self._options.restarts, passed, key=problem.cost)
        if self._options.local_search:
            best = [local.improve(each) for each in best]
        return Solution(min(best, key=problem.cost))
