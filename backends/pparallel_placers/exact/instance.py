"""A problem whose cost is a sum over the devices, in arrays: what a column costs, and if it fits.

A column is a set of models that one device may hold: for each class of models that are alike, how
many of them. The whole is then to choose a column for each device, so that each model is in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pparallel.interfaces.placer import Problem
from pparallel_placers.exact.alike import devices_alike, models_alike
from pparallel_placers.feasibility import Room

Floats = NDArray[np.float64]
Counts = NDArray[np.int8]

#: Loads this close to a limit are added up anew in whole numbers.
_CLOSE = 1e-9


class Group(NamedTuple):
    """Devices that are alike.

    Attributes:
        devices: their indices.
        leg: the distance from each to the middle.
        power: the share of all power that each has.
        limit: the share of all sizes that each allows.
    """

    devices: list[int]
    leg: float
    power: float
    limit: float


class Instance:
    """The numbers of a problem, by class of models and group of devices.

    Attributes:
        classes: the models of each class.
        groups: the groups of devices.
        members: [c] how many models a class has.
        devices: [g] how many devices a group has.
        shares: [c] the size of a model of each class, as a share of all.
        traffic: [c, c] between two models of two classes, or of one on the diagonal.
        busy: [c] traffic of a model with all others.
        weight: of the squares of what a device has too much or too little.
        unit: what costs are counted in: all traffic at once, and the weight.
    """

    def __init__(self, problem: Problem, legs: Sequence[float]) -> None:
        self.classes = models_alike(problem)
        room = Room.of(problem)
        total = sum(room.sizes)
        self.groups = [
            Group(
                alike,
                legs[alike[0]],
                problem.power_shares[alike[0]],
                room.limits[alike[0]] / total if total else 1.0,
            )
            for alike in devices_alike(problem)
        ]
        self._sizes = [room.sizes[each[0]] for each in self.classes]
        self._limits = [room.limits[each.devices[0]] for each in self.groups]
        firsts = [each[0] for each in self.classes]
        seconds = [each[-1] for each in self.classes]
        self.members = np.array([len(each) for each in self.classes], np.int64)
        self.devices = np.array([len(each.devices) for each in self.groups], np.int64)
        self.shares: Floats = np.array([each / total if total else 0.0 for each in self._sizes])
        traffic = np.array(problem.traffic)
        self.unit = float(traffic.sum()) / 2 + problem.imbalance_weight or 1.0
        traffic /= self.unit
        self.traffic: Floats = traffic[np.ix_(firsts, firsts)]
        inner = traffic[firsts, seconds]
        np.fill_diagonal(self.traffic, inner)
        self.busy: Floats = self.traffic @ self.members - inner
        self.weight = problem.imbalance_weight / self.unit

    @property
    def inner(self) -> Floats:
        """[c] traffic between two models of a class."""
        return np.diag(self.traffic)

    def outward(self, columns: Counts) -> Floats:
        """Return [k] the traffic of each column with what is not in it."""
        counts = columns.astype(np.float64)
        within = ((counts @ self.traffic) * counts).sum(1) - counts @ self.inner
        return np.asarray(counts @ self.busy - within, np.float64)

    def costs(self, group: int, columns: Counts) -> Floats:
        """Return [k] what each column costs on a device of *group*."""
        _, leg, power, _ = self.groups[group]
        excess = columns @ self.shares - power
        return np.asarray(self.weight * excess**2 + leg * self.outward(columns), np.float64)

    def fitting(self, group: int, columns: Counts) -> NDArray[np.bool_]:
        """Return [k] which columns a device of *group* has room for."""
        limit = self.groups[group].limit
        loads = columns @ self.shares
        fitting = np.asarray(loads <= limit, np.bool_)
        for at in np.flatnonzero(abs(loads - limit) <= _CLOSE):
            counts = columns[at].tolist()
            needs = sum(map(int.__mul__, counts, self._sizes))
            fitting[at] = needs <= self._limits[group]
        return fitting

    def columns(self, assignment: Sequence[int]) -> list[tuple[int, Counts]]:
        """Return the group and the column of each device."""
        return [
            (
                at,
                np.array([sum(assignment[i] == d for i in each) for each in self.classes], np.int8),
            )
            for at, group in enumerate(self.groups)
            for d in group.devices
        ]

    def assignment(self, columns: Sequence[tuple[int, Counts]]) -> tuple[int, ...]:
        """Return the assignment that gives each device one of *columns*, of its group."""
        left = [list(reversed(each)) for each in self.classes]
        free = [list(reversed(each.devices)) for each in self.groups]
        found = [0] * sum(map(len, self.classes))
        for group, counts in columns:
            device = free[group].pop()
            for at, count in enumerate(counts.tolist()):
                for _ in range(count):
                    found[left[at].pop()] = device
        return tuple(found)
