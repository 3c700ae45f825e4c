"""What a placer solves, in numbers: the cost of an assignment, and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pparallel.errors import PlacementError
from pparallel.interfaces.placer.device import Device

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """What a placer's :meth:`~Placer.solve` answers.

    Attributes:
        assignment: for each model, the index of its device.
        bound: no assignment that fits costs less; ``None`` if nothing is proven.
    """

    assignment: tuple[int, ...]
    bound: float | None = None


@dataclass(frozen=True)
class Problem:
    """Models with their needs, devices with their limits, and what an assignment costs.

    Models and devices are numbered in the order given; an assignment gives for each model the
    index of its device. All numbers are finite and none is negative. The cost, in the terms that a
    solver needs::

        cost = sum over i < j of traffic[i][j] * spans[a_i][a_j]
             + imbalance_weight
                   * sum over devices d of (sum of shares[i] with a_i = d, - power_shares[d]) ** 2

    Attributes:
        models: the models' names.
        sizes_mb: what each model needs: its size times ``model_size_multiplier``.
        devices: with memory and power filled in.
        limits_mb: what each device allows: its memory times ``max_mem_ratio``.
        connections: [n, n] how much model i and model j exchange, as given; the diagonal is 0.
        distances: [m, m] symmetric; the diagonal is 0.
        connection_weight: weight of the first term.
        complexity_match_weight: weight of the second.
    """

    models: tuple[str, ...]
    sizes_mb: tuple[float, ...]
    devices: tuple[Device, ...]
    limits_mb: tuple[float, ...]
    connections: Matrix
    distances: Matrix
    connection_weight: float
    complexity_match_weight: float

    # -- what solvers need --------------------------------------------------------------------

    @cached_property
    def traffic(self) -> Matrix:
        """[n, n], symmetric: what it costs that a pair of models is one (longest) distance apart.

        All weights and means are in it; 0 where the connections sum to 0.
        """
        count = len(self.models)
        flat = _shares([each for row in self.connections for each in row])
        factor = self.connection_weight / count**2
        rows = [flat[at * count : (at + 1) * count] for at in range(count)]
        return tuple(
            tuple(factor * (rows[i][j] + rows[j][i]) for j in range(count)) for i in range(count)
        )

    @cached_property
    def spans(self) -> Matrix:
        """[m, m] distances as shares of the longest; 0 where all are 0."""
        longest = max(map(max, self.distances))
        return tuple(
            tuple(each / longest if longest else 0.0 for each in row) for row in self.distances
        )

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """[n] what each model needs as a share of what all need; 0 where that is 0."""
        return tuple(_shares(self.sizes_mb))

    @cached_property
    def power_shares(self) -> tuple[float, ...]:
        """[m] each device's share of all power; 0 where that is 0."""
        return tuple(_shares([each.power or 0.0 for each in self.devices]))

    @cached_property
    def imbalance_weight(self) -> float:
        """What the sum of squares over the devices is to be multiplied by.

        0 where no device has power or no model has a size: there is nothing to match.
        """
        matters = any(self.shares) and any(self.power_shares)
        return self.complexity_match_weight / len(self.devices) if matters else 0.0

    # -- what an assignment is worth ----------------------------------------------------------

    def terms(self, assignment: Sequence[int]) -> dict[str, float]:
        """Return each term of the cost of *assignment*, weighted, by name."""
        pairs = (
            self.traffic[i][j] * self.spans[here][assignment[j]]
            for i, here in enumerate(assignment)
            for j in range(i)
        )
        load = [-each for each in self.power_shares]
        for share, here in zip(self.shares, assignment, strict=True):
            load[here] += share
        return {
            "connection": math.fsum(pairs),
            "complexity_match": self.imbalance_weight * math.fsum(each * each for each in load),
        }

    def cost(self, assignment: Sequence[int]) -> float:
        """Return what *assignment* costs; whether it fits is another question."""
        return math.fsum(self.terms(assignment).values())

    def used_mb(self, assignment: Sequence[int]) -> tuple[float, ...]:
        """Return how much of each device's memory the models on it need."""
        here: list[list[float]] = [[] for _ in self.devices]
        for size, device in zip(self.sizes_mb, assignment, strict=True):
            here[device].append(size)
        return tuple(map(math.fsum, here))

    def overflow_mb(self, assignment: Sequence[int]) -> tuple[float, ...]:
        """Return by how much each device's limit is exceeded; 0 where it is not."""
        both = zip(self.used_mb(assignment), self.limits_mb, strict=True)
        return tuple(max(0.0, used - limit) for used, limit in both)

    def fits(self, assignment: Sequence[int]) -> bool:
        """Return whether no device's limit is exceeded, be it by the last bit."""
        both = zip(self.used_mb(assignment), self.limits_mb, strict=True)
        return all(used <= limit for used, limit in both)

    # -- what cannot be solved ----------------------------------------------------------------

    def refuse_the_impossible(self) -> None:
        """Raise what can be known before solving.

        Raises:
            PlacementError: the models need more than all devices together allow, or one of them
                more than any device does.
        """
        needed, allowed = math.fsum(self.sizes_mb), math.fsum(self.limits_mb)
        if needed > allowed:
            message = (
                f"the models need {_mb(needed)} in total, and only {_mb(allowed)} are allowed in"
                f" total ({self._told_limits()})"
            )
            raise PlacementError(message + _ADVICE)
        size, model = max(zip(self.sizes_mb, self.models, strict=True))
        if size > max(self.limits_mb):
            message = (
                f"model {model!r} needs {_mb(size)}, and no device allows more than"
                f" {_mb(max(self.limits_mb))} ({self._told_limits()})"
            )
            raise PlacementError(message + _ADVICE)

    def no_room(self, *, proven: bool) -> PlacementError:
        """Return the error of a solver that found no assignment that fits.

        Args:
            proven: there is none; otherwise the solver gave up.
        """
        sizes = ", ".join(
            f"{name}: {size:.1f}" for name, size in zip(self.models, self.sizes_mb, strict=True)
        )
        found = "no" if proven else "within the solver's limits no"
        message = (
            f"the models need {_mb(math.fsum(self.sizes_mb))} in total and"
            f" {_mb(math.fsum(self.limits_mb))} are allowed in total, but {found} way to divide"
            f" them ({sizes}) was found that keeps to each device's limit"
            f" ({self._told_limits()})"
        )
        return PlacementError(message + _ADVICE)

    def _told_limits(self) -> str:
        both = zip(self.devices, self.limits_mb, strict=True)
        return ", ".join(f"{device.name}: {limit:.1f}" for device, limit in both)


_ADVICE = (
    "; give more devices, a higher max_mem_ratio, or a lower model_size_multiplier (1 if nothing"
    " is trained)"
)


def _shares(values: Sequence[float]) -> list[float]:
    """Return *values* as shares of their sum; all 0 where that is 0."""
    largest = max(values, default=0.0)
    if not largest:
        return [0.0] * len(values)
    scaled = [each / largest for each in values]  # the sum of what is very large is no number
    total = math.fsum(scaled)
    return [each / total for each in scaled]


def _mb(size: float) -> str:
    return f"{size:.1f} MB"
