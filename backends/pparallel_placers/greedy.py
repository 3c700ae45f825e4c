"""The quick placer: one model after the other, then moves and swaps."""

from __future__ import annotations

from typing_extensions import override

from pparallel.interfaces.placer import Placer, Problem, Solution
from pparallel_placers.config import GreedyPlacerConfig
from pparallel_placers.local_search import search

#: Starts times squared models: half a second to a few, by how much there is to improve.
_EFFORT = 400_000


class GreedyPlacer(Placer):
    """Puts models one by one where each costs least, and improves that while anything helps.

    Args:
        config: the options.
        member: who we are in the job, of which placing asks nothing.
    """

    def __init__(self, config: GreedyPlacerConfig, *, member: object = None) -> None:
        super().__init__(config, member=member)
        self._starts = config.starts
        self._seed = config.seed

    @override
    def solve(self, problem: Problem) -> Solution:
        starts = max(1, min(self._starts, _EFFORT // len(problem.models) ** 2))
        return Solution(search(problem, starts=starts, seed=self._seed))
