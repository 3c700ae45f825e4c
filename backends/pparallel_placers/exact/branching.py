"""Branch and bound in plain Python: for any distances, and where nothing else is installed.

Models are placed one after the other, those that matter most first. What is placed so far costs at
least what its pairs do, what each model that is left adds beside them where that is least, and the
squares if sizes could be divided at will. Of devices alike that are empty only the first is tried;
models alike go to devices in ascending order.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from pparallel.interfaces.placer import Problem
from pparallel_placers.exact.alike import devices_alike, models_alike
from pparallel_placers.feasibility import Room

#: Below this share of what the cost could be, a difference is rounding.
_NOISE = 1e-13


class _Node(NamedTuple):
    """The first so many models are placed.

    Attributes:
        bound: nothing below costs less.
        chosen: the devices of the models placed, in the order of the search.
        pairs: what the pairs placed cost.
        near: for each model left, what its pairs with those placed cost on each device.
        excess: share of all sizes on each device, less its share of all power.
        free: room on each device.
    """

    bound: float
    chosen: tuple[int, ...]
    pairs: float
    near: list[list[float]]
    excess: tuple[float, ...]
    free: tuple[int, ...]


class Branching:
    """Searches depth first, cheapest first.

    Args:
        problem: what is to be solved.
        known: an assignment that fits.
        deadline: by ``time.monotonic``.

    Attributes:
        best: the best assignment so far.
        cost: what it costs.
        bound: no assignment that fits costs less.
    """

    def __init__(self, problem: Problem, known: tuple[int, ...], deadline: float) -> None:
        self.best, self.cost, self.bound = known, problem.cost(known), 0.0
        self._problem, self._deadline = problem, deadline
        room = Room.of(problem)
        self._order, self._before = _order(problem)
        self._sizes = [room.sizes[each] for each in self._order]
        self._shares = [problem.shares[each] for each in self._order]
        self._rest = [sum(self._shares[at:]) for at in range(len(self._order) + 1)]
        self._traffic = [[problem.traffic[i][j] for j in self._order] for i in self._order]
        self._spans, self._weight = problem.spans, problem.imbalance_weight
        self._alike = _first_alike(problem)
        self._noise = _NOISE * (sum(map(sum, problem.traffic)) / 2 + self._weight)
        count = len(problem.devices)
        excess = tuple(-each for each in problem.power_shares)
        near = [[0.0] * count for _ in self._order]
        self._root = _Node(self._spread(excess, 0), (), 0.0, near, excess, room.limits)

    def solve(self) -> None:
        """Find the best, or as good a one and as high a bound as there is time for."""
        stack = [[self._root]]
        steps = 0
        while stack:
            if not stack[-1]:
                stack.pop()
                continue
            node = stack[-1].pop()
            if node.bound >= self.cost - self._noise:
                continue
            steps += 1
            if steps % 64 == 0 and time.monotonic() > self._deadline:
                stack[-1].append(node)
                lowest = min(each.bound for level in stack for each in level)
                self.bound = max(0.0, min(self.cost, lowest) - self._noise)
                return
            if len(node.chosen) == len(self._order):
                self._consider(node)
            else:
                stack.append(self._children(node))
        self.bound = self.cost

    def _consider(self, node: _Node) -> None:
        assignment = [0] * len(self._order)
        for model, device in zip(self._order, node.chosen, strict=True):
            assignment[model] = device
        cost = self._problem.cost(assignment)
        if cost < self.cost:
            self.best, self.cost = tuple(assignment), cost

    def _children(self, node: _Node) -> list[_Node]:
        """Return the nodes with one model more, the cheapest last."""
        at = len(node.chosen)
        before = self._before[at]
        first = node.chosen[before] if before is not None else 0
        found, tried = [], set[int]()
        for device in range(first, len(node.free)):
            if node.free[device] < self._sizes[at]:
                continue
            if device not in node.chosen:
                if self._alike[device] in tried:
                    continue
                tried.add(self._alike[device])
            child = self._child(node, at, device)
            if child.bound < self.cost - self._noise:
                found.append(child)
        found.sort(key=lambda each: -each.bound)
        return found

    def _child(self, node: _Node, at: int, device: int) -> _Node:
        span, traffic = self._spans[device], self._traffic[at]
        near, least = list(node.near), 0.0
        for other in range(at + 1, len(self._order)):
            amount = traffic[other]
            if amount:
                near[other] = [
                    each + amount * far for each, far in zip(near[other], span, strict=True)
                ]
            least += min(near[other])
        excess, free = list(node.excess), list(node.free)
        excess[device] += self._shares[at]
        free[device] -= self._sizes[at]
        pairs = node.pairs + node.near[at][device]
        bound = pairs + least + self._spread(tuple(excess), at + 1)
        chosen = (*node.chosen, device)
        return _Node(max(bound, node.bound), chosen, pairs, near, tuple(excess), tuple(free))

    def _spread(self, excess: tuple[float, ...], at: int) -> float:
        """Return what the squares cost at least, with the models from *at* on still to be placed.

        They are poured where least is, as water finds its level.
        """
        if not self._weight:
            return 0.0
        ascending = sorted(excess)
        level, total = 0.0, self._rest[at]
        below = 0
        for below in range(1, len(ascending) + 1):
            total += ascending[below - 1]
            level = total / below
            if below == len(ascending) or level <= ascending[below]:
                break
        squares = below * level * level + sum(each * each for each in ascending[below:])
        return self._weight * squares


def _order(problem: Problem) -> tuple[list[int], list[int | None]]:
    """Return the models, what matters most first; and for each the one alike before it."""
    unit = sum(map(sum, problem.traffic)) or 1.0
    # What is alike stands together, for the order of its devices to be known at once.
    classes = sorted(
        models_alike(problem),
        key=lambda each: -(problem.shares[each[0]] + sum(problem.traffic[each[0]]) / unit),
    )
    order = [model for each in classes for model in each]
    before: list[int | None] = []
    for each in classes:
        before += [None, *range(len(before), len(before) + len(each) - 1)]
    return order, before


def _first_alike(problem: Problem) -> list[int]:
    """Return for each device the first that is like it."""
    first = [0] * len(problem.devices)
    for each in devices_alike(problem):
        for device in each:
            first[device] = each[0]
    return first
