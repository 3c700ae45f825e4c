"""Local search: single moves and swaps of two models, for as long as one of them helps."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from pparallel.interfaces.placer import Problem
from pparallel_placers import feasibility
from pparallel_placers.draft import Draft, Tables
from pparallel_placers.repair import repair

#: One in so many starts is new, the others are made of the best by moving so many of its models.
#: Against new starts only, measured on random instances of 8 to 32 models: closer to the best, and
#: quicker, as what was good is soon good again.
_NEW, _KICKED = 3, 0.3


def search(
    problem: Problem,
    *,
    starts: int,
    seed: int = 0,
    initial: Iterable[Sequence[int]] = (),
    deadline: float | None = None,
) -> tuple[int, ...]:
    """Return the best assignment that local search finds; it fits.

    Args:
        problem: what is to be placed.
        starts: how many times, besides those of *initial*, it starts: a third of them new, the
            others a few random moves away from the best so far.
        seed: where what is random comes from.
        initial: assignments to start from first; they need not fit.
        deadline: when, by ``time.monotonic``, to return the best so far.

    Raises:
        PlacementError: no assignment fits, or none was found; the text says which.
    """
    local = LocalSearch(problem, deadline)
    chance = random.Random(seed)
    new = (starts + _NEW - 1) // _NEW
    for start in itertools.chain(initial, local.starts(new, chance)):
        local.consider(start)
    for _ in range(starts - new):
        local.consider(local.kicked(chance))
    return local.best


class LocalSearch:
    """Improves assignments of one problem; all that it returns fit.

    Args:
        problem: what is to be placed.
        deadline: when, by ``time.monotonic``, to stop improving and trying.
    """

    def __init__(self, problem: Problem, deadline: float | None = None) -> None:
        self._problem = problem
        self._deadline = deadline
        self._tables = Tables(problem)
        self._best: tuple[float, tuple[int, ...]] | None = None

    @property
    def best(self) -> tuple[int, ...]:
        """The best of what was considered.

        Raises:
            PlacementError: no assignment fits, or none was found.
        """
        return self._fallback if self._best is None else self._best[1]

    def consider(self, start: Sequence[int]) -> None:
        """Improve *start*, and remember what it becomes if that is best; too late, do nothing.

        Raises:
            PlacementError: no assignment fits, or none was found.
        """
        if self._best is None or not self._is_late():
            found = self.improve(start)
            cost = self._problem.cost(found)
            if self._best is None or cost < self._best[0]:
                self._best = cost, found

    def improve(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """Return what *assignment* becomes: made to fit, then improved while anything helps.

        Raises:
            PlacementError: no assignment fits, or none was found.
        """
        draft = Draft(self._tables, self.fit(assignment))
        while not self._is_late() and (self._move(draft) or self._swap(draft)):
            pass
        return tuple(draft.assignment)

    def fit(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """Return what *assignment* becomes when it is made to fit, and improved no further.

        Raises:
            PlacementError: no assignment fits, or none was found.
        """
        draft = Draft(self._tables, assignment)
        return tuple(draft.assignment) if repair(draft) else self._fallback

    def starts(self, count: int, chance: random.Random) -> Iterator[list[int]]:
        """Yield *count* assignments, each put together from one model after the other.

        First the largest first, then what exchanges most first, then in random orders.
        """
        problem = self._problem
        models = range(len(problem.models))
        busy = [sum(row) for row in problem.traffic]
        orders = [
            sorted(models, key=lambda each: (-problem.sizes_mb[each], -busy[each])),
            sorted(models, key=lambda each: (-busy[each], -problem.sizes_mb[each])),
        ]
        for at in range(count):
            order = orders[at] if at < len(orders) else chance.sample(models, len(models))
            yield self._put_together(order)

    def kicked(self, chance: random.Random) -> list[int]:
        """Return the best assignment with some of its models moved at random."""
        assignment = list(self.best)
        models, devices = range(len(assignment)), range(len(self._problem.devices))
        most = max(2, int(len(models) * _KICKED))
        for model in chance.sample(models, min(chance.randint(2, most), len(models))):
            assignment[model] = chance.choice(devices)
        return assignment

    def _put_together(self, order: Sequence[int]) -> list[int]:
        """Put models one by one where each fits and costs least, or where most room is left."""
        draft = Draft(self._tables)
        for model in order:
            fitting = [each for each in range(len(draft.free)) if draft.may_move(model, each)]
            if fitting:
                device = min(fitting, key=lambda each: draft.put_cost(model, each))
            else:
                device = max(range(len(draft.free)), key=draft.free.__getitem__)
            draft.put(model, device)
        return draft.assignment

    def _move(self, draft: Draft) -> bool:
        """Move each model once to where it costs least; return whether any moved."""
        moved = False
        for model in range(len(draft.assignment)):
            best, where = -self._tables.noise, -1
            for device in range(len(draft.free)):
                if draft.may_move(model, device):
                    cost = draft.move_cost(model, device)
                    if cost < best:
                        best, where = cost, device
            if where >= 0:
                draft.move(model, where)
                moved = True
        return moved

    def _swap(self, draft: Draft) -> bool:
        """Swap each pair once that it helps to swap; return whether any was."""
        swapped = False
        for one, other in itertools.combinations(range(len(draft.assignment)), 2):
            if draft.may_swap(one, other) and draft.swap_cost(one, other) < -self._tables.noise:
                draft.swap(one, other)
                swapped = True
        return swapped

    @cached_property
    def _fallback(self) -> tuple[int, ...]:
        """An assignment that fits, for where another cannot be made to."""
        return feasibility.find(self._problem)

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline
