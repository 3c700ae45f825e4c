"""Some assignment that keeps to every device's limit, or the proof that there is none.

It is bin packing with bins of different sizes. Sizes and limits become integers, and so the sums
are exact: whether a load keeps to a limit is then the same question, in whatever order it grew.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from pparallel.interfaces.placer import Problem

#: How many partial assignments are looked at before the search gives up: two or three seconds.
EFFORT = 150_000


class Room(NamedTuple):
    """Needs and limits in a unit of which each size is a whole multiple.

    Attributes:
        sizes: [n] what each model needs.
        limits: [m] what each device allows; a load keeps to it if and only if
            :meth:`Problem.fits` says so.
    """

    sizes: tuple[int, ...]
    limits: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem) -> Room:
        """Return the needs and limits of *problem*."""
        sizes = [Fraction(each) for each in problem.sizes_mb]
        unit = Fraction(
            math.gcd(*(each.numerator for each in sizes)) or 1,
            math.lcm(*(each.denominator for each in sizes)),
        )
        limits = tuple(_allowed(limit, unit) for limit in problem.limits_mb)
        return cls(tuple(int(each / unit) for each in sizes), limits)


def find(problem: Problem, effort: int = EFFORT) -> tuple[int, ...]:
    """Return an assignment that fits; what it costs is not looked at.

    Raises:
        PlacementError: there is none, or none was found with *effort*; its text says which.
    """
    room = Room.of(problem)
    order = sorted(range(len(room.sizes)), key=lambda model: -room.sizes[model])
    search = _Search([room.sizes[model] for model in order], room.limits, effort)
    devices = search.quick() or search.exhaustive()
    if devices is None:
        raise problem.no_room(proven=search.effort > 0)
    by_model = dict(zip(order, devices, strict=True))
    return tuple(by_model[model] for model in range(len(order)))


def _allowed(limit: float, unit: Fraction) -> int:
    """Return the largest multiple of *unit* that, rounded to a float, is at most *limit*."""
    ulp = math.ulp(limit)
    middle = Fraction(limit) + Fraction(ulp) / 2
    most = math.floor(middle / unit)
    if most * unit == middle and limit / ulp % 2:  # a tie, and the even neighbour is above
        most -= 1
    return most


class _Search:
    """The device of each size; sizes fall, and what fails early fails cheaply.

    Args:
        sizes: [n] falling.
        limits: [m].
        effort: how many partial assignments are looked at; counted down.
    """

    def __init__(self, sizes: Sequence[int], limits: Sequence[int], effort: int) -> None:
        self.effort = effort
        self._sizes = sizes
        self._limits = limits
        self._to_come = [*itertools.accumulate(reversed(sizes), initial=0)][::-1]
        self._failed: set[tuple[int, ...]] = set()

    def quick(self) -> list[int] | None:
        """Follow the rules of thumb: to where least, or else most, room is left."""
        for sign in (1, -1):
            left, devices = list(self._limits), list[int]()
            for size in self._sizes:
                fitting = [device for device, free in enumerate(left) if size <= free]
                if not fitting:
                    break
                devices.append(min(fitting, key=lambda each: sign * left[each]))
                left[devices[-1]] -= size
            else:
                return devices
        return None

    def exhaustive(self) -> list[int] | None:
        """Try everything, depth first, but nothing twice that differs by devices' names only."""
        left, devices = list(self._limits), list[int]()
        options = [iter(self._options(0, left))]
        while options and len(devices) < len(self._sizes):
            at = len(options) - 1
            if len(devices) > at:  # what it led to has failed
                left[devices.pop()] += self._sizes[at]
            device = next(options[-1], None)
            if device is None:
                options.pop()
                continue
            devices.append(device)
            left[device] -= self._sizes[at]
            options.append(iter(self._options(at + 1, left)))
        return devices if options else None

    def _options(self, at: int, left: Sequence[int]) -> list[int]:
        """Return the devices to try for what is *at* this rank, that with least room first."""
        if at == len(self._sizes) or self.effort <= 0 or not self._promises(at, left):
            return []
        self.effort -= 1
        size = self._sizes[at]
        alike = {free: device for device, free in enumerate(left) if free >= size}
        if size in alike:  # what else could fill this device could lie where this one would
            return [alike[size]]
        return [alike[free] for free in sorted(alike)]

    def _promises(self, at: int, left: Sequence[int]) -> bool:
        """Return whether the rest may fit, as far as sums tell, and this was not tried before."""
        usable = [free for free in left if free >= self._sizes[-1]]
        state = (at, *sorted(usable))
        if sum(usable) < self._to_come[at] or state in self._failed:
            return False
        self._failed.add(state)
        return True
