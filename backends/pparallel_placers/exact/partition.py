"""The best choice of a column for each device, and a proof.

1. Columns are generated until a linear program over them is solved as if it knew all of them. That
   gives a bound, usually within a few per cent of the best cost, and a price for each model.
2. All columns that can be part of something better than the best known are enumerated, first for a
   small part of the gap between bound and best, then for more of it, and the cheapest choice among
   them is searched for. If there is one, nothing is better; if there is none, the bound rises.

Sources: column generation for partitions of a graph into parts with capacities: Johnson, Mehrotra
and Nemhauser (Min-cut clustering, 1993); see also ``packing``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from pparallel.interfaces.placer import Problem
from pparallel_placers.exact.halves import TooManyError
from pparallel_placers.exact.improving import improve
from pparallel_placers.exact.instance import Counts, Floats, Instance
from pparallel_placers.exact.master import Master, Prices
from pparallel_placers.exact.packing import Chosen, Packing
from pparallel_placers.exact.subsets import Columns, OutOfTimeError, Subsets

#: Shares of the best cost below which a difference is rounding, or no reason for another column.
_NOISE, _TOLERANCE = 1e-12, 1e-9
#: Share of what all could cost below which a cost is nothing.
_NOTHING = 1e-16
#: Columns that are improved at once, that are added at once, and that are enumerated at once.
_IMPROVED, _ADDED, _ENUMERATED = 150, 200, 400_000
#: What a sum may be off by, as a share of the sum of its terms.
_ROUNDING = 1e-14
#: The part of the gap that is searched first, and the least that is.
_SHARE, _LEAST_SHARE = 1 / 16, 1e-4
#: Columns are first looked for by local search where there are more classes than this.
_SMALL = 18


class Partition:
    """Solves one problem whose distances are sums of legs.

    Args:
        problem: what is to be solved.
        legs: [m] of its devices.
        known: assignments that fit, to start from.
        deadline: by ``time.monotonic``.

    Attributes:
        best: the best assignment so far.
        cost: what it costs.
        bound: no assignment that fits costs less.

    Raises:
        TooManyError: there are too many models.
    """

    def __init__(
        self,
        problem: Problem,
        legs: Sequence[float],
        known: Iterable[tuple[int, ...]],
        deadline: float,
    ) -> None:
        self._problem, self._deadline = problem, deadline
        self._instance = Instance(problem, legs)
        self._subsets = Subsets(self._instance)
        known = list(known)
        self.best = min(known, key=problem.cost)
        self.cost = problem.cost(self.best)
        self.bound = 0.0
        self._seeds: list[dict[bytes, Counts]] = [{} for _ in self._instance.groups]
        for each in known:
            for group, column in self._instance.columns(each):
                self._seeds[group][column.tobytes()] = column

    def solve(self) -> None:
        """Find the best, or as good a one and as high a bound as there is time for."""
        if self._is_proven():
            self.bound = self.cost
            return
        try:
            prices, least = self._generate()
            if least is not None and not self._is_proven():
                self._close(prices, least)
        except (OutOfTimeError, TooManyError):
            return

    @property
    def _ours(self) -> float:
        """The best cost in the instance's unit."""
        return self.cost / self._instance.unit

    def _is_proven(self) -> bool:
        return self.cost - self.bound <= _NOISE * self.cost + _NOTHING * self._instance.unit

    def _prove(self, bound: float) -> None:
        self.bound = min(self.cost, max(self.bound, bound * self._instance.unit))
        if self._is_proven():
            self.bound = self.cost

    # -- the linear program ---------------------------------------------------------------------

    def _generate(self) -> tuple[Prices, Floats | None]:
        """Return prices that no column undercuts, and of each group the least reduced cost."""
        master = Master(self._instance, self._ours)
        for group, seeds in enumerate(self._seeds):
            master.add(group, np.zeros((1, len(self._instance.members)), np.int8))
            if seeds:
                master.add(group, np.array(list(seeds.values())))
        prices = master.solve()
        if len(self._instance.members) > _SMALL:
            prices = self._guess(master, prices)
        while True:
            least = self._look(master, prices)
            if least is not None or self._is_proven():
                return prices, least
            prices = master.solve()

    def _guess(self, master: Master, prices: Prices) -> Prices:
        """Add columns that local search finds, until it finds none."""
        instance = self._instance
        pools = [
            np.array(list(each.values()) or [np.zeros(len(instance.members), np.int8)])
            for each in self._seeds
        ]
        added = 1
        while added:
            added = 0
            if time.monotonic() > self._deadline:
                raise OutOfTimeError
            for group, pool in enumerate(pools):
                seeds = _cheapest(
                    pool, instance.costs(group, pool) - pool @ prices.models, _IMPROVED
                )
                found = improve(instance, group, prices.models, seeds)
                reduced = (
                    instance.costs(group, found) - found @ prices.models - prices.groups[group]
                )
                useful = reduced < -_TOLERANCE * self._ours
                found = _cheapest(found[useful], reduced[useful], _ADDED)
                added += master.add(group, found)
                pools[group] = np.unique(np.concatenate([pool, found]), axis=0)
            prices = master.solve()
        return prices

    def _look(self, master: Master, prices: Prices) -> Floats | None:
        """Search all columns for some to add, and take the bound.

        Returns:
            if there was none to add, the least reduced cost of each group.
        """
        tolerance = _TOLERANCE * self._ours
        added, least = 0, np.zeros(len(prices.groups))
        for group, worth in enumerate(prices.groups.tolist()):
            columns, limit = self._below(group, prices, worth + tolerance)
            least[group] = min([limit, *columns.reduced[:1].tolist()])
            useful = columns.reduced < worth - tolerance
            added += master.add(group, columns.counts[useful][:_ADDED])
        self._prove(self._base(prices, least))
        return None if added else least

    def _base(self, prices: Prices, least: Floats) -> float:
        """Return what nothing can cost less than, by these prices; rounded down."""
        instance = self._instance
        terms = np.concatenate([instance.members * prices.models, instance.devices * least])
        return float(terms.sum() - _ROUNDING * abs(terms).sum())

    def _below(self, group: int, prices: Prices, limit: float) -> tuple[Columns, float]:
        """Return the columns of a reduced cost below *limit*, or of one below that if too many."""
        step = 1e-3 * self._ours
        while True:
            try:
                found = self._subsets.below(
                    group, prices.models, limit, most=_ENUMERATED, deadline=self._deadline
                )
            except TooManyError:
                limit -= step
                step *= 2
            else:
                return found, limit

    # -- the gap --------------------------------------------------------------------------------

    def _close(self, prices: Prices, least: Floats) -> None:
        """Search the gap, from a small part of it on."""
        base = self._base(prices, least)
        gap = self._ours - base
        share = 1.0 if len(self._instance.members) <= _SMALL else _SHARE
        while True:
            try:
                packing = self._packing(prices, least, gap * share)
            except TooManyError:
                if self.bound > base * self._instance.unit or share < _LEAST_SHARE:
                    raise
                share /= 4
                continue
            try:
                found = packing.search(gap * share)
            finally:
                if packing.best:
                    self._take(packing.best)
            if found or share >= 1:
                self.bound = self.cost
                return
            self._prove(base + gap * share * (1 - _NOISE))
            share = min(1.0, 2 * share)

    def _packing(self, prices: Prices, least: Floats, budget: float) -> Packing:
        """List the columns of reduced costs within the budget."""
        listed = []
        for group, lowest in enumerate(least.tolist()):
            found = self._subsets.below(
                group,
                prices.models,
                lowest + budget + _NOISE * self._ours,
                most=_ENUMERATED,
                deadline=self._deadline,
            )
            listed.append(Columns(found.counts, np.maximum(0.0, found.reduced - lowest)))
        return Packing(self._instance, listed, prices.models, least, self._deadline)

    def _take(self, chosen: Chosen) -> None:
        assignment = self._instance.assignment(chosen)
        cost = self._problem.cost(assignment)
        if cost < self.cost and self._problem.fits(assignment):
            self.best, self.cost = assignment, cost


def _cheapest(columns: Counts, reduced: Floats, most: int) -> Counts:
    return columns[np.argsort(reduced, kind="stable")[:most]]
