"""The cheapest choice of columns that cover each model once, by their reduced costs.

With the prices of a linear program a choice costs what the program does, and the sum of its
columns' reduced costs, none of which is negative. All columns within the budget are listed. The
search takes the model that the fewest of them can still cover, and tries each of these.

Sources: that only columns within the gap matter: Baldacci, Christofides and Mingozzi (An exact
algorithm for the vehicle routing problem based on the set partitioning formulation, 2008); the
choice of the model: Knuth (Dancing links, 2000).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pparallel_placers.exact.instance import Counts, Floats, Instance
from pparallel_placers.exact.subsets import Columns, OutOfTimeError

Indices = NDArray[np.int64]
Chosen = list[tuple[int, Counts]]


class _Listed(NamedTuple):
    """Columns of all groups, by ascending reduced cost.

    Attributes:
        counts: [k, c]
        reduced: [k]
        groups: [k]
    """

    counts: Counts
    reduced: Floats
    groups: Indices

    def only(self, which: NDArray[np.bool_] | Indices | slice) -> _Listed:
        """Return those of *which*."""
        return _Listed(self.counts[which], self.reduced[which], self.groups[which])


class _State(NamedTuple):
    """What has been chosen.

    Attributes:
        listed: columns that may still be chosen.
        rest: [c] what is not covered yet.
        left: [g] devices without a column.
        spent: the sum of the reduced costs.
        chosen: groups and columns.
    """

    listed: _Listed
    rest: Counts
    left: Indices
    spent: float
    chosen: tuple[tuple[int, Counts], ...]


class Packing:
    """Looks for the cheapest choice.

    Args:
        instance: what is to be solved.
        columns: of each group, all those of a reduced cost of at most the budget.
        prices: [c] for which the costs were reduced.
        least: [g] what was taken off each group's reduced costs, so that none is negative.
        deadline: by ``time.monotonic``.

    Attributes:
        best: groups and columns of the cheapest choice found so far.
    """

    def __init__(
        self,
        instance: Instance,
        columns: Sequence[Columns],
        prices: Floats,
        least: Floats,
        deadline: float,
    ) -> None:
        self.best: Chosen = []
        self._instance, self._prices, self._least = instance, prices, least
        self._deadline = deadline
        self._budget = 0.0
        reduced = np.concatenate([each.reduced for each in columns])
        groups = np.repeat(np.arange(len(columns)), [len(each.counts) for each in columns])
        counts = np.concatenate([each.counts for each in columns])
        self._listed = _Listed(counts, reduced, groups).only(np.argsort(reduced, kind="stable"))

    def search(self, budget: float) -> bool:
        """Find the choice of the least sum of reduced costs below *budget*; return if there is one.

        Raises:
            OutOfTimeError: the deadline has come.
        """
        self._budget, self.best = budget, []
        whole = self._instance.members.astype(np.int8)
        devices = self._instance.devices.copy()
        self._visit(_State(self._listed, whole, devices, 0.0, ()))
        return bool(self.best)

    def _visit(self, state: _State) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTimeError
        if int(state.left.sum()) == 2:
            self._pair(state)
            return
        model = self._hardest(state)
        if model is None:
            self._close(state)
            return
        for at in np.flatnonzero(state.listed.counts[:, model]).tolist():
            after = self._take(state, at)
            if after is not None:
                self._visit(after)

    def _hardest(self, state: _State) -> int | None:
        """Return the class that the fewest columns can cover, if anything is left."""
        if not state.rest.any():
            return None
        many = (state.listed.counts > 0).sum(0)
        many[state.rest == 0] = len(state.listed.counts) + 1
        return int(many.argmin())

    def _take(self, state: _State, at: int) -> _State | None:
        """Return the state after a column is chosen, unless it is beyond the budget."""
        listed = state.listed
        reduced = float(listed.reduced[at])
        spent = state.spent + reduced
        if spent > self._budget:
            return None
        group, counts = int(listed.groups[at]), listed.counts[at]
        rest, left = state.rest - counts, state.left.copy()
        left[group] -= 1
        listed = listed.only(slice(int(np.searchsorted(listed.reduced, self._budget - spent))))
        listed = listed.only((listed.counts <= rest).all(1) & (left[listed.groups] > 0))
        chosen = (*state.chosen, (group, counts))
        return _State(listed, rest, left, spent, chosen)

    def _pair(self, state: _State) -> None:
        """Try each column for one of the last two devices, and what it leaves for the other."""
        for group in np.flatnonzero(state.left).tolist():
            state.left[group] -= 1
            other = int(state.left.argmax())
            state.left[group] += 1
            these = state.listed.only(state.listed.groups == group)
            if len(these.counts):
                rests = state.rest - these.counts
                sums = state.spent + these.reduced + self._reduced(other, rests)
                best = int(sums.argmin())
                pair = ((group, these.counts[best]), (other, rests[best]))
                self._consider(float(sums[best]), (*state.chosen, *pair))

    def _close(self, state: _State) -> None:
        """Put all that is left on one device, and nothing on the others."""
        none = np.zeros_like(state.rest)
        empty = [float(self._reduced(each, none[None])[0]) for each in range(len(state.left))]
        for group in np.flatnonzero(state.left).tolist():
            left = state.left.copy()
            left[group] -= 1
            others = [each for each, many in enumerate(left.tolist()) for _ in range(many)]
            cost = state.spent + float(self._reduced(group, state.rest[None])[0])
            cost += sum(empty[each] for each in others)
            self._consider(
                cost, (*state.chosen, (group, state.rest), *((each, none) for each in others))
            )

    def _consider(self, cost: float, chosen: tuple[tuple[int, Counts], ...]) -> None:
        if cost < self._budget:
            self._budget, self.best = cost, list(chosen)

    def _reduced(self, group: int, columns: Counts) -> Floats:
        reduced = self._instance.costs(group, columns) - columns @ self._prices - self._least[group]
        reduced[~self._instance.fitting(group, columns)] = np.inf
        return np.asarray(reduced, np.float64)
