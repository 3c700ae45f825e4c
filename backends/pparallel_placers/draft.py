"""An assignment in the making, which knows what every change of it would cost.

Nothing is added up anew: for each model and device it is kept what the model's traffic costs there,
and for each device what lies on it. A change of the assignment changes a few of these numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from pparallel.interfaces.placer import Problem
from pparallel_placers.feasibility import Room

#: A change that gains less than this share of what the weights can make of the cost is noise.
_NOISE = 1e-13


class Tables:
    """What is the same for all assignments of a problem.

    Attributes:
        problem: the problem.
        room: sizes and limits as whole numbers.
        neighbours: [n] the models that a model exchanges something with, and the traffic.
        shifts: [m][m][m] by how much a span becomes longer when its other end moves from one
            device to another, for each device of its own end.
        noise: what the cost may differ by between two ways to add it up.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.room = Room.of(problem)
        self.neighbours = [
            [(other, each) for other, each in enumerate(row) if each] for row in problem.traffic
        ]
        spans = problem.spans
        self.shifts = [
            [[after - before for before, after in zip(here, there, strict=True)] for there in spans]
            for here in spans
        ]
        self.noise = _NOISE * (sum(map(sum, problem.traffic)) / 2 + problem.imbalance_weight)


class Draft:
    """For each model its device, and what it would cost to change that.

    Args:
        tables: of the problem.
        assignment: to start from; without one, no model has been put anywhere.

    Attributes:
        assignment: [n] for each model the index of its device; -1: nowhere yet.
        sizes: [n] what each model needs, in the tables' unit.
        free: [m] room that is left, in that unit; negative where a limit is exceeded.
    """

    def __init__(self, tables: Tables, assignment: Sequence[int] = ()) -> None:
        problem = tables.problem
        self.assignment = [-1] * len(problem.models)
        self.free = list(tables.room.limits)
        self.sizes = tables.room.sizes
        self._tables = tables
        self._traffic, self._spans, self._shares = problem.traffic, problem.spans, problem.shares
        #: [n][m] what a model's traffic with those that are placed costs on each device
        self._near = [[0.0] * len(problem.devices) for _ in problem.models]
        #: [m] the share of all sizes that a device has, less its share of all power
        self._excess = [-each for each in problem.power_shares]
        self._weight = problem.imbalance_weight
        for model, device in enumerate(assignment):
            self.put(model, device)

    def put(self, model: int, device: int) -> None:
        """Put a model that is nowhere yet on a device, whether it fits or not."""
        self.assignment[model] = device
        self.free[device] -= self.sizes[model]
        self._excess[device] += self._shares[model]
        self._bring_near(model, self._spans[device])

    def move(self, model: int, device: int) -> None:
        """Move a model to another device, whether it fits or not."""
        here = self.assignment[model]
        self.assignment[model] = device
        self.free[here] += self.sizes[model]
        self.free[device] -= self.sizes[model]
        self._excess[here] -= self._shares[model]
        self._excess[device] += self._shares[model]
        self._bring_near(model, self._tables.shifts[here][device])

    def swap(self, one: int, other: int) -> None:
        """Let two models change places, whether they fit or not."""
        here, there = self.assignment[one], self.assignment[other]
        self.move(one, there)
        self.move(other, here)

    def put_cost(self, model: int, device: int) -> float:
        """Return what :meth:`put` would add to the cost."""
        share = self._shares[model]
        spread = self._weight * share * (2 * self._excess[device] + share)
        return self._near[model][device] + spread

    def move_cost(self, model: int, device: int) -> float:
        """Return what :meth:`move` would add to the cost."""
        here, near, share = self.assignment[model], self._near[model], self._shares[model]
        spread = share * (self._excess[device] - self._excess[here] + share)
        return near[device] - near[here] + 2 * self._weight * spread

    def swap_cost(self, one: int, other: int) -> float:
        """Return what :meth:`swap` would add to the cost."""
        here, there = self.assignment[one], self.assignment[other]
        near_one, near_other = self._near[one], self._near[other]
        share = self._shares[one] - self._shares[other]
        spread = share * (self._excess[there] - self._excess[here] + share)
        # Each counts as near the place that the other leaves.
        between = self._traffic[one][other] * self._spans[here][there]
        moved = near_one[there] - near_one[here] + near_other[here] - near_other[there]
        return moved + 2 * (between + self._weight * spread)

    def may_move(self, model: int, device: int) -> bool:
        """Return whether there is room for a model on a device that it is not on."""
        return self.sizes[model] <= self.free[device] and device != self.assignment[model]

    def may_swap(self, one: int, other: int) -> bool:
        """Return whether two models on different devices have room in each other's place."""
        here, there = self.assignment[one], self.assignment[other]
        more = self.sizes[one] - self.sizes[other]
        return here != there and -self.free[here] <= more <= self.free[there]

    def _bring_near(self, model: int, spans: Sequence[float]) -> None:
        """Add to what it costs the neighbours of a model to be somewhere."""
        for neighbour, traffic in self._tables.neighbours[model]:
            self._near[neighbour] = [
                each + traffic * span
                for each, span in zip(self._near[neighbour], spans, strict=True)
            ]
